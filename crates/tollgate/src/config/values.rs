//! Parsers of single values. Errors say what is expected.

use std::ops::RangeInclusive;

use super::document::Value;
use crate::rules::SampleRate;
use crate::time::Span;

/// A boolean.
///
/// # Errors
/// When it is anything else.
pub fn boolean(value: &Value) -> Result<bool, String> {
    match value {
        Value::Boolean(value) => Ok(*value),
        other => Err(format!("must be true or false, not {}", other.kind())),
    }
}

/// A string.
///
/// # Errors
/// When it is anything else.
pub fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        other => Err(format!("must be a string, not {}", other.kind())),
    }
}

/// An integer in a range.
pub fn integer<T>(range: RangeInclusive<T>) -> impl Fn(&Value) -> Result<T, String> + Clone
where
    T: TryFrom<i64> + PartialOrd + std::fmt::Display + Clone,
{
    move |value| {
        let out_of_range = || format!("must be between {} and {}", range.start(), range.end());
        match value {
            Value::Integer(number) => {
                T::try_from(*number).ok().filter(|number| range.contains(number)).ok_or_else(out_of_range)
            }
            Value::Float(number) if number.is_infinite() => Err(out_of_range()),
            other => Err(format!("must be an integer, not {}", other.kind())),
        }
    }
}

/// A list of values of one type.
pub fn list<T>(item: impl Fn(&Value) -> Result<T, String>) -> impl Fn(&Value) -> Result<Vec<T>, String> {
    move |value| match value {
        Value::List(items) => items.iter().map(|node| item(&node.value)).collect(),
        other => Err(format!("must be a list, not {}", other.kind())),
    }
}

/// One of a fixed set of names.
pub fn word<T: Copy>(known: &[(&'static str, T)]) -> impl Fn(&Value) -> Result<T, String> {
    move |value| {
        let text = text(value)?;
        let found = known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        found.ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            format!("{text:?} is not one of {}", names.join(", "))
        })
    }
}

/// A duration: `"90s"`, `"1h30m"`, `"500ms"`, or an integer number of seconds.
///
/// # Errors
/// When the value is not a duration, or too long.
pub fn span(value: &Value) -> Result<Span, String> {
    match value {
        Value::Integer(secs) => {
            u64::try_from(*secs).map(Span::from_secs).map_err(|_| "must not be negative".to_owned())
        }
        Value::Text(text) => parse_span(text),
        Value::Float(number) if number.is_infinite() => Err("is too long".to_owned()),
        other => Err(format!("must be a duration such as \"90s\" or \"1h\", not {}", other.kind())),
    }
}

/// Parses `90s`, `1h30m`, `500ms`, `7d`, `2w`.
///
/// # Errors
/// When the text is not a sequence of numbers with units, or too long.
pub fn parse_span(text: &str) -> Result<Span, String> {
    const UNITS: [(&str, u64); 7] = [
        ("us", 1),
        ("ms", 1_000),
        ("s", 1_000_000),
        ("m", 60_000_000),
        ("h", 3_600_000_000),
        ("d", 86_400_000_000),
        ("w", 604_800_000_000),
    ];
    let wrong = || format!("{text:?} is not a duration such as \"90s\", \"5m\", \"1h30m\" or \"7d\"");
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(wrong)?;
        rest = &rest[letters..];
        let part = number.checked_mul(*unit).and_then(|part| total.checked_add(part));
        total = part.ok_or_else(|| format!("{text:?} is too long"))?;
    }
    Ok(Span::from_micros(total))
}

/// A share from 0 to 1, or `all`.
///
/// # Errors
/// When it is another number or text.
pub fn sample_rate(value: &Value) -> Result<SampleRate, String> {
    #[expect(clippy::cast_precision_loss, reason = "only 0 and 1 are valid")]
    let share = match value {
        Value::Text(text) if text == "all" => Some(1.0),
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    share.and_then(SampleRate::new).ok_or_else(|| "must be a number from 0 to 1 or \"all\"".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_accept_all_units_and_sums() {
        for (text, micros) in [
            ("90s", 90_000_000),
            ("1h30m", 5_400_000_000),
            ("500ms", 500_000),
            ("7d", 604_800_000_000),
            ("1w", 604_800_000_000),
            ("250us", 250),
            ("0s", 0),
        ] {
            assert_eq!(parse_span(text), Ok(Span::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn malformed_durations_are_rejected() {
        for text in ["", "s", "1", "1.5s", "-1s", "1 s", "1x", "99999999999999999999s", "NaN", "1h-30m", "1S"]
        {
            assert!(parse_span(text).is_err(), "{text:?}");
        }
        assert!(parse_span("600000000000000000s").unwrap_err().contains("too long"));
    }

    #[test]
    fn integers_are_range_checked() {
        let parse = integer(0..=100_u32);
        assert_eq!(parse(&Value::Integer(100)), Ok(100));
        for wrong in
            [Value::Integer(-1), Value::Integer(101), Value::Integer(1 << 40), Value::Float(f64::INFINITY)]
        {
            assert_eq!(parse(&wrong), Err("must be between 0 and 100".to_owned()));
        }
        assert_eq!(parse(&Value::Float(1.5)), Err("must be an integer, not a fraction".to_owned()));
        assert_eq!(parse(&Value::Text("5".to_owned())), Err("must be an integer, not a string".to_owned()));
    }
}
