//! Slurm host lists: `tux[0-3,12],login1` expands to names in order, leading zeros kept.

use crate::network::TopologyError;

/// Longest expansion accepted, so that `n[0-999999999999]` cannot exhaust memory.
pub const MOST_NAMES: usize = 4_000_000;

/// Expands a host list. Accepts several bracket groups per name (`r[0-1]n[0-3]`).
pub fn expand(text: &str) -> Result<Vec<String>, TopologyError> {
    let mut names = Vec::new();
    for item in split_top_level(text)? {
        if item.is_empty() {
            return crate::refuse!("empty name in host list `{}`", shorten(text));
        }
        expand_item(item, &mut names)?;
    }
    Ok(names)
}

fn split_top_level(text: &str) -> Result<Vec<&str>, TopologyError> {
    let (mut depth, mut start, mut items) = (0, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '[' if depth == 0 => depth = 1,
            ']' if depth == 1 => depth = 0,
            '[' | ']' => {
                return crate::refuse!("unbalanced `{c}` in host list `{}`", shorten(text))
            }
            ',' if depth == 0 => {
                items.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    if depth != 0 {
        return crate::refuse!("`[` without `]` in host list `{}`", shorten(text));
    }
    items.push(text[start..].trim());
    Ok(items)
}

fn expand_item(item: &str, names: &mut Vec<String>) -> Result<(), TopologyError> {
    let mut heads = vec![String::new()];
    let mut rest = item;
    while let Some(open) = rest.find('[') {
        let Some(close) = rest[open..].find(']').map(|c| c + open) else {
            return crate::refuse!("`[` without `]` in `{}`", shorten(item));
        };
        let numbers = ranges(&rest[open + 1..close])?;
        if heads.len().saturating_mul(numbers.len()) + names.len() > MOST_NAMES {
            return crate::refuse!("`{}` names more than {MOST_NAMES} hosts", shorten(item));
        }
        heads = heads
            .iter()
            .flat_map(|head| numbers.iter().map(move |n| format!("{head}{}{n}", &rest[..open])))
            .collect();
        rest = &rest[close + 1..];
    }
    names.extend(heads.into_iter().map(|head| head + rest));
    Ok(())
}

fn ranges(text: &str) -> Result<Vec<String>, TopologyError> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let width = low.len();
        let parse = |t: &str| match t.parse::<u64>() {
            Ok(n) if t.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
            _ => crate::refuse!("`{part}` in `[{}]` is not a number or a range", shorten(text)),
        };
        let (a, b) = (parse(low)?, parse(high)?);
        if a > b {
            return crate::refuse!("range `{part}` runs backwards: write {b}-{a}");
        }
        if b - a >= MOST_NAMES as u64 || numbers.len() as u64 + (b - a) >= MOST_NAMES as u64 {
            return crate::refuse!("range `{part}` has more than {MOST_NAMES} numbers");
        }
        numbers.extend((a..=b).map(|n| format!("{n:0width$}")));
    }
    Ok(numbers)
}

/// The start of a text, for an error that fits on a line.
pub(crate) fn shorten(text: &str) -> String {
    let line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect();
    if text.chars().count() > 60 {
        line + "…"
    } else {
        line
    }
}

/// Names from a file with one host (or host list) a line; `#` starts a comment.
pub fn read_file(text: &str) -> Result<Vec<String>, TopologyError> {
    let mut names = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        for word in line.split_whitespace().take(1) {
            names.extend(expand(word)?);
        }
        if names.len() > MOST_NAMES {
            return crate::refuse!("more than {MOST_NAMES} host names");
        }
    }
    let mut seen = std::collections::HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(name.as_str())) {
        return crate::refuse!("host `{}` is listed twice", shorten(twice));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lists_and_leading_zeros_expand_in_order() {
        assert_eq!(
            expand("tux[0-2,12],login1").unwrap(),
            ["tux0", "tux1", "tux2", "tux12", "login1"]
        );
        assert_eq!(expand("n[08-10]").unwrap(), ["n08", "n09", "n10"]);
        assert_eq!(expand("r[0-1]n[0-1]x").unwrap(), ["r0n0x", "r0n1x", "r1n0x", "r1n1x"]);
    }

    #[test]
    fn bad_lists_name_the_fault() {
        for (text, fault) in [
            ("n[0-", "without"),
            ("n[3-1]", "backwards"),
            ("n[a]", "not a number"),
            ("n]0[", "unbalanced"),
            ("a,,b", "empty name"),
            ("n[0-99999999999]", "more than"),
        ] {
            assert!(expand(text).unwrap_err().0.contains(fault), "{text}");
        }
    }

    #[test]
    fn a_node_file_has_one_name_a_line() {
        assert_eq!(read_file("# nodes\nn1 slots=2\n\nn[2-3]\n").unwrap(), ["n1", "n2", "n3"]);
        assert!(read_file("a\na\n").unwrap_err().0.contains("twice"));
    }
}
