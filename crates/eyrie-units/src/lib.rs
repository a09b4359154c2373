//! How users write durations, sizes and shares, and how these are shown to them: one grammar for
//! every option, file and message. Pure; must not depend on anything else of Eyrie.
//!
//! To read: [`duration`], [`positive_duration`], [`size`], [`share`]. To show: [`time`] (with
//! [`nanoseconds`]) and [`bytes`]; [`written`] writes a value as an option takes it. [`plain`]
//! shows names from outside.

pub mod plain;

use std::time::Duration;

/// Longest duration that is accepted, in nanoseconds: about a century.
const LONGEST_NS: f64 = 3.2e18;
/// Largest size that is accepted, in bytes.
const LARGEST_BYTES: f64 = (1u64 << 50) as f64;

/// Reads a duration such as 500ms, 2s, 50us, 1.5min, 1h. A number without a unit is refused,
/// because such numbers are easily mistaken.
///
/// # Errors
/// What is wrong, and what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let Ok(value) = number.parse::<f64>() else {
        return Err(format!("{text:?} is no time: write for example 500ms"));
    };
    if value < 0.0 {
        return Err(format!("{text} is no time: a time is at least 0s"));
    }
    let unit_ns = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        "d" => 86_400e9,
        "" => return Err(format!("{text} of what? A time needs a unit: {text}ms, {text}s")),
        other => return Err(format!("unknown unit {other:?}: use ns, us, ms, s, min, h or d")),
    };
    match value * unit_ns {
        ns if ns < LONGEST_NS => Ok(Duration::from_nanos(ns.round() as u64)),
        _ => Err(format!("{text} is out of range: at most a century")),
    }
}

/// Reads a duration that is longer than 0.
///
/// # Errors
/// What is wrong, and what to write.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("{text} is too short: a time longer than 0 is needed")),
        time => Ok(time),
    }
}

/// Reads a size in bytes such as 4096, 64KiB, 1.5MB.
///
/// # Errors
/// What is wrong, and what to write.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let unit_bytes = match unit {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => f64::from(1u32 << 10),
        "MiB" => f64::from(1u32 << 20),
        "GiB" => f64::from(1u32 << 30),
        other => {
            return Err(format!("unknown unit {other:?}: use B, kB, MB, GB, KiB, MiB or GiB"));
        }
    };
    match number.parse::<f64>() {
        Ok(n) if (0.0..=LARGEST_BYTES).contains(&(n * unit_bytes)) => {
            Ok((n * unit_bytes).round() as u64)
        }
        Ok(n) if n >= 0.0 => Err(format!("{text} is out of range: at most 2^50 bytes")),
        _ => Err(format!("{text:?} is no size: write for example 16MiB")),
    }
}

/// Reads a share such as 0.05%, as a fraction.
///
/// # Errors
/// What is wrong, and what to write.
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

/// Splits a text into number and unit.
fn split(text: &str) -> (&str, &str) {
    let part_of_number = |(at, c): (usize, char)| match c {
        '-' | '+' => at == 0,
        _ => c.is_ascii_digit() || c == '.',
    };
    let end = text.char_indices().find(|&c| !part_of_number(c)).map_or(text.len(), |(at, _)| at);
    (&text[..end], text[end..].trim())
}

/// A duration as an option takes it: 2.5s, 200ms. [`duration`] reads it back.
pub fn written(time: Duration) -> String {
    format!("{time:?}")
}

/// A number with a noun: 1 rank, 2 ranks.
pub fn counted(n: impl Into<u64>, one: &str) -> String {
    match n.into() {
        1 => format!("1 {one}"),
        n => format!("{n} {one}s"),
    }
}

/// A time for people: 6.02 ms, 14.2 s. Whole values have no decimals: 40 ms, 30 min, 24 h.
pub fn time(time: Duration) -> String {
    match time.as_secs() {
        s if s >= 7200 && s % 3600 == 0 && time.subsec_nanos() == 0 => format!("{} h", s / 3600),
        s if s >= 120 && s % 60 == 0 && time.subsec_nanos() == 0 => format!("{} min", s / 60),
        _ => nanoseconds(time.as_nanos() as f64),
    }
}

/// A time in nanoseconds for people, which may be negative or a fraction.
pub fn nanoseconds(ns: f64) -> String {
    // What would be rounded to 1000 of a unit is shown as 1 of the next.
    match ns.abs() {
        a if a >= 999.5e6 => format!("{} s", digits(ns / 1e9)),
        a if a >= 999.5e3 => format!("{} ms", digits(ns / 1e6)),
        a if a >= 999.5 => format!("{} µs", digits(ns / 1e3)),
        // Zero is not shown as -0.
        _ => format!("{:.0} ns", ns.round() + 0.0),
    }
}

/// A number: without decimals if it is whole, otherwise with three significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        a if a >= 99.95 || value.fract() == 0.0 => format!("{value:.0}"),
        a if a >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A size for people, in powers of 1024: 1.5 KiB, 12 MiB. Whole values have no decimals: 8 B, 4
/// MiB.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 9.95 && value.fract() != 0.0 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_is_no_plural() {
        let words = [0u64, 1, 2].map(|n| counted(n, "rank"));
        assert_eq!(words, ["0 ranks", "1 rank", "2 ranks"]);
    }

    #[test]
    fn times_carry_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("2m"), duration("2min"));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert!(duration("500").unwrap_err().contains("500ms"));
        assert!(duration("5 weeks").unwrap_err().contains("unknown unit"));
        assert!(duration("-1").unwrap_err().contains("at least 0"));
        for wrong in ["", "s", "-1s", "0s", "1e99h", "..s"] {
            assert!(positive_duration(wrong).is_err(), "{wrong}");
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
    fn sizes_are_read_with_their_units() {
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("256MiB"), Ok(256 << 20));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("1.5kB"), Ok(1500));
        for wrong in ["1XB", "MiB", "-1", "", "99999999999GiB", "64K"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_shown_with_three_digits() {
        assert_eq!(
            [0.0, -0.0, -0.3, 999.0, 1234.0, 25_600.0, 3.1e9].map(nanoseconds),
            ["0 ns", "0 ns", "0 ns", "999 ns", "1.23 µs", "25.6 µs", "3.10 s"]
        );
        assert_eq!([4e7, -1.5e6, 999_999.0].map(nanoseconds), ["40 ms", "-1.50 ms", "1.00 ms"]);
        assert_eq!(time(Duration::from_millis(14_249)), "14.2 s");
    }

    #[test]
    fn times_that_were_set_are_shown_as_they_are() {
        let time = |text| time(duration(text).unwrap());
        assert_eq!(["24h", "30min", "90s", "0.3s"].map(time), ["24 h", "30 min", "90 s", "300 ms"]);
    }

    #[test]
    fn sizes_are_shown_in_powers_of_1024() {
        assert_eq!(
            [0, 1023, 1536, 3_000_000_000].map(bytes),
            ["0 B", "1.0 KiB", "1.5 KiB", "2.8 GiB"]
        );
        assert_eq!([8, 1 << 30, 12_900_000].map(bytes), ["8 B", "1 GiB", "12 MiB"]);
        assert_eq!([8, 1 << 10, 4 << 20].map(bytes), ["8 B", "1 KiB", "4 MiB"]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ns in 0..1u64 << 48) {
            let time = Duration::from_nanos(ns);
            prop_assert_eq!(duration(&written(time)), Ok(time));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = (duration(&text), size(&text), share(&text));
        }
    }
}
