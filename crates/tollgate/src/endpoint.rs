//! Endpoints: request paths in a normal form.
//!
//! Servers treat `/api`, `/%61pi`, `//api/.` and `/x/..;/api` alike. To give them one limit, each path is normalized
//! once when it is parsed; after that, endpoints are compared byte by byte. A gateway must forward the normalized path:
//! a path that is limited in one form and served in another bypasses limits.
//!
//! The order of the steps matters for safety:
//!
//! 1. Scheme, host, query and fragment are removed.
//! 2. The path is split at `/`. `%2F` is never a separator.
//! 3. Each segment is decoded once, except for characters that delimit something: `%61` is `a`, `%40` is `@` and `%2B`
//!    is `+`, but `%2F`, `%3B` and `%3F` stay.
//! 4. Matrix parameters are removed, then `.` and `..` are resolved: `%2e%2e;x=1` is `..` by then. Nothing is decoded
//!    after that.
//!
//! Empty segments are removed before dots are resolved: `/a//../b` is `/b`, as in nginx, not `/a/b` as in RFC 3986.
//! Ambiguous input that no well-behaved client sends is rejected: backslashes, control characters, malformed escapes,
//! escapes that are not UTF-8 (some servers read an overlong `%C0%AE` as a dot), and dots encoded twice.

mod casefold;

use std::borrow::Cow;
use std::fmt;

pub(crate) use self::casefold::casefold;

/// The maximum length in bytes, as sent and in the normal form.
pub(crate) const ENDPOINT_BYTES_MAX: usize = 2048;
const LENGTH_MAX: usize = ENDPOINT_BYTES_MAX;

/// The endpoint of a request in its normal form.
///
/// The normal form starts with `/`, has no empty segments, dot segments or trailing slash, and is ASCII: other characters
/// are percent-encoded with upper-case digits. It is case-sensitive: see [`Endpoint::casefold`]. A plain name is an
/// endpoint too: `search` is `/search`. Normalized text is borrowed, not copied.
///
/// ```
/// use tollgate::endpoint::Endpoint;
///
/// let endpoint = Endpoint::parse("//%61pi/v1/./café/;v=2?page=3")?;
/// assert_eq!(endpoint.as_str(), "/api/v1/caf%C3%A9");
/// # Ok::<(), tollgate::endpoint::EndpointError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint<'a>(Cow<'a, str>);

/// Why a text is not an endpoint, with the length or the byte offset in the original text.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text or its normal form is too long.
    #[error("the endpoint is {0} bytes long; the maximum is {LENGTH_MAX}")]
    TooLong(usize),
    /// A `%` without two hexadecimal digits.
    #[error("the endpoint has a malformed percent-escape at byte {0}")]
    MalformedEscape(usize),
    /// Escapes that are not UTF-8, which servers interpret differently.
    #[error("the endpoint has percent-escapes that are not UTF-8 at byte {0}")]
    NotUtf8(usize),
    /// A dot that was percent-encoded more than once, as in attempts to hide `..`.
    #[error("the endpoint has a dot encoded more than once in the segment at byte {0}")]
    DoubleEncodedDot(usize),
    /// A backslash, which some servers treat as a slash.
    #[error("the endpoint has a backslash at byte {0}")]
    Backslash(usize),
    /// A control character.
    #[error("the endpoint has a control character at byte {0}")]
    ControlCharacter(usize),
    /// A scheme without a host, as in `http:///path`. Some servers treat the first segment as the host.
    #[error("the endpoint has a scheme but no host")]
    NoHost,
}

impl<'a> Endpoint<'a> {
    /// Parses and normalizes an endpoint.
    ///
    /// # Errors
    ///
    /// When the text is too long or ambiguous: see [`EndpointError`].
    pub fn parse(raw: &'a str) -> Result<Self, EndpointError> {
        check_length(raw)?;
        if is_normal(raw) {
            return Ok(Self(Cow::Borrowed(raw)));
        }
        let normal = normalize(raw)?;
        check_length(&normal)?;
        Ok(Self(if normal == raw { Cow::Borrowed(raw) } else { Cow::Owned(normal) }))
    }

