//! Slurm host lists: `tux[0-3,12],login1` expands to names in order, with leading zeros. Commas and
//! blanks, any number of them, separate names.

use crate::error::TopologyError;
use crate::names::Names;

/// Longest expansion accepted, in names and in bytes, so that `n[0-999999999999]` cannot exhaust
/// memory.
pub const MOST_NAMES: usize = 4_000_000;
pub const MOST_BYTES: usize = 256 << 20;
const MOST_DIGITS: usize = 20;
const MOST_GROUPS: usize = 16;

/// The size of an expanded host list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    pub names: usize,
    pub bytes: usize,
}

impl Size {
    /// The sum of both, if it is accepted.
    pub fn plus(self, other: Size) -> Result<Size, TopologyError> {
        let (names, bytes) = (self.names + other.names, self.bytes + other.bytes);
        if names > MOST_NAMES {
            return crate::refuse!("more than {MOST_NAMES} host names");
        }
        if bytes > MOST_BYTES {
            return crate::refuse!("host names of more than {MOST_BYTES} bytes in all");
        }
        Ok(Size { names, bytes })
    }
}

/// Expands a host list. Accepts several bracket groups per name (`r[0-1]n[0-3]`).
pub fn expand(text: &str) -> Result<Vec<String>, TopologyError> {
    let mut names = Vec::with_capacity(check(text)?.names);
    for_each(text, &mut |name| {
        names.push(name.to_string());
        Ok(())
    })?;
    Ok(names)
}

/// Checks whether a host list can be expanded, without doing it; returns the size.
pub fn check(text: &str) -> Result<Size, TopologyError> {
    let mut size = Size::default();
    for item in items(text) {
        size = size.plus(item_size(item?)?)?;
    }
    Ok(size)
}

/// Visits in order the names of a host list that [`check`] has accepted.
pub fn for_each(
    text: &str,
    visit: &mut dyn FnMut(&str) -> Result<(), TopologyError>,
) -> Result<(), TopologyError> {
    let mut name = String::new();
    for item in items(text) {
        visit_item(&mut name, item?, visit)?;
    }
    Ok(())
}

/// The parts of a list between commas and blanks that stand outside brackets.
fn items(text: &str) -> impl Iterator<Item = Result<&str, TopologyError>> {
    let separates = |c: u8| c == b',' || c.is_ascii_whitespace();
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c: char| c.is_ascii() && separates(c as u8));
        if rest.is_empty() {
            return None;
        }
        let mut inside = false;
        for (i, c) in rest.bytes().enumerate() {
            match c {
                b'[' if !inside => inside = true,
                b']' if inside => inside = false,
                b'[' | b']' => {
                    let c = char::from(c);
                    rest = "";
                    return Some(crate::refuse!(
                        "unbalanced `{c}` in host list `{}`",
                        shorten(text)
                    ));
                }
                c if separates(c) && !inside => {
                    let item = &rest[..i];
                    rest = &rest[i..];
                    return Some(Ok(item));
                }
                _ => {}
            }
        }
        let item = std::mem::take(&mut rest);
        if inside {
            return Some(crate::refuse!("`[` without `]` in host list `{}`", shorten(text)));
        }
        Some(Ok(item))
    })
}

/// The text before the first bracket, its content, and what follows; `None` without brackets.
fn group(item: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = item.split_once('[')?;
    let (inside, after) = rest.split_once(']')?;
    Some((before, inside, after))
}

fn item_size(item: &str) -> Result<Size, TopologyError> {
    // Of the names: their number, the bytes that all have in common, and the bytes in which they
    // differ, over all of them.
    let mut names = 1usize;
    let mut same = 0usize;
    let mut rest = item;
    let mut differing = 0f64;
    let mut groups = 0;
    while let Some((before, inside, after)) = group(rest) {
        groups += 1;
        if groups > MOST_GROUPS {
            return crate::refuse!("`{}` has more than {MOST_GROUPS} brackets", shorten(item));
        }
        let mut count = 0usize;
        let mut digits = 0usize;
        for range in ranges(inside) {
            let Range { first, last, width } = range?;
            let more = last - first + 1;
            count = count.saturating_add(more.min(usize::MAX as u64) as usize);
            if count > MOST_NAMES {
                return crate::refuse!(
                    "range `{}` has more than {MOST_NAMES} numbers",
                    shorten(&format!("{first}-{last}"))
                );
            }
            digits += more as usize * width.max(last.to_string().len());
        }
        names = names.saturating_mul(count);
        if names > MOST_NAMES {
            return crate::refuse!("`{}` names more than {MOST_NAMES} hosts", shorten(item));
        }
        differing += digits as f64 / count as f64;
        same += before.len();
        rest = after;
    }
    let each = (same + rest.len()) as f64 + differing;
    Ok(Size { names, bytes: (names as f64 * each) as usize })
}

