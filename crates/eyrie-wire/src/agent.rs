//! The messages between a rank's provider and its agent: small and of fixed form, over an inherited
//! SOCK_SEQPACKET socket. And the environment variables that tell the provider its rank. Encoding
//! does not allocate, because the provider may send from a signal handler.

use crate::{ImageId, Incarnation};

/// The descriptor of the agent channel in every rank. It is the same in each of its incarnations,
/// as everything that a process inherits, because that may influence addresses.
pub const AGENT_FD: i32 = 200;
/// The descriptor of the PMI socket in every rank.
pub const PMI_FD: i32 = 201;

/// Number of the inherited descriptor of the agent channel ([`AGENT_FD`]).
pub const ENV_AGENT_FD: &str = "EYRIE_AGENT_FD";
/// Rank and number of ranks of the job: decimal numbers. What differs between incarnations of a
/// rank is not in the environment, which is on the stack and so moves addresses. It is in
/// [`ToRank::Welcome`].
pub const ENV_RANK: &str = "EYRIE_RANK";
pub const ENV_SIZE: &str = "EYRIE_SIZE";
/// Key of the random numbers that the job's ranks draw: 64 hexadecimal digits, the same in all
/// incarnations of a rank. libeyrie-calls reads it.
pub const ENV_RANDOM: &str = "EYRIE_RANDOM";

/// The job's directory on this host. libeyrie-calls lists in its file [`OLD_STATES`] what it keeps
/// beside files that ranks change.
pub const ENV_DIR: &str = "EYRIE_JOB_DIR";
/// Paths, each followed by a NUL. The last name of each begins with [`OLD_STATE`].
pub const OLD_STATES: &str = "old-states";
pub const OLD_STATE: &str = ".eyrie-was-";

/// What the rank may use of its processor, where that is less than all: as the level of
/// eyrie-image-kernel is written. libeyrie-calls and the provider read it.
pub const ENV_CPU: &str = "EYRIE_CPU";

/// "off": what a rank observes besides messages is not recorded.
pub const ENV_RECORD: &str = "EYRIE_RECORD";
/// The first byte of a message that precedes all others when a program that has run before is
/// started anew: it comes with a file of what the program observed then. libeyrie-calls peeks at
/// it. It is not a [`ToRank`].
pub const BEGINNING: u8 = 5;
/// Set when the program's own sockets that lead out of a rank do not refuse its image. In a
/// restored rank they are broken connections.
pub const ENV_DROP_SOCKETS: &str = "EYRIE_DROP_SOCKETS";
/// [`IMAGES_FULL`]: each image of a rank has all of its memory, so that the savings of incremental
/// images can be measured. Users set it.
pub const ENV_IMAGES: &str = "EYRIE_IMAGES";
pub const IMAGES_FULL: &str = "full";

/// The signal that asks a rank for an image. If it is sent once, the image is taken at the end of
/// the rank's next call of its MPI library; if it is sent again, at once.
pub fn capture_signal() -> i32 {
    libc::SIGRTMAX() - 5
}

/// Longest message on the channel in bytes.
pub const MAX_MESSAGE: usize = 512;
/// Most file systems on servers that a rank names ([`FromRank::Still`]).
pub const FAR: usize = 4;

/// Agent to rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToRank {
    /// First message to every incarnation, new or restored. Two descriptors come with it
    /// (SCM_RIGHTS): the rank's page ([`crate::page`]), and a file with the job's directory. Newer
    /// directories are appended to it, and the page says when.
    Welcome { incarnation: Incarnation },
    /// Take an image now. Sent before the signal, with the descriptor for the stream (SCM_RIGHTS).
    /// The image may build on image `base`, which its store has; 0: on none. `hold`: with `sync`,
    /// the rank continues only after another [`ToRank::Go`], or after a time of its own.
    /// `self_contained`: the image has the content of the program and its libraries.
    Capture { image: ImageId, sync: bool, base: ImageId, hold: bool, self_contained: bool },
    /// The agent has read all output, so the position of the standard streams is fixed: continue.
    /// To a rank that was held: it does not move.
    Go { image: ImageId },
    /// The answer to [`FromRank::Loaded`] of a new process that knows the other ranks of its job.
    Admitted,
}

