//! taskstats: CPU time of processes over netlink, 64 of them with one message (OPT2 of Kamoshida
//! and Taura, in batches). It needs CAP_NET_ADMIN; memory and state come from /proc, in turn. An
//! answer of the kernel may be short or late, or an error for one process.

use super::kind::Kind;
use super::roster::Roster;
use super::tick::{Reader, Tally, Tick};
use crate::ages::{LASTING, RSS};
use crate::sample::Process;
use eyrie_proc::kept::{again, page_size};
use eyrie_proc::text::numbers;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    netlink, recv, send, socket_with, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use std::time::Duration;

/// Processes in one request.
const BATCH: usize = 64;
/// Bytes of an answer: two headers, the number, and the statistics with room for later kernels.
const ANSWER: usize = 1024;

// From linux/netlink.h, genetlink.h and taskstats.h.
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const TASKSTATS_CMD_GET: u8 = 1;
const TASKSTATS_CMD_ATTR_TGID: u16 = 2;
const TASKSTATS_TYPE_STATS: u16 = 3;
const TASKSTATS_TYPE_AGGR_TGID: u16 = 5;
/// Offsets in struct taskstats, which only ever grows at its end.
const CPU_RUN_VIRTUAL_TOTAL: usize = 72;
const AC_UTIME: usize = 152;
const AC_STIME: usize = 160;

/// nlmsghdr and genlmsghdr.
const HEADERS: usize = 20;
/// A request for one process: headers, and one attribute of 4 bytes.
const REQUEST: usize = HEADERS + 8;

pub struct Taskstats {
    roster: Roster,
    socket: OwnedFd,
    family: u16,
    /// Requests of one batch; their sequence numbers are places in the roster.
    request: Vec<u8>,
    answer: Box<[u8; ANSWER]>,
    page: u64,
}

impl Taskstats {
    pub fn new(capacity: usize) -> Result<Taskstats, String> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )
        .map_err(|e| format!("no generic netlink: {e}"))?;
        // The kernel answers at once. A missing answer must not stop the sampler.
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Recv,
            Some(Duration::from_millis(100)),
        )
        .and_then(|()| {
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 * BATCH * ANSWER)
        })
        .map_err(|e| format!("netlink: {e}"))?;
        let family = family(&socket)?;
        let mut reader = Taskstats {
            roster: Roster::new(capacity, true)?,
            socket,
            family,
            request: Vec::with_capacity(BATCH * REQUEST),
            answer: Box::new([0; ANSWER]),
            page: page_size(),
        };
        reader.probe()?;
        Ok(reader)
    }

    /// Asks for this process itself, which shows whether permission and format are right.
    fn probe(&mut self) -> Result<(), String> {
        put_request(&mut self.request, self.family, 0, std::process::id());
        send(&self.socket, &self.request, SendFlags::empty())
            .map_err(|e| format!("taskstats: {e}"))?;
        self.request.clear();
        match self.receive() {
            Ok((_, Ok(_))) => Ok(()),
            Ok((_, Err(Errno::PERM))) => Err("no permission: CAP_NET_ADMIN is missing".into()),
            Ok((_, Err(e))) | Err(e) => Err(format!("taskstats: {e}")),
        }
    }

    /// Receives one answer: its sequence number and its content.
    fn receive(&mut self) -> Result<(u32, Result<Times, Errno>), Errno> {
        let (read, _) = recv(&self.socket, &mut self.answer[..], RecvFlags::empty())?;
        answer(&self.answer[..read]).ok_or(Errno::BADMSG)
    }

    /// Sends the batch and receives its answers.
    fn ask(&mut self, asked: usize, tally: &mut Tally) {
        if asked == 0 {
            return;
        }
        if send(&self.socket, &self.request, SendFlags::empty()).is_err() {
            tally.failed += 1;
        } else {
            for _ in 0..asked {
                match self.receive() {
                    Ok((at, Ok(times))) => self.set(at as usize, times),
                    // It is gone: the next listing removes it.
                    Ok((at, Err(Errno::SRCH))) => self.set_gone(at as usize),
                    Ok((_, Err(_))) => tally.failed += 1,
                    Err(_) => {
                        tally.failed += 1;
                        break;
                    }
                }
            }
        }
        self.request.clear();
    }

    fn set(&mut self, at: usize, times: Times) {
        if let Some(entry) = self.roster.entries.get_mut(at) {
            entry.process.cpu_ns = entry.process.cpu_ns.max(times.cpu_ns);
            entry.process.user_ns = times.user_us * 1000;
            entry.process.system_ns = times.system_us * 1000;
        }
    }

    fn set_gone(&mut self, at: usize) {
        if let Some(entry) = self.roster.entries.get_mut(at) {
            entry.process.state = GONE;
        }
    }

    /// Reads memory and state, if it is the turn of this process.
    fn in_turn(&mut self, at: usize, tick: &Tick) {
        let turn = at as u64 + tick.number;
        if turn % u64::from(LASTING) == 0 && !self.roster.reread(at) {
            self.roster.entries[at].process.state = GONE;
        }
        if turn % u64::from(RSS) == 0 {
            let entry = &mut self.roster.entries[at];
            let mut buffer = [0; 128];
            match entry.statm.as_ref().map(|f| again(f, &mut buffer)) {
                Some(Ok(text)) => entry.process.rss_bytes = numbers::<2>(text).0[1] * self.page,
                _ => entry.process.state = GONE,
            }
        }
    }
}