    /// The normal form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path that a gateway forwards for a request with this path: normalized as for matching, so that the upstream
    /// sees the path that was limited, but with matrix parameters and a trailing slash as sent, because upstreams may
    /// distinguish them. The query is not part of it.
    ///
    /// ```
    /// use tollgate::Endpoint;
    /// assert_eq!(Endpoint::forwarded_path("//%61pi/../users;v=2/")?, "/users;v=2/");
    /// # Ok::<(), tollgate::endpoint::EndpointError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Endpoint::parse`].
    pub fn forwarded_path(raw: &'a str) -> Result<Cow<'a, str>, EndpointError> {
        check_length(raw)?;
        if is_normal(raw) || raw.strip_suffix('/').is_some_and(is_normal) {
            return Ok(Cow::Borrowed(raw));
        }
        let forwarded = normalize_path(raw, MatrixParameters::Keep)?;
        check_length(&forwarded)?;
        Ok(Cow::Owned(forwarded))
    }

    /// Folds the case, for servers that ignore it: Unicode simple case folding, also of escaped characters, except that
    /// no character becomes ASCII. The result can exceed the maximum length.
    ///
    /// ```
    /// use tollgate::Endpoint;
    /// let endpoint = Endpoint::parse("/API/Caf%C3%89/%2F")?.casefold();
    /// assert_eq!(endpoint.as_str(), "/api/caf%C3%A9/%2F");
    /// # Ok::<(), tollgate::endpoint::EndpointError>(())
    /// ```
    #[must_use]
    pub fn casefold(self) -> Self {
        match casefold(&self.0) {
            Some(folded) => Endpoint(Cow::Owned(folded)),
            None => self,
        }
    }

    /// The same endpoint, borrowed.
    pub(crate) fn borrowed(&self) -> Endpoint<'_> {
        Endpoint(Cow::Borrowed(&self.0))
    }

    /// The same endpoint, owned.
    #[must_use]
    pub fn into_owned(self) -> Endpoint<'static> {
        Endpoint(Cow::Owned(self.0.into_owned()))
    }

    /// The path without its leading slash; empty for the root.
    pub(crate) fn below_root(&self) -> &str {
        self.0.get(1..).unwrap_or_default()
    }
}

impl fmt::Display for Endpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The start of the path if the text is in absolute form, `scheme://host/path`.
pub(crate) fn absolute_form_path(raw: &str) -> Option<usize> {
    let (scheme, rest) = raw.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    let host_length = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    is_scheme.then_some(raw.len() - rest.len() + host_length)
}

fn check_length(text: &str) -> Result<(), EndpointError> {
    if text.len() > LENGTH_MAX { Err(EndpointError::TooLong(text.len())) } else { Ok(()) }
}

/// The fast path: whether the text is certainly normal. Texts with an escaped percent sign are not recognized.
fn is_normal(raw: &str) -> bool {
    if is_plain(raw.as_bytes()) {
        return true;
    }
    match raw.as_bytes() {
        [b'/'] => true,
        [b'/', segments @ ..] => segments.split(|byte| *byte == b'/').all(is_normal_segment),
        _ => false,
    }
}

/// Whether the text is a normal form without dots and escapes.
fn is_plain(raw: &[u8]) -> bool {
    let mut last = 0;
    let is_plain = raw.iter().all(|&byte| {
        let before = std::mem::replace(&mut last, byte);
        PLAIN[usize::from(byte)] && !(byte == b'/' && before == b'/')
    });
    is_plain && raw.first() == Some(&b'/') && (last != b'/' || raw.len() == 1)
}

/// Bytes that are always literal, and the slash.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        plain[byte as usize] = byte == b'/' || (is_path_byte(byte) && byte != b'.');
        byte += 1;
    }
    plain
};

fn is_normal_segment(segment: &[u8]) -> bool {
    if matches!(segment, b"" | b"." | b"..") {
        return false;
    }
    let mut at = 0;
    while let Some(&byte) = segment.get(at) {
        at += match byte {
            b'%' => match normal_escapes(segment, at) {
                Some(length) => length,
                None => return false,
            },
            _ if is_path_byte(byte) => 1,
            _ => return false,
        };
    }
    true
}

/// The length of the escaped character at `at`, if it is in normal form.
fn normal_escapes(segment: &[u8], at: usize) -> Option<usize> {
    let character = EscapedCharacter::read(segment, at).ok()?;
    let escapes = segment.get(at..at + character.escaped_length())?;
    // `%25` may start a double-encoded dot: left to the slow path.
    let stays = |byte: &u8| !(is_path_byte(*byte) || byte.is_ascii_control() || matches!(byte, b'\\' | b'%'));
    let is_normal = character.bytes().iter().all(stays) && !escapes.iter().any(u8::is_ascii_lowercase);
    is_normal.then_some(escapes.len())
}

fn normalize(raw: &str) -> Result<String, EndpointError> {
    normalize_path(raw, MatrixParameters::Remove)
}

