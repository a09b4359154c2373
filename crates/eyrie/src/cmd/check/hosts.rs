//! The hosts that a user names, in order and each once.

use anyhow::Context;
use eyrie_topology::hostlist;
use std::path::Path;

/// A list like `n1:4,n[2-3]`.
///
/// # Errors
/// Says what is wrong with it.
pub fn read_list(list: &str) -> anyhow::Result<Vec<String>> {
    // The whole grammar of hosts, when it is there, takes the place of this line.
    let names = hostlist::expand(&without_slots(list)).context("--hosts")?;
    each_once(names)
}

/// A file with a host, or a list of them, on each line; words behind it are not looked at.
///
/// # Errors
/// When it cannot be read, and what is wrong with it.
pub fn read_file(file: &Path) -> anyhow::Result<Vec<String>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {shown}"))?;
    let mut names = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let Some(list) = line.split_whitespace().next() else { continue };
        let expanded = hostlist::expand(&without_slots(list));
        names.extend(expanded.with_context(|| format!("{shown}, line {}", n + 1))?);
    }
    each_once(names).with_context(|| shown.to_string())
}

/// The list without the `:SLOTS` of its entries.
fn without_slots(list: &str) -> String {
    let mut kept = String::new();
    let mut rest = list;
    while let Some((before, after)) = rest.split_once(':') {
        kept += before;
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.len() == after.len() || !(rest.is_empty() || rest.starts_with(',')) {
            // No number of slots: the name is wrong, and whoever reads it says so.
            kept.push(':');
            rest = after;
        }
    }
    kept + rest
}

fn each_once(names: Vec<String>) -> anyhow::Result<Vec<String>> {
    let mut seen = std::collections::HashSet::new();
    let names: Vec<String> = names.into_iter().filter(|name| seen.insert(name.clone())).collect();
    anyhow::ensure!(!names.is_empty(), "no host is named");
    // ssh would take it for an option.
    if let Some(name) = names.iter().find(|name| name.starts_with('-') || name.contains(' ')) {
        anyhow::bail!("{name:?} is no host name");
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_files_name_hosts_in_order_and_once() {
        assert_eq!(read_list("n[1-2]:4,m:16,n1").unwrap(), ["n1", "n2", "m"]);
        assert_eq!(without_slots("a:4,b:x,c"), "a,b:x,c");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts");
        std::fs::write(&file, "# ours\nn1 slots=4\n\nn1\nn[2-3]:2 # two\n").unwrap();
        assert_eq!(read_file(&file).unwrap(), ["n1", "n2", "n3"]);
        std::fs::write(&file, "n1\nn[2\n").unwrap();
        assert!(format!("{:#}", read_file(&file).unwrap_err()).contains("line 2"));
        std::fs::write(&file, "\n").unwrap();
        assert!(read_file(&file).is_err());
        assert!(read_list("-oProxyCommand=x").is_err());
    }
}
