//! When a key or block expires: after a duration (`90d`) or at a time (RFC 3339).

use jiff::Timestamp;
use tollgate::config::values::parse_span;

/// An expiry as written. It is sent unparsed, because the server's clock decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    After(String),
    At(String),
}

impl Expiry {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Expiry::After(text) | Expiry::At(text) => text,
        }
    }
}

/// Parses the value of a flag.
pub(crate) fn parse_expiry(text: &str) -> Result<Expiry, String> {
    let text = text.trim();
    if text.parse::<Timestamp>().is_ok() {
        return Ok(Expiry::At(text.to_owned()));
    }
    match parse_duration(text) {
        Ok(duration) => Ok(Expiry::After(duration)),
        Err(_) => {
            Err("must be a duration such as 24h or 90d, or a time such as 2027-01-31T12:00:00Z".to_owned())
        }
    }
}

/// Checks the duration in the value of a flag and returns it as written.
pub(crate) fn parse_duration(text: &str) -> Result<String, String> {
    parse_span(text).map(|_| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_a_duration_or_a_time() {
        assert_eq!(parse_expiry("90d"), Ok(Expiry::After("90d".to_owned())));
        assert_eq!(parse_expiry(" 1h30m "), Ok(Expiry::After("1h30m".to_owned())));
        for at in ["2027-01-31T12:00:00Z", "2027-01-31T12:00:00.5+02:00", "2027-01-31 12:00:00Z"] {
            assert_eq!(parse_expiry(at), Ok(Expiry::At(at.to_owned())));
        }
        for text in ["", "90", "tomorrow", "-1d", "2027-01-31", "2027-01-31T12:00:00", "2027-13-01T00:00:00Z"]
        {
            assert!(parse_expiry(text).is_err(), "{text:?}");
        }
    }
}
