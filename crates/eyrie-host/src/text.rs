//! The bound of texts in facts. Facts come from other hosts, too: a text must never be longer.

/// Longest text in facts, bytes: longer texts are cut.
pub const TEXT_MAX: usize = 4096;

/// Cuts a text to its bound.
pub fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}
