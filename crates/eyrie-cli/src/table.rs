//! Tables in text.

use eyrie_units::plain;

/// Columns aligned by their widest cell, the first to the left, the others to the right.
pub fn align(rows: &[Vec<String>]) -> String {
    // What is in a cell ends no line.
    let plain = |row: &Vec<String>| row.iter().map(|cell| plain::line(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(plain).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().enumerate().map(|(c, s)| match c {
            0 => format!("{s:<w$}", w = widths[c]),
            _ if c + 1 == columns => s.clone(),
            _ => format!("{s:>w$}", w = widths[c]),
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out += "\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::align;

    #[test]
    fn columns_line_up() {
        let row = |a: &str, b: &str, c: &str| [a, b, c].map(String::from).to_vec();
        assert_eq!(
            align(&[row("m", "load", ""), row("search", "1", "x")]),
            "m       load\nsearch     1  x\n"
        );
    }
}