/// The state of a process that is gone, until it is removed.
const GONE: u8 = 0;

impl Reader for Taskstats {
    fn kind(&self) -> Kind {
        Kind::Taskstats
    }

    fn read(&mut self, tick: &Tick, out: &mut Vec<Process>) -> Tally {
        let looked = self.roster.update(tick);
        let mut tally = Tally { beyond: self.roster.beyond, failed: looked.is_err().into() };
        let newcomers = self.roster.newcomers;
        let mut asked = 0;
        for at in 0..self.roster.entries.len() {
            let entry = &mut self.roster.entries[at];
            entry.process.due = entry.rate.wants(tick.policy, newcomers);
            if !entry.process.due {
                continue;
            }
            put_request(&mut self.request, self.family, at as u32, entry.process.pid);
            asked += 1;
            self.in_turn(at, tick);
            if asked == BATCH {
                self.ask(asked, &mut tally);
                asked = 0;
            }
        }
        self.ask(asked, &mut tally);
        self.roster.entries.retain(|e| e.process.state != GONE);
        for entry in &mut self.roster.entries {
            if entry.process.due {
                entry.rate.observe(entry.process.cpu_ns, tick.now_ns, tick.policy);
            }
            if out.len() < out.capacity() {
                out.push(Process { age: entry.rate.age(), ..entry.process });
            } else {
                tally.beyond += 1;
            }
        }
        tally
    }
}

/// The times in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    cpu_ns: u64,
    user_us: u64,
    system_us: u64,
}

fn put_header(to: &mut Vec<u8>, length: usize, kind: u16, sequence: u32, command: u8) {
    to.extend((length as u32).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(NLM_F_REQUEST.to_ne_bytes());
    to.extend(sequence.to_ne_bytes());
    to.extend(0u32.to_ne_bytes());
    to.extend([command, 1, 0, 0]);
}

fn put_request(to: &mut Vec<u8>, family: u16, sequence: u32, pid: u32) {
    put_header(to, REQUEST, family, sequence, TASKSTATS_CMD_GET);
    to.extend(8u16.to_ne_bytes());
    to.extend(TASKSTATS_CMD_ATTR_TGID.to_ne_bytes());
    to.extend(pid.to_ne_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// The attribute of this kind in a sequence of attributes.
fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = u16_at(bytes, 0)? as usize;
        if length < 4 {
            return None;
        }
        // The two upper bits are flags.
        if u16_at(bytes, 2)? & 0x3fff == kind {
            return bytes.get(4..length);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

/// `None` when it is not an answer to a request.
fn answer(bytes: &[u8]) -> Option<(u32, Result<Times, Errno>)> {
    let sequence = u32::from_ne_bytes(bytes.get(8..12)?.try_into().ok()?);
    if u16_at(bytes, 4)? == NLMSG_ERROR {
        let code = i32::from_ne_bytes(bytes.get(16..20)?.try_into().ok()?);
        return Some((sequence, Err(Errno::from_raw_os_error(-code))));
    }
    let process = attribute(bytes.get(HEADERS..)?, TASKSTATS_TYPE_AGGR_TGID)?;
    let stats = attribute(process, TASKSTATS_TYPE_STATS)?;
    let times = Times {
        cpu_ns: u64_at(stats, CPU_RUN_VIRTUAL_TOTAL)?,
        user_us: u64_at(stats, AC_UTIME)?,
        system_us: u64_at(stats, AC_STIME)?,
    };
    Some((sequence, Ok(times)))
}

/// The family number that the kernel has assigned to taskstats.
fn family(socket: &OwnedFd) -> Result<u16, String> {
    let mut request = Vec::new();
    put_header(&mut request, HEADERS + 16, GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY);
    request.extend(14u16.to_ne_bytes());
    request.extend(CTRL_ATTR_FAMILY_NAME.to_ne_bytes());
    request.extend(b"TASKSTATS\0\0\0");
    send(socket, &request, SendFlags::empty()).map_err(|e| format!("netlink: {e}"))?;
    let mut reply = [0; 4096];
    let (read, _) =
        recv(socket, &mut reply[..], RecvFlags::empty()).map_err(|e| format!("netlink: {e}"))?;
    let reply = &reply[..read];
    let missing = || "the kernel has no taskstats (CONFIG_TASKSTATS)".to_string();
    if u16_at(reply, 4) == Some(NLMSG_ERROR) {
        return Err(missing());
    }
    let id = reply
        .get(HEADERS..)
        .and_then(|r| attribute(r, CTRL_ATTR_FAMILY_ID))
        .and_then(|id| u16_at(id, 0));
    id.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_can_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = answer(&bytes);
        }
    }

    #[test]
    fn an_error_carries_its_number_and_its_process() {
        let mut bytes = vec![0; 36];
        bytes[4] = NLMSG_ERROR as u8;
        bytes[8] = 7;
        bytes[16..20].copy_from_slice(&(-3i32).to_ne_bytes());
        assert_eq!(answer(&bytes), Some((7, Err(Errno::SRCH))));
    }
}
