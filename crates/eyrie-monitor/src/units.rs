//! Times and shares as users write them. A number without a unit is an error: other monitors' users have lost days to it.

use std::time::Duration;

/// A time such as 500ms, 2s, 50us, 1min, 1h.
///
/// # Errors
/// Says what is wrong, and what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let value: f64 =
        number.parse().map_err(|_| format!("{text:?} is no time: write for example 500ms"))?;
    let ns = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "h" => 3600e9,
        "" => return Err(format!("{text} of what? A time needs a unit: {text}ms, {text}s")),
        other => return Err(format!("unknown unit {other:?}: use ns, us, ms, s, min or h")),
    };
    let ns = value * ns;
    if !(1.0..1e18).contains(&ns) {
        return Err(format!("{text} is out of range"));
    }
    Ok(Duration::from_nanos(ns.round() as u64))
}

/// A share of one core such as 0.05%.
///
/// # Errors
/// Says what is wrong, and what to write.
pub fn share(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is no share of a core: write for example 0.05%");
    let number = text
        .strip_suffix('%')
        .ok_or_else(|| format!("{text} of what? A share needs its sign: {text}%"))?;
    let percent: f64 = number.trim().parse().map_err(|_| wrong())?;
    if !(percent > 0.0 && percent <= 100.0) {
        return Err(format!(
            "{text} is impossible: a share of a core lies above 0% and is at most 100%"
        ));
    }
    Ok(percent / 100.0)
}

fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    (&text[..at], text[at..].trim())
}

/// A time for people, with three digits that count.
pub fn shown(ns: f64) -> String {
    let digits = |v: f64| match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    };
    match ns.abs() {
        a if a >= 1e9 => format!("{} s", digits(ns / 1e9)),
        a if a >= 1e6 => format!("{} ms", digits(ns / 1e6)),
        a if a >= 1e3 => format!("{} µs", digits(ns / 1e3)),
        _ => format!("{ns:.0} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_carry_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert!(duration("500").unwrap_err().contains("500ms"));
        assert!(duration("5 weeks").unwrap_err().contains("unknown unit"));
        for wrong in ["", "s", "-1s", "0s", "1e99h", "..s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_carry_their_sign() {
        assert!((share("0.05%").unwrap() - 0.0005).abs() < 1e-12);
        assert!(share("0.05").unwrap_err().contains("0.05%"));
        for wrong in ["0%", "-1%", "101%", "x%", "NaN%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_shown_with_three_digits() {
        assert_eq!(
            [0.0, 999.0, 1234.0, 25_600.0, 3.1e9].map(shown),
            ["0 ns", "999 ns", "1.23 µs", "25.6 µs", "3.10 s"]
        );
    }
}