/// What happens to `;name=value` in a segment.
#[derive(Copy, Clone, PartialEq, Eq)]
enum MatrixParameters {
    Remove,
    /// Kept, like a trailing slash.
    Keep,
}

fn normalize_path(raw: &str, parameters: MatrixParameters) -> Result<String, EndpointError> {
    let mut at = path_start(raw)?;
    let path = raw.get(at..).unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut normal = String::with_capacity(raw.len() + 1);
    let mut ends_in_name = false;
    for segment in path.split('/') {
        ends_in_name = push_segment(&mut normal, segment, at, parameters)?;
        at += segment.len() + 1;
    }
    if normal.is_empty() || (parameters == MatrixParameters::Keep && !ends_in_name) {
        normal.push('/');
    }
    Ok(normal)
}

fn path_start(raw: &str) -> Result<usize, EndpointError> {
    let Some(start) = absolute_form_path(raw) else { return Ok(0) };
    let before_path = raw.get(..start).unwrap_or_default();
    if before_path.ends_with("://") {
        return Err(EndpointError::NoHost);
    }
    // The host is dropped, but checked: a server that ends it earlier would see another path.
    before_path.bytes().enumerate().try_for_each(|(at, byte)| refuse_ambiguous(byte, at))?;
    Ok(start)
}

/// Appends the segment at byte `at`, or removes the last one for `..`. Returns whether the segment is a name.
fn push_segment(
    normal: &mut String,
    segment: &str,
    at: usize,
    parameters: MatrixParameters,
) -> Result<bool, EndpointError> {
    let parent = normal.len();
    normal.push('/');
    push_decoded(normal, segment, at)?;
    let decoded = normal.get(parent..).unwrap_or_default();
    // Checked after decoding, because `%25%32%65` decodes to `%252e`.
    if has_encoded_dot(decoded) {
        return Err(EndpointError::DoubleEncodedDot(at));
    }
    let name = decoded.split(';').next().unwrap_or_default();
    let (end, is_name) = match name {
        "/" | "/." => (parent, false),
        "/.." => (normal.get(..parent).and_then(|above| above.rfind('/')).unwrap_or(0), false),
        _ if parameters == MatrixParameters::Keep => (normal.len(), true),
        _ => (parent + name.len(), true),
    };
    normal.truncate(end);
    Ok(is_name)
}

/// Appends `segment` with each character in normal form, matrix parameters included.
fn push_decoded(normal: &mut String, segment: &str, offset: usize) -> Result<(), EndpointError> {
    let bytes = segment.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%' {
            let character = EscapedCharacter::read(bytes, at).map_err(|error| error.shifted(offset))?;
            for &byte in character.bytes() {
                refuse_ambiguous(byte, offset + at)?;
                push_byte(normal, byte, is_path_byte(byte));
            }
            at += character.escaped_length();
        } else {
            refuse_ambiguous(byte, offset + at)?;
            push_byte(normal, byte, is_path_byte(byte) || byte == b';');
            at += 1;
        }
    }
    Ok(())
}

fn push_byte(normal: &mut String, byte: u8, as_it_is: bool) {
    if as_it_is {
        normal.push(char::from(byte));
    } else {
        let digit = |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'A' + nibble - 10 });
        normal.extend(['%', digit(byte >> 4), digit(byte & 15)]);
    }
}

/// Whether the text contains a dot that is percent-encoded more than once.
fn has_encoded_dot(decoded: &str) -> bool {
    decoded.match_indices("%25").any(|(at, percent)| {
        let digits = decoded.get(at + percent.len()..).unwrap_or_default().trim_start_matches("25");
        digits.get(..2).is_some_and(|digits| digits.eq_ignore_ascii_case("2e"))
    })
}

fn refuse_ambiguous(byte: u8, at: usize) -> Result<(), EndpointError> {
    match byte {
        b'\\' => Err(EndpointError::Backslash(at)),
        _ if byte.is_ascii_control() => Err(EndpointError::ControlCharacter(at)),
        _ => Ok(()),
    }
}

/// Bytes that are not escaped in the normal form: `pchar` of RFC 3986 without `;`, which starts parameters.
///
/// `+` is one although some servers read it as a space: two counters for one path would double its limit.
const fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&'..=b',' | b'=' | b':' | b'@')
}

/// One UTF-8 character, percent-encoded.
struct EscapedCharacter {
    utf8: [u8; 4],
    length: usize,
}

