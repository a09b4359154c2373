//! Identifies this host by what its kernel says, because one host may have several names.
//! Containers on one kernel are hosts of their own, because each can fail by itself.

use eyrie_proc::host;
use std::ffi::OsString;

/// Namespaces that distinguish a container from others and from the machine. Mount namespaces do
/// not: a batch system gives each of its jobs another one on the same host.
const NAMESPACES: [&str; 3] = ["pid", "net", "uts"];

/// A text that is the same on the same host until it is booted again, and different on every other
/// host; empty if the kernel does not say.
pub fn look() -> String {
    of(host::boot_id(), |kind| host::namespace(kind).ok()).unwrap_or_default()
}

fn of(boot: String, namespace: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let mut all = (!boot.is_empty()).then_some(boot)?;
    for kind in NAMESPACES {
        all += &format!(" {}", namespace(kind)?.to_string_lossy());
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_each_time_and_unknown_without_proc() {
        let known = look();
        assert!(known.contains("net:["), "{known}");
        assert_eq!(look(), known);
        assert_eq!(of(String::new(), |_| Some("x".into())), None);
        assert_eq!(of("b".into(), |kind| (kind != "net").then(|| "x".into())), None);
    }
}
