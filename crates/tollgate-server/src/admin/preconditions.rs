//! What must be so for a request to be served: `If-Match` and `If-None-Match`.
//!
//! The tag of an item is the version of the configuration that changed it last. It is compared when the change is made, in the
//! same transaction: of two people who change the same version, the second is told.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tollgate_stores::sql::Precondition;

use crate::http::error::{ApiError, Code};

/// What a write expects to find.
pub(crate) fn expected(headers: &HeaderMap) -> Result<Precondition, ApiError> {
    let (if_match, if_none_match) = (one(headers, &header::IF_MATCH)?, one(headers, &header::IF_NONE_MATCH)?);
    match (if_match, if_none_match) {
        (None, None) => Ok(Precondition::None),
        (Some("*"), None) => Ok(Precondition::Present),
        (Some(tag), None) => version(tag).map(Precondition::Version),
        (None, Some("*")) => Ok(Precondition::Absent),
        (None, Some(_)) => {
            Err(malformed("if-none-match", "must be * for a change: it must not be there yet"))
        }
        (Some(_), Some(_)) => Err(malformed("if-none-match", "cannot be together with If-Match")),
    }
}

/// The version of the whole configuration that a write expects, if it does.
pub(crate) fn expected_version(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    if one(headers, &header::IF_NONE_MATCH)?.is_some() {
        return Err(malformed("if-none-match", "has no meaning here"));
    }
    one(headers, &header::IF_MATCH)?.filter(|tag| *tag != "*").map(version).transpose()
}

/// Whether whoever asks has this version already.
pub(crate) fn is_known(headers: &HeaderMap, version: u64) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let tag = format!("\"{version}\"");
    known.flat_map(|tags| tags.split(',')).any(|known| {
        let known = known.trim();
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    })
}

/// The tag of a version.
pub(crate) fn tag(version: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// What is there is not what the request expects.
pub(crate) fn failed(message: String) -> ApiError {
    ApiError::new(Code::PreconditionFailed, message)
}

/// The version of a tag. A tag that is well-formed and none of ours differs from all of them.
fn version(tag: &str) -> Result<u64, ApiError> {
    let strong = tag.strip_prefix("W/").unwrap_or(tag);
    let inner = strong.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let inner = inner.filter(|tag| !tag.contains(['"', ',']));
    let inner = inner.ok_or_else(|| malformed("if-match", "must be one tag as ETag tells it, or *"))?;
    let digits = !inner.is_empty() && inner.bytes().all(|byte| byte.is_ascii_digit());
    // A weak tag says that something like it will do, which is no ground to replace what is there.
    let ours = digits && strong == tag && (inner == "0" || !inner.starts_with('0'));
    let parsed = if ours { inner.parse().ok() } else { None };
    parsed.ok_or_else(|| failed(format!("If-Match is {tag}, which is no version of it")))
}

fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let field = if *name == header::IF_MATCH { "if-match" } else { "if-none-match" };
    if values.next().is_some() {
        return Err(malformed(field, "is given twice"));
    }
    let text = first.to_str().map_err(|_| malformed(field, "must be visible ASCII"))?;
    Ok(Some(text.trim()))
}

fn malformed(field: &'static str, reason: &'static str) -> ApiError {
    ApiError::field(Code::InvalidInput, field, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_tag_a_star_and_the_absence_of_both_are_read() {
        assert_eq!(expected(&headers(&[])).unwrap(), Precondition::None);
        assert_eq!(expected(&headers(&[("if-match", "*")])).unwrap(), Precondition::Present);
        assert_eq!(expected(&headers(&[("if-match", " \"17\" ")])).unwrap(), Precondition::Version(17));
        assert_eq!(expected(&headers(&[("if-none-match", "*")])).unwrap(), Precondition::Absent);
    }

    #[test]
    fn a_tag_that_is_none_of_ours_matches_nothing() {
        for tag in ["\"abc\"", "W/\"17\"", "\"\"", "\"017\"", "\"99999999999999999999999\"", "\"-1\""] {
            let error = expected(&headers(&[("if-match", tag)])).unwrap_err();
            assert_eq!(error.code(), Code::PreconditionFailed, "{tag}");
        }
    }

    #[test]
    fn what_is_no_tag_is_refused() {
        for (name, value) in [
            ("if-match", "17"),
            ("if-match", "\"1\", \"2\""),
            ("if-match", "\"1"),
            ("if-match", ""),
            ("if-none-match", "\"1\""),
        ] {
            assert_eq!(
                expected(&headers(&[(name, value)])).unwrap_err().code(),
                Code::InvalidInput,
                "{value}"
            );
        }
        let both = headers(&[("if-match", "*"), ("if-none-match", "*")]);
        assert_eq!(expected(&both).unwrap_err().code(), Code::InvalidInput);
    }

    #[test]
    fn a_reader_that_has_the_version_is_told_so() {
        for known in ["\"7\"", "W/\"7\"", "\"6\", \"7\"", "*"] {
            assert!(is_known(&headers(&[("if-none-match", known)]), 7), "{known}");
        }
        assert!(!is_known(&headers(&[("if-none-match", "\"77\"")]), 7));
        assert!(!is_known(&headers(&[]), 7));
    }
}
