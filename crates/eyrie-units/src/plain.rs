//! Text from outside on a terminal. Names of processes, files and hosts may contain anything, and
//! must neither end a line nor move the cursor. Such characters are shown as Rust writes them in a
//! string.

use std::borrow::Cow;

/// Whether a terminal would not show this character as it is: control characters, and characters
/// that change the direction of the text after them or begin a new line.
fn disturbs(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

fn without(text: &str, disturbs: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&disturbs) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if disturbs(c) {
            shown.extend(c.escape_debug());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// A name or sentence, to be shown as part of a line.
pub fn line(text: &str) -> Cow<'_, str> {
    without(text, disturbs)
}

/// Text of several lines, which may contain tabs.
pub fn lines(text: &str) -> Cow<'_, str> {
    without(text, |c| disturbs(c) && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_disturb_a_terminal() {
        for (name, shown) in [
            ("solver é (a) \\ \"x\"", "solver é (a) \\ \"x\""),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("new\nline\ttab\r\0", "new\\nline\\ttab\\r\\0"),
            ("\u{9b}2J\u{202e}cod", "\\u{9b}2J\\u{202e}cod"),
        ] {
            assert_eq!(line(name), shown);
        }
        assert_eq!(lines("a\tb\nc\u{1b}"), "a\tb\nc\\u{1b}");
    }
}