/// Rank to agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromRank<'a> {
    /// The provider is loaded, or continues in a restored process: the answer to
    /// [`ToRank::Welcome`] in every incarnation. `pid` receives the capture signal.
    Loaded {
        pid: u32,
    },
    /// The rank stands still at this clock, with all messages up to this receive sequence number,
    /// and waits for [`ToRank::Go`].
    Still {
        image: ImageId,
        clock: u64,
        rsn: u64,
        /// Bytes that it has observed besides messages.
        observed: u64,
        /// Devices of file systems on servers to which it has written, in the form of stat(2); 0:
        /// none.
        far: [u64; FAR],
    },
    /// The image is under way (async) or written (sync), and the rank computes.
    Captured {
        image: ImageId,
        child_pid: u32,
        pause_ns: u64,
    },
    Refused {
        image: ImageId,
        reason: &'a str,
    },
    /// The rank ends itself for this reason.
    Fatal {
        reason: &'a str,
    },
    /// The writes of the rank cannot be tracked: all its images are full ones.
    Untracked {
        reason: &'a str,
    },
    /// The rank was started to use less of its processor than there is ([`ENV_CPU`]), and uses
    /// these registers beyond that: its images demand all that this processor has.
    Exceeds {
        registers: &'a str,
    },
    /// MPI_Init is over: the text of MPI_Get_library_version, and the thread level that the library
    /// gave (MPI_THREAD_SINGLE: 0). Sent once in all incarnations of a rank.
    Library {
        threads: u32,
        text: &'a str,
    },
}

fn put(buf: &mut [u8; MAX_MESSAGE], kind: u8, numbers: &[u64], text: &str) -> usize {
    buf[0] = kind;
    let mut at = 8;
    for n in numbers {
        buf[at..at + 8].copy_from_slice(&n.to_le_bytes());
        at += 8;
    }
    let mut take = text.len().min(MAX_MESSAGE - at);
    while !text.is_char_boundary(take) {
        take -= 1;
    }
    buf[at..at + take].copy_from_slice(&text.as_bytes()[..take]);
    at + take
}

fn number(bytes: &[u8], i: usize) -> Option<u64> {
    let at = 8 + 8 * i;
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn text(bytes: &[u8], numbers: usize) -> Option<&str> {
    let rest = bytes.get(8 + 8 * numbers..)?;
    Some(match std::str::from_utf8(rest) {
        Ok(s) => s,
        Err(e) => std::str::from_utf8(&rest[..e.valid_up_to()]).unwrap_or(""),
    })
}

impl ToRank {
    /// Writes the message to `buf`, returns its length.
    pub fn encode(&self, buf: &mut [u8; MAX_MESSAGE]) -> usize {
        match *self {
            ToRank::Welcome { incarnation } => put(buf, 1, &[incarnation.0.into()], ""),
            ToRank::Capture { image, sync, base, hold, self_contained } => {
                let flags = [hold, self_contained].map(u64::from);
                put(buf, 2, &[image.0, sync.into(), base.0, flags[0], flags[1]], "")
            }
            ToRank::Go { image } => put(buf, 3, &[image.0], ""),
            ToRank::Admitted => put(buf, 4, &[], ""),
        }
    }

    /// Reads a message; `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<ToRank> {
        Some(match *bytes.first()? {
            1 => ToRank::Welcome { incarnation: Incarnation(number(bytes, 0)?.try_into().ok()?) },
            2 => ToRank::Capture {
                image: ImageId(number(bytes, 0)?),
                sync: number(bytes, 1)? != 0,
                base: ImageId(number(bytes, 2)?),
                hold: number(bytes, 3)? != 0,
                self_contained: number(bytes, 4)? != 0,
            },
            3 => ToRank::Go { image: ImageId(number(bytes, 0)?) },
            4 => ToRank::Admitted,
            _ => return None,
        })
    }
}