impl EscapedCharacter {
    /// Decodes the character whose first `%` is at `at`. Error positions are relative to `text`.
    fn read(text: &[u8], at: usize) -> Result<Self, EndpointError> {
        let first = escaped_byte(text, at).ok_or(EndpointError::MalformedEscape(at))?;
        let length = match first {
            0..=0x7F => 1,
            0x80..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xFF => 4,
        };
        let mut utf8 = [first, 0, 0, 0];
        for (index, byte) in utf8.iter_mut().enumerate().take(length).skip(1) {
            *byte = escaped_byte(text, at + 3 * index).ok_or(EndpointError::NotUtf8(at))?;
        }
        let character = Self { utf8, length };
        // The standard library rejects overlong forms, surrogates and stray continuation bytes.
        if std::str::from_utf8(character.bytes()).is_err() {
            return Err(EndpointError::NotUtf8(at));
        }
        Ok(character)
    }

    fn bytes(&self) -> &[u8] {
        self.utf8.get(..self.length).unwrap_or_default()
    }

    fn escaped_length(&self) -> usize {
        3 * self.length
    }
}

/// The byte encoded at `at`, if the escape is well-formed.
fn escaped_byte(text: &[u8], at: usize) -> Option<u8> {
    let [b'%', high, low] = text.get(at..at + 3)? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

impl EndpointError {
    /// The same error with its position shifted by `offset`.
    pub(crate) fn shifted(self, offset: usize) -> Self {
        match self {
            Self::MalformedEscape(at) => Self::MalformedEscape(at + offset),
            Self::NotUtf8(at) => Self::NotUtf8(at + offset),
            Self::DoubleEncodedDot(at) => Self::DoubleEncodedDot(at + offset),
            Self::Backslash(at) => Self::Backslash(at + offset),
            Self::ControlCharacter(at) => Self::ControlCharacter(at + offset),
            Self::TooLong(_) | Self::NoHost => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(raw: &str) -> String {
        Endpoint::parse(raw).unwrap_or_else(|error| panic!("{raw:?}: {error}")).to_string()
    }

    fn refusal(raw: &str) -> EndpointError {
        Endpoint::parse(raw).expect_err(raw)
    }

    #[test]
    fn normal_text_is_borrowed() {
        for raw in [
            "/",
            "/api",
            "/api/v1/users",
            "/a/b.c/~d",
            "/*",
            "/a:b@c!$&'()*+,=",
            "/...",
            "/.a",
            "/a..",
            "/%2F",
        ]
        .into_iter()
        .chain(["/caf%C3%A9/%F0%9F%98%80", "/100%25", "/%2541", "/pkg.Service/Method", "/%20"])
        {
            let endpoint = Endpoint::parse(raw).unwrap();
            assert!(matches!(endpoint.0, Cow::Borrowed(_)), "{raw}");
            assert_eq!(endpoint.as_str(), raw);
        }
    }

    #[test]
    fn owned_endpoint_equals_the_borrowed_one() {
        let endpoint = Endpoint::parse("/api").unwrap();
        assert_eq!(endpoint.clone().into_owned(), endpoint);
    }

    #[test]
    fn equivalent_escapes_are_decoded_once() {
        assert_eq!(normal("/%61pi%2d%2E%5f%7E%30"), "/api-._~0");
        assert_eq!(normal("/users/%40me%3aexport%2C%21%24%26%27%28%29%3d"), "/users/@me:export,!$&'()=");
        assert_eq!(normal("/a%2Bb%2b%2A%2a"), "/a+b+**");
        assert_eq!(normal("/%2540me"), "/%2540me");
        assert_eq!(normal("/%2561pi"), "/%2561pi");
        assert_eq!(normal("/%25%36%31"), "/%2561");
    }

    #[test]
    fn escapes_of_reserved_characters_stay_in_upper_case() {
        assert_eq!(normal("/a%2fb%3B%3f%23%5b"), "/a%2Fb%3B%3F%23%5B");
        assert_ne!(normal("/a%2Fb"), normal("/a/b"));
    }

    #[test]
    fn invalid_path_characters_are_escaped() {
        assert_eq!(normal("/a b\"<>[]^`{|}"), "/a%20b%22%3C%3E%5B%5D%5E%60%7B%7C%7D");
        assert_eq!(normal("/é"), "/%C3%A9");
        assert_eq!(normal("/%c3%a9"), "/%C3%A9");
        assert_eq!(normal("/😀%f0%9f%98%80"), "/%F0%9F%98%80%F0%9F%98%80");
    }

    #[test]
    fn encoded_dot_segments_are_resolved() {
        for raw in
            ["/a/%2e%2e/b", "/a/.%2e/b", "/a/%2E./b", "/a/..;/b", "/a/%2e%2e;x=1/b", "/a/;/../b", "/a//../b"]
        {
            assert_eq!(normal(raw), "/b", "{raw}");
        }
        for raw in ["/a/%2e/b", "/a/.;x=%2e%2e/b", "/a/%2e;/b", "/a/;../b", "/a;/../x/../a/b"] {
            assert_eq!(normal(raw), "/a/b", "{raw}");
        }
        assert_eq!(normal("/a/..%2Fb"), "/a/..%2Fb");
        assert_eq!(normal("/a/..%3Bx/b"), "/a/..%3Bx/b");
    }

    #[test]
    fn dot_segments_stay_below_the_root() {
        for raw in ["/..", "..", "/../..", "/a/../..", "/%2e%2e/%2e%2e/", "/./..;x/."] {
            assert_eq!(normal(raw), "/", "{raw}");
        }
        assert_eq!(normal("/../../etc"), "/etc");
    }

    #[test]
    fn length_is_limited_before_and_after_normalization() {
        assert_eq!(normal(&format!("/{}", "a".repeat(2047))).len(), 2048);
        assert_eq!(refusal(&format!("/{}", "a".repeat(2048))), EndpointError::TooLong(2049));
        assert_eq!(refusal(&"a".repeat(2048)), EndpointError::TooLong(2049));
        assert_eq!(refusal(&format!("/{}", "é".repeat(400))), EndpointError::TooLong(2401));
        assert_eq!(refusal(&format!("/?{}", "a".repeat(1 << 20))), EndpointError::TooLong((1 << 20) + 2));
    }

    #[test]
    fn errors_have_positions() {
        assert_eq!(refusal("/ab/c%zz").to_string(), "the endpoint has a malformed percent-escape at byte 5");
        assert_eq!(refusal("http://h/é%C3x"), EndpointError::NotUtf8(11));
        assert_eq!(refusal("/a/b%5c"), EndpointError::Backslash(4));
        assert_eq!(refusal("/a/x%252e"), EndpointError::DoubleEncodedDot(3));
    }

    /// Random sequences of pieces that are special to some step.
    fn hostile_text() -> impl Strategy<Value = String> {
        const PIECES: [&str; 40] = [
            "/", "/", "/", "//", ".", "..", "%2e", "%2E", "%25", "25", "2e", "2E", "%32", "%65", "%", "a",
            "A", "%61", "%2f", "%2F", "\\", "%5c", ";", ";x=1", "%3b", "?", "#", "*", ":", "://", "http://",
            "h", "é", "%c3", "%A9", "%C0%AE", " ", "%00", "\n", "{",
        ];
        let piece = proptest::sample::select(&PIECES[..]);
        prop_oneof![
            4 => proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat()),
            1 => any::<String>(),
        ]
    }

    fn is_normal_form(text: &str) -> bool {
        let segments_hold = text[1..].split('/').all(|segment| !matches!(segment, "" | "." | ".."));
        let bytes_hold = text.bytes().all(|byte| byte == b'/' || byte == b'%' || is_path_byte(byte));
        text.starts_with('/') && (text == "/" || segments_hold) && bytes_hold
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn normalization_is_idempotent(raw in hostile_text()) {
            if let Ok(once) = Endpoint::parse(&raw) {
                prop_assert!(is_normal_form(once.as_str()), "{once}");
                let twice = Endpoint::parse(once.as_str());
                prop_assert_eq!(twice.as_ref(), Ok(&once));
                prop_assert!(matches!(twice, Ok(Endpoint(Cow::Borrowed(_)))));
            }
        }

        #[test]
        fn fast_path_agrees_with_slow_path(raw in hostile_text()) {
            if is_normal(&raw) {
                prop_assert_eq!(normalize(&raw), Ok(raw));
            }
        }

        #[test]
        fn escaping_ordinary_characters_changes_nothing(
            path in "(/[a-z0-9._~@:,!$&'()*+=-]{1,4}){1,5}",
            chosen in any::<u32>(),
        ) {
            let spell = |(at, c): (usize, char)| match c {
                '/' => c.to_string(),
                _ if chosen >> at & 1 == 1 => format!("%{:02x}", u32::from(c)),
                _ => c.to_string(),
            };
            let escaped: String = path.char_indices().map(spell).collect();
            prop_assert_eq!(normal(&escaped), normal(&path));
        }
    }
}
