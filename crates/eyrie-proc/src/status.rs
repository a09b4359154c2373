//! /proc/PID/status: lines of a name and a value. A line that this kernel does not have is `None`.

use std::path::Path;

/// The text of /proc/PID/status.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status(String);

impl Status {
    /// Reads it from a directory of /proc; empty when the process is gone.
    pub fn read(dir: impl AsRef<Path>) -> Status {
        Status(crate::text::read(dir, "status"))
    }

    /// The value of this line.
    pub fn value<'a>(&'a self, name: &str) -> Option<&'a str> {
        let of = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
        self.0.lines().find_map(of).map(str::trim)
    }

    /// The value of this line as a set of bits: signals, capabilities.
    pub fn bits(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.value(name)?, 16).ok()
    }

    /// The set of signals in this line.
    pub fn has_signal(&self, name: &str, signal: i32) -> Option<bool> {
        Some(self.bits(name)? >> (signal - 1) & 1 == 1)
    }

    /// The value of this line, which is in kB, in bytes.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        let (number, unit) = self.value(name)?.split_once(' ')?;
        (unit.trim() == "kB").then(|| number.parse::<u64>().ok())?.map(|kib| kib << 10)
    }
}

impl From<String> for Status {
    fn from(text: String) -> Status {
        Status(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_whole_names() {
        let text = "Name:\tx\nVmRSS:\t 10 kB\nRssAnon:\t       4 kB\nSigPnd:\t0000000000000100\n";
        let status = Status::from(text.to_string());
        assert_eq!((status.value("Name"), status.value("Rss")), (Some("x"), None));
        assert_eq!((status.bytes("RssAnon"), status.bytes("RssFile")), (Some(4096), None));
        assert_eq!(status.bits("SigPnd"), Some(256));
        assert_eq!(status.has_signal("SigPnd", 9), Some(true));
        assert_eq!((status.has_signal("SigPnd", 8), status.bits("SigBlk")), (Some(false), None));
        assert!(Status::read(crate::OWN).bytes("VmHWM").unwrap() > 0);
        assert_eq!(Status::read("/none"), Status::default());
    }
}