impl<'a> FromRank<'a> {
    /// Writes the message to `buf`, returns its length. Texts are cut to fit.
    pub fn encode(&self, buf: &mut [u8; MAX_MESSAGE]) -> usize {
        match *self {
            FromRank::Loaded { pid } => put(buf, 1, &[pid.into()], ""),
            FromRank::Still { image, clock, rsn, observed, far: [a, b, c, d] } => {
                put(buf, 2, &[image.0, clock, rsn, observed, a, b, c, d], "")
            }
            FromRank::Captured { image, child_pid, pause_ns } => {
                put(buf, 3, &[image.0, child_pid.into(), pause_ns], "")
            }
            FromRank::Refused { image, reason } => put(buf, 4, &[image.0], reason),
            FromRank::Fatal { reason } => put(buf, 5, &[], reason),
            FromRank::Untracked { reason } => put(buf, 6, &[], reason),
            FromRank::Library { threads, text } => put(buf, 7, &[threads.into()], text),
            FromRank::Exceeds { registers } => put(buf, 8, &[], registers),
        }
    }

    /// Reads a message; `None` for other bytes.
    pub fn decode(bytes: &'a [u8]) -> Option<FromRank<'a>> {
        let n = |i| number(bytes, i);
        Some(match *bytes.first()? {
            1 => FromRank::Loaded { pid: n(0)?.try_into().ok()? },
            2 => FromRank::Still {
                image: ImageId(n(0)?),
                clock: n(1)?,
                rsn: n(2)?,
                observed: n(3)?,
                far: [n(4)?, n(5)?, n(6)?, n(7)?],
            },
            3 => FromRank::Captured {
                image: ImageId(n(0)?),
                child_pid: n(1)?.try_into().ok()?,
                pause_ns: n(2)?,
            },
            4 => FromRank::Refused { image: ImageId(n(0)?), reason: text(bytes, 1)? },
            5 => FromRank::Fatal { reason: text(bytes, 0)? },
            6 => FromRank::Untracked { reason: text(bytes, 0)? },
            7 => FromRank::Library { threads: n(0)?.try_into().ok()?, text: text(bytes, 1)? },
            8 => FromRank::Exceeds { registers: text(bytes, 0)? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_channel() {
        let mut buf = [0; MAX_MESSAGE];
        for m in [
            ToRank::Welcome { incarnation: Incarnation(7) },
            ToRank::Capture {
                image: ImageId(3),
                sync: true,
                base: ImageId(2),
                hold: true,
                self_contained: false,
            },
            ToRank::Capture {
                image: ImageId(4),
                sync: false,
                base: ImageId(0),
                hold: false,
                self_contained: true,
            },
            ToRank::Go { image: ImageId(3) },
            ToRank::Admitted,
        ] {
            let n = m.encode(&mut buf);
            assert_eq!(ToRank::decode(&buf[..n]), Some(m));
        }
        let long = "é".repeat(MAX_MESSAGE);
        for m in [
            FromRank::Loaded { pid: 1 },
            FromRank::Still { image: ImageId(1), clock: 2, rsn: 3, observed: 4, far: [5, 6, 0, 0] },
            FromRank::Captured { image: ImageId(1), child_pid: 2, pause_ns: 3 },
            FromRank::Refused { image: ImageId(9), reason: "fd 7 is a UDP socket" },
            FromRank::Untracked { reason: "no userfaultfd" },
            FromRank::Exceeds { registers: "AVX-512" },
            FromRank::Library { threads: 2, text: "MPICH Version: 5.0.2" },
        ] {
            let n = m.encode(&mut buf);
            assert_eq!(FromRank::decode(&buf[..n]), Some(m));
        }
        let n = FromRank::Fatal { reason: &long }.encode(&mut buf);
        let Some(FromRank::Fatal { reason }) = FromRank::decode(&buf[..n]) else { panic!() };
        assert!(long.starts_with(reason) && reason.len() > MAX_MESSAGE / 2);
    }

    #[test]
    fn short_or_unknown_messages_are_none() {
        for len in 0..24 {
            assert_eq!(FromRank::decode(&[2u8; 24][..len]), None);
        }
        assert_eq!(FromRank::decode(&[99; 64]), None);
        assert_eq!(ToRank::decode(&[]), None);
    }
}
