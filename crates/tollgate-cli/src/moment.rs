//! When something ends, as people write it: after a length of time (`90d`), or at an instant (RFC 3339).

use jiff::Timestamp;
use serde_json::Value;
use tollgate::config::values::parse_span;

/// When something ends. It is sent as it was written: the server's clock decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// So long from now.
    In(String),
    /// At an instant.
    At(String),
}

/// For clap.
pub(crate) fn moment(text: &str) -> Result<Moment, String> {
    let text = text.trim();
    if text.parse::<Timestamp>().is_ok() {
        return Ok(Moment::At(text.to_owned()));
    }
    match span(text) {
        Ok(span) => Ok(Moment::In(span)),
        Err(_) => Err("must be a length of time such as 24h or 90d, or an instant such as \
                       2027-01-31T12:00:00Z"
            .to_owned()),
    }
}

/// For clap: a length of time, checked and kept as it is written.
pub(crate) fn span(text: &str) -> Result<String, String> {
    parse_span(text).map(|_| text.trim().to_owned())
}

/// An instant of an answer as people read it: in RFC 3339, to the second. What is no instant stays as it is.
pub(crate) fn told(at: &Value) -> String {
    match at {
        Value::String(text) => {
            let seconds = text.parse::<Timestamp>().map(Timestamp::as_second);
            let instant = seconds.and_then(Timestamp::from_second);
            instant.map_or_else(|_| text.clone(), |instant| instant.to_string())
        }
        Value::Number(secs) => {
            let instant = secs.as_i64().and_then(|secs| Timestamp::from_second(secs).ok());
            instant.map_or_else(|| secs.to_string(), |instant| instant.to_string())
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_told_to_the_second() {
        let told = |at: Value| told(&at);
        assert_eq!(told("2027-01-31T12:00:00.123456Z".into()), "2027-01-31T12:00:00Z");
        assert_eq!(told(1.into()), "1970-01-01T00:00:01Z");
        assert_eq!((told("soon".into()), told(Value::Null)), ("soon".to_owned(), String::new()));
    }

    #[test]
    fn an_end_is_a_length_of_time_or_an_instant() {
        assert_eq!(moment("90d"), Ok(Moment::In("90d".to_owned())));
        assert_eq!(moment(" 1h30m "), Ok(Moment::In("1h30m".to_owned())));
        for at in ["2027-01-31T12:00:00Z", "2027-01-31T12:00:00.5+02:00", "2027-01-31 12:00:00Z"] {
            assert_eq!(moment(at), Ok(Moment::At(at.to_owned())));
        }
        for text in ["", "90", "tomorrow", "-1d", "2027-01-31", "2027-01-31T12:00:00", "2027-13-01T00:00:00Z"]
        {
            assert!(moment(text).is_err(), "{text:?}");
        }
    }
}
