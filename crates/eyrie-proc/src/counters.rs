//! /proc/PID/stat: what the kernel counts of a process. The parsers allocate nothing and accept any
//! bytes.

use crate::text::number;
use std::time::Duration;

/// Nanoseconds of a tick of /proc: a hundredth of a second on all Linux systems.
pub const TICK_NS: u64 = 10_000_000;

/// A line of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: u32,
    /// The first 15 bytes of the program's name, then zeros.
    pub command: [u8; 16],
    /// As ps(1) shows it: R, S, D, T, Z and others.
    pub state: u8,
    pub parent: u32,
    /// The kernel's PF_ flags.
    pub flags: u64,
    pub user_ticks: u64,
    pub system_ticks: u64,
    /// Processor time of the children that it has reaped, and of those that these have reaped.
    pub reaped_ticks: u64,
    pub threads: u32,
    pub start_ticks: u64,
    /// Bytes of its address space; 0: it has none any more.
    pub address_space: u64,
    pub rss_pages: u64,
}

impl Stat {
    /// `None` when it is not such a line. The command's name may contain anything, even parentheses
    /// and blanks: it ends at the last `)`.
    pub fn parse(text: &[u8]) -> Option<Stat> {
        let (pid, _) = number(text)?;
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let name = text.get(open + 1..close)?;
        let mut command = [0; 16];
        let len = name.len().min(15);
        command[..len].copy_from_slice(&name[..len]);
        let mut fields = fields(text)?;
        let state = *fields.next()?.first()?;
        let mut field = |skip: usize| fields.nth(skip).and_then(number).map(|(n, _)| n);
        let parent = field(0)?; // field 4 of proc(5)
        let flags = field(4)?; // 9
        let user_ticks = field(4)?; // 14
        let system_ticks = field(0)?; // 15
        let reaped_ticks = field(0)?.saturating_add(field(0)?); // 16, 17
        let threads = field(2)?; // 20
        let start_ticks = field(1)?; // 22
        let address_space = field(0)?; // 23
        let rss_pages = field(0)?; // 24
        Some(Stat {
            pid: pid as u32,
            command,
            state,
            parent: parent as u32,
            flags,
            user_ticks,
            system_ticks,
            reaped_ticks,
            threads: threads as u32,
            start_ticks,
            address_space,
            rss_pages,
        })
    }

    /// Processor time of all of its threads.
    pub fn processor_time(&self) -> Duration {
        let ticks = self.user_ticks.saturating_add(self.system_ticks);
        Duration::from_nanos(ticks.saturating_mul(TICK_NS))
    }

    /// Whether it has ended and is not reaped.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// The wait status in a line of /proc/PID/stat of a process that has ended and is not reaped. It is
/// the last field, the 52nd of proc(5).
pub fn exit_status(text: &[u8]) -> Option<i32> {
    let mut fields = fields(text)?;
    let ended = matches!(fields.next()?, b"Z" | b"X");
    let (status, _) = ended.then(|| fields.nth(48))?.and_then(number)?;
    i32::try_from(status).ok()
}

/// The fields from the third on.
fn fields(text: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let close = text.iter().rposition(|b| *b == b')')?;
    Some(text.get(close + 2..)?.split(|b| *b == b' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stat_line_with_a_hostile_name() {
        let line = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194560 100 0 0 0 12 34 5 6 20 0 3 0 5678 1000 \
                     99 18446744073709551615";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.pid, stat.state, stat.parent, stat.threads), (42, b'S', 7, 3));
        assert_eq!(
            (stat.user_ticks, stat.system_ticks, stat.start_ticks, stat.rss_pages),
            (12, 34, 5678, 99)
        );
        assert_eq!((stat.reaped_ticks, stat.address_space), (11, 1000));
        assert_eq!(stat.processor_time(), Duration::from_millis(460));
        assert_eq!(&stat.command, b"a) R 1 (b\0\0\0\0\0\0\0");
        assert_eq!(Stat::parse(b"7 (a"), None);
    }

    #[test]
    fn our_own_line_is_read() {
        let text = std::fs::read("/proc/self/stat").unwrap();
        let stat = Stat::parse(&text).unwrap();
        assert_eq!(stat.pid, std::process::id());
        assert_eq!(stat.parent, std::os::unix::process::parent_id());
        assert!(stat.rss_pages > 0 && stat.start_ticks > 0 && stat.address_space > 0);
        assert!(!stat.has_ended());
        assert_eq!(exit_status(&text), None, "it runs");
    }

    proptest! {
        #[test]
        fn no_input_breaks_the_parsers(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Stat::parse(&bytes);
            let _ = exit_status(&bytes);
        }
    }
}
