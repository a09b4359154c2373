//! Which variables of the environment go along to other sites.

use std::ffi::{OsStr, OsString};

/// Variables of the environment that are a host's or a session's own.
const OWN: [&str; 14] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "HOSTNAME",
    "HOST",
    "TMPDIR",
    "MAIL",
    "DISPLAY",
    "XAUTHORITY",
];
const OWN_PREFIXES: [&str; 6] = ["SSH_", "SLURM", "SALLOC_", "SBATCH_", "XDG_", "DBUS_"];
/// What ranks in other domains get of these variables.
pub fn passed(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let is_own = |name: &OsStr| {
        let bytes = name.as_encoded_bytes();
        OWN.iter().any(|own| name == *own)
            || OWN_PREFIXES.iter().any(|prefix| bytes.starts_with(prefix.as_bytes()))
    };
    all.filter(|(name, _)| !is_own(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_keeps_its_own_variables() {
        let all = ["PATH", "HOME", "SLURM_JOB_ID", "SSH_CONNECTION", "OMP_NUM_THREADS"];
        let got = passed(all.iter().map(|name| (name.into(), "x".into())));
        let names: Vec<_> = got.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(names, ["PATH", "OMP_NUM_THREADS"]);
    }
}
