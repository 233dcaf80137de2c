//! Pages of a list, and the cursors between them.
//!
//! A cursor is the kind and id of the last item on the page, in base64url so that clients treat it as opaque. It is not secret, and
//! it need not name an item that exists: the list continues after it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollgate_stores::sql::{ItemId, ItemKind};

use crate::http::error::{ApiError, Code};

/// Items per page if the query does not say.
const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;
/// Longer than any id in base64url.
const CURSOR_BYTES_MAX: usize = 4_096;

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) limit: u32,
    pub(crate) after: Option<ItemId>,
}

impl Page {
    /// From `limit` and `after` of a query.
    pub(crate) fn parse(kind: ItemKind, limit: Option<&str>, after: Option<&str>) -> Result<Self, ApiError> {
        let after = after.map(|text| parse_cursor(&[kind], text)).transpose()?;
        Ok(Page { limit: parse_limit(limit)?, after })
    }

    /// Cuts off what is beyond the page. Returns the items, and the cursor of the next page if there is one.
    pub(crate) fn cut<T>(&self, mut items: Vec<(ItemId, T)>) -> (Vec<T>, Option<String>) {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let has_more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| has_more).map(|(id, _)| cursor(id));
        (items.into_iter().map(|(_, item)| item).collect(), next)
    }
}

/// The `limit` of a page.
pub(crate) fn parse_limit(text: Option<&str>) -> Result<u32, ApiError> {
    text.map_or(Ok(LIMIT_DEFAULT), |text| parse_limit_to(LIMIT_MAX, text))
}

/// A `limit` of 1 to `max`.
pub(crate) fn parse_limit_to(max: u32, text: &str) -> Result<u32, ApiError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let limit = if is_number { text.parse().ok() } else { None };
    // Not `ApiError::invalid`: the code INVALID_LIMIT is for rate limits.
    let reason = || format!("must be a whole number from 1 to {max}");
    let limit = limit.filter(|limit| (1..=max).contains(limit));
    limit.ok_or_else(|| ApiError::field(Code::InvalidInput, "limit", reason()))
}

/// The cursor that continues after an item.
pub(crate) fn cursor(id: &ItemId) -> String {
    let parts = (id.kind().as_str(), id.tenant(), id.to_string());
    // Serializing strings does not fail.
    URL_SAFE_NO_PAD.encode(serde_json::to_string(&parts).unwrap_or_default())
}

/// The item that the cursor of a list of these kinds names.
pub(crate) fn parse_cursor(kinds: &[ItemKind], text: &str) -> Result<ItemId, ApiError> {
    let bytes = if text.len() <= CURSOR_BYTES_MAX { URL_SAFE_NO_PAD.decode(text).ok() } else { None };
    let decoded = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let id = decoded.as_deref().and_then(|decoded| {
        let (kind, tenant, name): (String, Option<String>, String) = serde_json::from_str(decoded).ok()?;
        let kind = kinds.iter().find(|known| known.as_str() == kind)?;
        let id = ItemId::parse(*kind, tenant.as_deref(), &name).filter(|id| id.to_string() == name)?;
        let is_text = |text: &str| !text.is_empty() && !text.contains('\0');
        (is_text(&name) && tenant.as_deref().is_none_or(is_text)).then_some(id)
    });
    id.ok_or_else(|| ApiError::field(Code::InvalidInput, "after", "must be `next` of an earlier response"))
}

#[cfg(test)]
mod tests {
    use tollgate_stores::sql::BlockKind;

    use super::*;

    #[test]
    fn cursor_names_its_item() {
        for id in [
            ItemId::Rule("a rule, with everything: \u{e9}\u{1f600}".to_owned()),
            ItemId::Key("a".to_owned()),
            ItemId::Quota { tenant: Some("a/\"b".to_owned()), user: "[\"x\"]".to_owned() },
            ItemId::Block { tenant: None, kind: BlockKind::Ip, subject: "2001:db8::/32".to_owned() },
            ItemId::Limit { tenant: None, user: "a\"b".to_owned(), endpoint: "/x".to_owned() },
        ] {
            assert_eq!(parse_cursor(&[id.kind()], &cursor(&id)).unwrap(), id);
        }
    }

    #[test]
    fn invalid_cursors_are_rejected() {
        let long = "A".repeat(CURSOR_BYTES_MAX + 4);
        for text in ["", "=", "YQ==", "YR", "a", "!!!!", "AA", "' OR 1=1 --", "gICA", &long] {
            assert!(parse_cursor(&[ItemKind::Rule], text).is_err(), "{text}");
        }
        for (kind, text) in [
            (ItemKind::Block, r#"["block",null,"planet:earth"]"#),
            (ItemKind::Limit, r#"["user_endpoint_limit",null,"[\"a\"]"]"#),
            (ItemKind::Quota, r#"["quota","","bob"]"#),
            (ItemKind::Rule, r#"["rule","acme","bob"]"#),
        ] {
            assert!(parse_cursor(&[kind], &URL_SAFE_NO_PAD.encode(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn page_limit_is_1_to_1000() {
        assert_eq!(parse_limit(None).unwrap(), 100);
        assert_eq!(parse_limit(Some("1000")).unwrap(), 1_000);
        for text in ["0", "1001", "-1", "+5", "1.5", "", " 5", "99999999999999999999", "a"] {
            assert_eq!(parse_limit(Some(text)).unwrap_err().code(), Code::InvalidInput, "{text}");
        }
    }
}