/// Visits the names that begin with `name` and continue with the expansion of `rest`.
fn visit_item(
    name: &mut String,
    rest: &str,
    visit: &mut dyn FnMut(&str) -> Result<(), TopologyError>,
) -> Result<(), TopologyError> {
    use std::fmt::Write;
    let begin = name.len();
    let Some((before, inside, after)) = group(rest) else {
        name.push_str(rest);
        visit(name)?;
        name.truncate(begin);
        return Ok(());
    };
    name.push_str(before);
    let stem = name.len();
    for range in ranges(inside) {
        let Range { first, last, width } = range?;
        for number in first..=last {
            let _ = write!(name, "{number:0width$}");
            visit_item(name, after, visit)?;
            name.truncate(stem);
        }
    }
    name.truncate(begin);
    Ok(())
}

/// Numbers from `first` to `last`, written with at least this many digits.
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

fn ranges(text: &str) -> impl Iterator<Item = Result<Range, TopologyError>> + '_ {
    text.split(',').map(move |part| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let parse = |t: &str| match t.parse::<u64>() {
            Ok(n) if t.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
            _ => crate::refuse!(
                "`{}` in `[{}]` is not a number or a range",
                shorten(part),
                shorten(text)
            ),
        };
        let (first, last) = (parse(low)?, parse(high)?);
        if first > last {
            return crate::refuse!(
                "range `{}` runs backwards: write {last}-{first}",
                shorten(part)
            );
        }
        if low.len() > MOST_DIGITS {
            return crate::refuse!("`{}` has more than {MOST_DIGITS} digits", shorten(part));
        }
        if last - first >= MOST_NAMES as u64 {
            return crate::refuse!("range `{}` has more than {MOST_NAMES} numbers", shorten(part));
        }
        Ok(Range { first, last, width: low.len() })
    })
}

/// The beginning of a text, for an error that fits on a line.
pub(crate) fn shorten(text: &str) -> String {
    let line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect();
    if text.chars().nth(60).is_some() {
        line + "…"
    } else {
        line
    }
}

/// Reads names from a file with one host (or host list) a line; `#` starts a comment. A file of
/// hosts for mpiexec is accepted, too: what it says about a host's slots is ignored.
pub fn read_file(text: &str) -> Result<Vec<String>, TopologyError> {
    let lines = || {
        text.lines().enumerate().filter_map(|(i, line)| {
            let mut words = line.split('#').next()?.split_whitespace();
            Some((i + 1, words.next()?, words))
        })
    };
    let mut size = Size::default();
    for (line, word, mut more) in lines() {
        if let Some(word) = more.find(|word| !word.contains('=')) {
            let why = format!("`{}`: one host or host list a line", shorten(word));
            return Err(TopologyError::new(why).at_line(line));
        }
        size = check(word).and_then(|more| size.plus(more)).map_err(|e| e.at_line(line))?;
    }
    let mut names = Vec::with_capacity(size.names);
    let mut seen = Names::default();
    for (line, word, _) in lines() {
        for_each(word, &mut |name| {
            if !seen.add(name) {
                return crate::refuse!("host `{}` is listed twice", shorten(name));
            }
            names.push(name.to_string());
            Ok(())
        })
        .map_err(|e| e.at_line(line))?;
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
        assert_eq!(expand(" a,,b c[1,2],\td, ").unwrap(), ["a", "b", "c1", "c2", "d"]);
        assert!(expand("").unwrap().is_empty());
    }

    #[test]
    fn bad_lists_name_the_fault() {
        for (text, fault) in [
            ("n[0-", "without"),
            ("n[3-1]", "backwards"),
            ("n[a]", "not a number"),
            ("n]0[", "unbalanced"),
            ("n[0-99999999999]", "more than"),
            ("a[0-3999999],b[0-3999999]", "more than"),
            ("n[000000000000000000000000000000]", "digits"),
            (&"[1]".repeat(100_000), "brackets"),
        ] {
            assert!(expand(text).unwrap_err().0.contains(fault), "{text}");
        }
    }

    #[test]
    fn a_node_file_has_one_name_a_line() {
        assert_eq!(read_file("# nodes\nn1 slots=2\n\nn[2-3]\n").unwrap(), ["n1", "n2", "n3"]);
        for (text, fault) in
            [("a\na\n", "line 2: host `a` is listed twice"), ("a\nb c\n", "line 2: `c`: one host")]
        {
            assert!(read_file(text).unwrap_err().0.contains(fault), "{text}");
        }
    }

    #[test]
    fn the_size_of_a_list_is_known_without_expanding_it() {
        for text in ["tux[0-2,12],login1", "n[08-10]", "r[0-1]n[0-1]x", "a", "n[1-1000]"] {
            let names = expand(text).unwrap();
            let size = check(text).unwrap();
            let bytes = names.iter().map(String::len).sum();
            assert_eq!(size.names, names.len());
            assert!(
                (bytes..=2 * bytes).contains(&size.bytes),
                "{text}: {} for {bytes}",
                size.bytes
            );
        }
        let long = format!("{}[0-3999999]", "x".repeat(1000));
        assert!(check(&long).unwrap_err().0.contains("bytes in all"));
    }
}
