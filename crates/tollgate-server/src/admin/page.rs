//! Pages of a list: how many, and after which item.
//!
//! A cursor is the id of the last item of the page before, in base64url so that nobody takes it apart. It is no secret and is
//! trusted with nothing: whatever it names, the list goes on behind that.

use std::fmt::Write as _;

use tollgate_stores::sql::{ItemId, ItemKind};

use crate::http::error::{ApiError, Code};

/// As many items as a page has, unless it is asked for another number.
const LIMIT_DEFAULT: u32 = 100;
/// The most items of a page.
pub(crate) const LIMIT_MAX: u32 = 1_000;
/// No id is longer, and so no cursor.
const CURSOR_BYTES_MAX: usize = 4_096;

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) limit: u32,
    pub(crate) after: Option<ItemId>,
}

impl Page {
    /// From `limit` and `after` of a query.
    pub(crate) fn of(kind: ItemKind, limit: Option<&str>, after: Option<&str>) -> Result<Self, ApiError> {
        let after = after.map(|text| read_cursor(kind, text)).transpose()?;
        Ok(Page { limit: read_limit(limit)?, after })
    }

    /// One more than the page holds, to know whether there are more.
    pub(crate) fn asked(&self) -> u32 {
        self.limit + 1
    }

    /// The items of the page, and the cursor of the next if there is one.
    pub(crate) fn cut<T>(&self, mut items: Vec<T>, id: impl Fn(&T) -> ItemId) -> (Vec<T>, Option<String>) {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if items.len() <= limit {
            return (items, None);
        }
        items.truncate(limit);
        let next = items.last().map(|last| cursor(&id(last)));
        (items, next)
    }
}

/// How many, from 1 to 1000.
pub(crate) fn read_limit(text: Option<&str>) -> Result<u32, ApiError> {
    let Some(text) = text else { return Ok(LIMIT_DEFAULT) };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let limit = if digits { text.parse().ok() } else { None };
    limit.filter(|limit| (1..=LIMIT_MAX).contains(limit)).ok_or_else(|| {
        // Not a number of a rate limit: the code for those would mislead.
        ApiError::field(Code::InvalidInput, "limit", format!("must be a whole number from 1 to {LIMIT_MAX}"))
    })
}

/// The cursor behind an item.
pub(crate) fn cursor(id: &ItemId) -> String {
    encode(id.to_string().as_bytes())
}

/// The item that a cursor names; there need be none.
pub(crate) fn read_cursor(kind: ItemKind, text: &str) -> Result<ItemId, ApiError> {
    let bytes = if text.len() <= CURSOR_BYTES_MAX { decode(text) } else { None };
    let name = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(no_cursor)?;
    if name.is_empty() || name.contains('\0') {
        return Err(no_cursor());
    }
    // Only one spelling of each: what is not printed again as it was read is none of ours.
    ItemId::parse(kind, &name).filter(|id| id.to_string() == name).ok_or_else(no_cursor)
}

/// The cursor behind an item, in a list of several kinds.
pub(crate) fn cursor_of_any(id: &ItemId) -> String {
    encode(format!("{}/{id}", id.kind().as_str()).as_bytes())
}

/// The item that such a cursor names, of one of these kinds.
pub(crate) fn read_cursor_of_any(kinds: &[ItemKind], text: &str) -> Result<ItemId, ApiError> {
    let decoded = decode(text).and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let (kind, name) = decoded.split_once('/').unwrap_or_default();
    // A name is checked as if it had come alone.
    let kind = kinds.iter().find(|known| known.as_str() == kind);
    kind.map_or_else(|| Err(no_cursor()), |kind| read_cursor(*kind, &encode(name.as_bytes())))
}

fn no_cursor() -> ApiError {
    ApiError::field(Code::InvalidInput, "after", "must be `next` of an earlier answer")
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Base64url without padding.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group
            .iter()
            .enumerate()
            .fold(0_usize, |bits, (n, byte)| bits | usize::from(*byte) << (16 - 8 * n));
        for n in 0..=group.len() {
            let _ = text.write_char(char::from(ALPHABET[bits >> (18 - 6 * n) & 63]));
        }
    }
    text
}

/// The bytes of base64url; nothing unless it is what [`encode`] makes of them.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut bits = 0_usize;
        for (n, character) in group.iter().enumerate() {
            let value = ALPHABET.iter().position(|known| known == character)?;
            bits |= value << (18 - 6 * n);
        }
        let count = group.len().checked_sub(1).filter(|count| *count > 0)?;
        bytes.extend((0..count).map(|n| u8::try_from(bits >> (16 - 8 * n) & 255).unwrap_or(0)));
    }
    (encode(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_stores::sql::BlockKind;

    use super::*;

    #[test]
    fn a_cursor_names_its_item_again() {
        for id in [
            ItemId::Rule("a rule, with everything: \u{e9}\u{1f600}".to_owned()),
            ItemId::Key("a".to_owned()),
            ItemId::Block { kind: BlockKind::Ip, subject: "2001:db8::/32".to_owned() },
            ItemId::Limit { user: "a\"b".to_owned(), endpoint: "/x".to_owned() },
        ] {
            assert_eq!(read_cursor(id.kind(), &cursor(&id)).unwrap(), id);
        }
    }

    #[test]
    fn t43_what_is_no_cursor_is_refused() {
        let long = "A".repeat(CURSOR_BYTES_MAX + 4);
        for text in ["", "=", "YQ==", "YR", "a", "!!!!", "AA", "' OR 1=1 --", "gICA", &long] {
            assert!(read_cursor(ItemKind::Rule, text).is_err(), "{text}");
        }
        assert!(read_cursor(ItemKind::Block, &encode(b"planet:earth")).is_err());
        assert!(read_cursor(ItemKind::Limit, &encode(b"[\"a\"]")).is_err());
    }

    #[test]
    fn t70_a_page_has_at_most_a_thousand_items() {
        assert_eq!(read_limit(None).unwrap(), 100);
        assert_eq!(read_limit(Some("1000")).unwrap(), 1_000);
        for text in ["0", "1001", "-1", "+5", "1.5", "", " 5", "99999999999999999999", "a"] {
            assert_eq!(read_limit(Some(text)).unwrap_err().code(), Code::InvalidInput, "{text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back_and_nothing_else_is_taken(bytes: Vec<u8>, text in "[A-Za-z0-9_=-]{0,12}") {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
            if let Some(decoded) = decode(&text) {
                prop_assert_eq!(encode(&decoded), text);
            }
        }
    }
}
