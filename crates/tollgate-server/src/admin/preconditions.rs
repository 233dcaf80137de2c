//! `ETag`, `If-Match` and `If-None-Match`.
//!
//! The entity tag of an item is the configuration version of its last change. It is compared in the transaction of the
//! change: of two writes to the same version, the second fails with 412.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tollgate_stores::sql::Precondition;

use crate::http::error::{ApiError, Code};

/// The precondition of a write.
pub(crate) fn parse(headers: &HeaderMap) -> Result<Precondition, ApiError> {
    let (if_match, if_none_match) = (one(headers, &header::IF_MATCH)?, one(headers, &header::IF_NONE_MATCH)?);
    match (if_match, if_none_match) {
        (None, None) => Ok(Precondition::None),
        (Some("*"), None) => Ok(Precondition::Present),
        (Some(tag), None) => version(tag).map(Precondition::Version),
        (None, Some("*")) => Ok(Precondition::Absent),
        (None, Some(_)) => Err(malformed("if-none-match", "must be * for a change")),
        (Some(_), Some(_)) => Err(malformed("if-none-match", "cannot be combined with If-Match")),
    }
}

/// The configuration version in `If-Match`, for changes of many items.
pub(crate) fn parse_version(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    if one(headers, &header::IF_NONE_MATCH)?.is_some() {
        return Err(malformed("if-none-match", "is not supported here"));
    }
    one(headers, &header::IF_MATCH)?.filter(|tag| *tag != "*").map(version).transpose()
}

/// Whether `If-None-Match` contains this version: the client has it already.
pub(crate) fn is_unchanged(headers: &HeaderMap, version: u64) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let tag = format!("\"{version}\"");
    known.flat_map(|tags| tags.split(',')).any(|known| {
        let known = known.trim();
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    })
}

/// The entity tag of a version.
pub(crate) fn etag(version: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// The 412 error.
pub(crate) fn failed(message: String) -> ApiError {
    ApiError::new(Code::PreconditionFailed, message)
}

/// The version of an entity tag. A well-formed tag that tollgate did not issue matches no version.
fn version(tag: &str) -> Result<u64, ApiError> {
    let opaque = tag.strip_prefix("W/").unwrap_or(tag);
    let inner = opaque.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let inner = inner.filter(|tag| !tag.contains(['"', ',']));
    let inner =
        inner.ok_or_else(|| malformed("if-match", "must be one entity tag from an ETag header, or *"))?;
    // `If-Match` needs strong comparison: a weak tag never matches (RFC 9110, 13.1.1).
    let version = inner.parse().ok().filter(|version: &u64| format!("\"{version}\"") == tag);
    version.ok_or_else(|| failed(format!("If-Match {tag} is not a version of this item")))
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
    fn preconditions_are_parsed() {
        assert_eq!(parse(&headers(&[])).unwrap(), Precondition::None);
        assert_eq!(parse(&headers(&[("if-match", "*")])).unwrap(), Precondition::Present);
        assert_eq!(parse(&headers(&[("if-match", " \"17\" ")])).unwrap(), Precondition::Version(17));
        assert_eq!(parse(&headers(&[("if-none-match", "*")])).unwrap(), Precondition::Absent);
    }

    #[test]
    fn unknown_tag_matches_no_version() {
        for tag in ["\"abc\"", "W/\"17\"", "\"\"", "\"017\"", "\"99999999999999999999999\"", "\"-1\""] {
            let error = parse(&headers(&[("if-match", tag)])).unwrap_err();
            assert_eq!(error.code(), Code::PreconditionFailed, "{tag}");
        }
    }

    #[test]
    fn malformed_tags_are_rejected() {
        for (name, value) in [
            ("if-match", "17"),
            ("if-match", "\"1\", \"2\""),
            ("if-match", "\"1"),
            ("if-match", ""),
            ("if-none-match", "\"1\""),
        ] {
            assert_eq!(parse(&headers(&[(name, value)])).unwrap_err().code(), Code::InvalidInput, "{value}");
        }
        let both = headers(&[("if-match", "*"), ("if-none-match", "*")]);
        assert_eq!(parse(&both).unwrap_err().code(), Code::InvalidInput);
    }

    #[test]
    fn if_none_match_recognizes_the_version() {
        for known in ["\"7\"", "W/\"7\"", "\"6\", \"7\"", "*"] {
            assert!(is_unchanged(&headers(&[("if-none-match", known)]), 7), "{known}");
        }
        assert!(!is_unchanged(&headers(&[("if-none-match", "\"77\"")]), 7));
        assert!(!is_unchanged(&headers(&[]), 7));
    }
}
