//! One spelling for one path.
//!
//! A server answers `/api`, `/%61pi`, `//api/.` and `/x/..;/api` alike. A limiter that tells them apart hands
//! out one allowance per spelling, so an endpoint is brought to a normal form once, at the door, and
//! everything after that compares bytes. Whoever forwards the request must forward this form too: a path that
//! is matched in one spelling and served in another is how limits are got around.
//!
//! The order of the steps is the safety of it:
//!
//! 1. The path is cut out: scheme and host before it, query and fragment behind it.
//! 2. It is split at `/`. `%2F` is not a separator and never becomes one.
//! 3. Each segment is decoded, once, and only where an escape and its character mean the same to servers: `%61` is `a` and
//!    `%40` is `@`, but to some `+` is a space and `%2B` is not.
//! 4. Matrix parameters are stripped, and only now is the segment compared with `.` and `..`:
//!    `%2e%2e;x=1` has become `..` by then. Nothing is decoded after dots are resolved.
//!
//! Empty segments go before dots are resolved, so `/a//../b` is `/b`, as nginx reads it, not `/a/b`, as RFC
//! 3986 does. What two servers may read differently and no honest client sends is refused: backslashes,
//! control characters, malformed escapes, escapes that are not UTF-8 (an overlong `%C0%AE` is a dot to some),
//! dots encoded twice.

mod casefold;

use std::borrow::Cow;
use std::fmt;

pub(crate) use self::casefold::casefold;

/// The longest endpoint, in bytes, as it was sent and in its normal form.
pub(crate) const ENDPOINT_BYTES_MAX: usize = 2048;
const LENGTH_MAX: usize = ENDPOINT_BYTES_MAX;

/// A request's endpoint in its normal form: two requests for one thing have equal endpoints.
///
/// The normal form starts with `/`, has neither empty nor dot segments nor a trailing slash, and is ASCII:
/// all that may not stand in a path is percent-encoded in upper case. It is case-sensitive: see
/// [`Endpoint::casefold`]. An endpoint need not come from a URL: the plain name `search` is `/search`. Text that is normal already is borrowed, not
/// copied.
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

/// Why a text is no endpoint. Positions are counted in bytes from 0, in the text as it was sent.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text, or its normal form with all escapes written out, is too long.
    #[error("the endpoint is {length} bytes long, the most is {LENGTH_MAX}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// A `%` that two hexadecimal digits do not follow.
    #[error("the endpoint has a malformed percent-escape at byte {at}")]
    MalformedEscape {
        /// Where the `%` stands.
        at: usize,
    },
    /// Escapes beyond ASCII that are not UTF-8. Servers disagree on what they mean.
    #[error("the endpoint has percent-escapes that are not UTF-8 at byte {at}")]
    NotUtf8 {
        /// Where the character begins.
        at: usize,
    },
    /// A dot that was percent-encoded more than once. Only an attempt to hide `..` does that.
    #[error("the endpoint has a dot encoded more than once in the segment at byte {at}")]
    DoubleEncodedDot {
        /// Where the segment begins.
        at: usize,
    },
    /// A backslash, written out or escaped. Some servers take it for a slash.
    #[error("the endpoint has a backslash at byte {at}")]
    Backslash {
        /// Where it stands.
        at: usize,
    },
    /// A control character, written out or escaped.
    #[error("the endpoint has a control character at byte {at}")]
    ControlCharacter {
        /// Where it stands.
        at: usize,
    },
    /// A scheme without a host, as in `http:///path`. Some servers take the first segment for the host.
    #[error("the endpoint has a scheme but no host")]
    NoHost,
}

impl<'a> Endpoint<'a> {
    /// Brings an endpoint to its normal form.
    ///
    /// # Errors
    ///
    /// When the text is too long, or might be understood in more than one way: see [`EndpointError`].
    pub fn parse(raw: &'a str) -> Result<Self, EndpointError> {
        check_length(raw)?;
        if is_normal(raw) {
            return Ok(Self(Cow::Borrowed(raw)));
        }
        let normal = normalise(raw)?;
        check_length(&normal)?;
        Ok(Self(if normal == raw { Cow::Borrowed(raw) } else { Cow::Owned(normal) }))
    }

    /// The normal form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same endpoint for servers that ignore case: every character by Unicode's simple case folding, the escaped ones
    /// too, but none beyond ASCII as one of ASCII. An endpoint without upper case is not copied. It may become longer than an
    /// endpoint is allowed to be.
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

    /// The same endpoint, of the same memory.
    pub(crate) fn borrowed(&self) -> Endpoint<'_> {
        Endpoint(Cow::Borrowed(&self.0))
    }

    /// The same endpoint, independent of the text it was read from.
    #[must_use]
    pub fn into_owned(self) -> Endpoint<'static> {
        Endpoint(Cow::Owned(self.0.into_owned()))
    }

    /// The path without its leading slash: segments joined by single slashes, or nothing for the root.
    pub(crate) fn below_root(&self) -> &str {
        self.0.get(1..).unwrap_or_default()
    }
}

impl fmt::Display for Endpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Where the path begins if the text is in absolute form, `scheme://host/path`.
pub(crate) fn absolute_form_path(raw: &str) -> Option<usize> {
    let (scheme, rest) = raw.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    let host_length = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    is_scheme.then_some(raw.len() - rest.len() + host_length)
}

fn check_length(text: &str) -> Result<(), EndpointError> {
    if text.len() > LENGTH_MAX { Err(EndpointError::TooLong { length: text.len() }) } else { Ok(()) }
}

/// Whether `normalise` would change nothing: nearly every request, so this must be cheap.
///
/// A few normal texts are not recognised, namely those with an escaped percent sign. They only cost more.
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

/// A normal form without dots or escapes, told by one look at each byte.
fn is_plain(raw: &[u8]) -> bool {
    let mut last = 0;
    let is_plain = raw.iter().all(|&byte| {
        let before = std::mem::replace(&mut last, byte);
        PLAIN[usize::from(byte)] && !(byte == b'/' && before == b'/')
    });
    is_plain && raw.first() == Some(&b'/') && (last != b'/' || raw.len() == 1)
}

/// Bytes that stand for themselves wherever they stand, and the slash.
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

/// The length of the escaped character at `at`, if this is how the normal form would write it.
fn normal_escapes(segment: &[u8], at: usize) -> Option<usize> {
    let character = EscapedCharacter::read(segment, at).ok()?;
    let escapes = segment.get(at..at + character.escaped_length())?;
    // `%25` may be the first half of a dot encoded twice: not for the quick look to decide.
    let stays = |byte: &u8| !(is_decoded(*byte) || byte.is_ascii_control() || matches!(byte, b'\\' | b'%'));
    let is_normal = character.bytes().iter().all(stays) && !escapes.iter().any(u8::is_ascii_lowercase);
    is_normal.then_some(escapes.len())
}

fn normalise(raw: &str) -> Result<String, EndpointError> {
    let mut at = path_start(raw)?;
    let path = raw.get(at..).unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut normal = String::with_capacity(raw.len() + 1);
    for segment in path.split('/') {
        push_segment(&mut normal, segment, at)?;
        at += segment.len() + 1;
    }
    if normal.is_empty() {
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
    // The host is dropped, but one that some server would end earlier than we do changes what the path is.
    before_path.bytes().enumerate().try_for_each(|(at, byte)| refuse_ambiguous(byte, at))?;
    Ok(start)
}

/// Appends one segment that begins at byte `at`, or takes one away if it is `..`.
fn push_segment(normal: &mut String, segment: &str, at: usize) -> Result<(), EndpointError> {
    let parent = normal.len();
    normal.push('/');
    push_decoded(normal, segment, at)?;
    let decoded = normal.get(parent..).unwrap_or_default();
    // On the decoded text, because `%25%32%65` becomes `%252e` only by decoding.
    if has_encoded_dot(decoded) {
        return Err(EndpointError::DoubleEncodedDot { at });
    }
    let name = decoded.split(';').next().unwrap_or_default();
    let end = match name {
        "/" | "/." => parent,
        "/.." => normal.get(..parent).and_then(|above| above.rfind('/')).unwrap_or(0),
        _ => parent + name.len(),
    };
    normal.truncate(end);
    Ok(())
}

/// Appends `segment` with each character in its normal spelling. Matrix parameters are still there
/// afterwards.
fn push_decoded(normal: &mut String, segment: &str, offset: usize) -> Result<(), EndpointError> {
    let bytes = segment.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%' {
            let character = EscapedCharacter::read(bytes, at).map_err(|error| error.shifted(offset))?;
            for &byte in character.bytes() {
                refuse_ambiguous(byte, offset + at)?;
                push_byte(normal, byte, is_decoded(byte));
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

/// Whether an escaped percent sign, escaped again any number of times, is followed by what makes it a dot.
fn has_encoded_dot(decoded: &str) -> bool {
    decoded.match_indices("%25").any(|(at, percent)| {
        let digits = decoded.get(at + percent.len()..).unwrap_or_default().trim_start_matches("25");
        digits.get(..2).is_some_and(|digits| digits.eq_ignore_ascii_case("2e"))
    })
}

fn refuse_ambiguous(byte: u8, at: usize) -> Result<(), EndpointError> {
    match byte {
        b'\\' => Err(EndpointError::Backslash { at }),
        _ if byte.is_ascii_control() => Err(EndpointError::ControlCharacter { at }),
        _ => Ok(()),
    }
}

/// Whether an escape of it means the same as the character itself: unreserved ones by RFC 3986, section 2.3, and by what
/// servers do those that delimit nothing in a path. Not the `+`, a space to some; the `;`, which begins parameters; nor the
/// `*`, which in a pattern says something else.
const fn is_decoded(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&'..=b')' | b',' | b'=' | b':' | b'@')
}

/// What may stand unescaped in a segment of the normal form: RFC 3986's `pchar` without the `;` of
/// parameters.
const fn is_path_byte(byte: u8) -> bool {
    is_decoded(byte) || matches!(byte, b'*' | b'+')
}

/// One character of UTF-8 that was written as percent-escapes.
struct EscapedCharacter {
    utf8: [u8; 4],
    length: usize,
}

impl EscapedCharacter {
    /// Reads the character whose first `%` stands at `at`. Positions in errors are relative to `text`.
    fn read(text: &[u8], at: usize) -> Result<Self, EndpointError> {
        let first = escaped_byte(text, at).ok_or(EndpointError::MalformedEscape { at })?;
        let length = match first {
            0..=0x7F => 1,
            0x80..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xFF => 4,
        };
        let mut utf8 = [first, 0, 0, 0];
        for (index, byte) in utf8.iter_mut().enumerate().take(length).skip(1) {
            *byte = escaped_byte(text, at + 3 * index).ok_or(EndpointError::NotUtf8 { at })?;
        }
        let character = Self { utf8, length };
        // The decoder of the standard library knows overlong forms, surrogates and stray continuation bytes.
        if std::str::from_utf8(character.bytes()).is_err() {
            return Err(EndpointError::NotUtf8 { at });
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

/// The byte that the escape at `at` stands for, if there is a well-formed one.
fn escaped_byte(text: &[u8], at: usize) -> Option<u8> {
    let [b'%', high, low] = text.get(at..at + 3)? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

impl EndpointError {
    /// The same error, for a text that has `offset` bytes more in front.
    pub(crate) fn shifted(self, offset: usize) -> Self {
        match self {
            Self::MalformedEscape { at } => Self::MalformedEscape { at: at + offset },
            Self::NotUtf8 { at } => Self::NotUtf8 { at: at + offset },
            Self::DoubleEncodedDot { at } => Self::DoubleEncodedDot { at: at + offset },
            Self::Backslash { at } => Self::Backslash { at: at + offset },
            Self::ControlCharacter { at } => Self::ControlCharacter { at: at + offset },
            Self::TooLong { .. } | Self::NoHost => self,
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
    fn an_owned_endpoint_equals_the_borrowed_one() {
        let endpoint = Endpoint::parse("/api").unwrap();
        assert_eq!(endpoint.clone().into_owned(), endpoint);
    }

    #[test]
    fn t12_escapes_that_mean_their_character_are_decoded_once() {
        assert_eq!(normal("/%61pi%2d%2E%5f%7E%30"), "/api-._~0");
        assert_eq!(normal("/users/%40me%3aexport%2C%21%24%26%27%28%29%3d"), "/users/@me:export,!$&'()=");
        assert_eq!(normal("/%2540me"), "/%2540me");
        assert_eq!(normal("/%2561pi"), "/%2561pi");
        assert_eq!(normal("/%25%36%31"), "/%2561");
    }

    #[test]
    fn escapes_of_reserved_characters_stay_in_upper_case() {
        assert_eq!(normal("/a%2fb%2b%2a%3B%3f%23%5b"), "/a%2Fb%2B%2A%3B%3F%23%5B");
        assert_ne!(normal("/a%2Bb"), normal("/a+b"), "to some servers that is a space");
        assert_ne!(normal("/a%2Fb"), normal("/a/b"));
    }

    #[test]
    fn what_may_not_stand_in_a_path_is_escaped() {
        assert_eq!(normal("/a b\"<>[]^`{|}"), "/a%20b%22%3C%3E%5B%5D%5E%60%7B%7C%7D");
        assert_eq!(normal("/é"), "/%C3%A9");
        assert_eq!(normal("/%c3%a9"), "/%C3%A9");
        assert_eq!(normal("/😀%f0%9f%98%80"), "/%F0%9F%98%80%F0%9F%98%80");
    }

    #[test]
    fn decoding_that_makes_dot_segments_cannot_leave_a_prefix() {
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
    fn nothing_climbs_above_the_root() {
        for raw in ["/..", "..", "/../..", "/a/../..", "/%2e%2e/%2e%2e/", "/./..;x/."] {
            assert_eq!(normal(raw), "/", "{raw}");
        }
        assert_eq!(normal("/../../etc"), "/etc");
    }

    #[test]
    fn the_length_is_bounded_as_sent_and_as_normal_form() {
        assert_eq!(normal(&format!("/{}", "a".repeat(2047))).len(), 2048);
        assert_eq!(refusal(&format!("/{}", "a".repeat(2048))), EndpointError::TooLong { length: 2049 });
        assert_eq!(refusal(&"a".repeat(2048)), EndpointError::TooLong { length: 2049 });
        assert_eq!(refusal(&format!("/{}", "é".repeat(400))), EndpointError::TooLong { length: 2401 });
        assert_eq!(
            refusal(&format!("/?{}", "a".repeat(1 << 20))),
            EndpointError::TooLong { length: (1 << 20) + 2 }
        );
    }

    #[test]
    fn errors_say_where() {
        assert_eq!(refusal("/ab/c%zz").to_string(), "the endpoint has a malformed percent-escape at byte 5");
        assert_eq!(refusal("http://h/é%C3x"), EndpointError::NotUtf8 { at: 11 });
        assert_eq!(refusal("/a/b%5c"), EndpointError::Backslash { at: 4 });
        assert_eq!(refusal("/a/x%252e"), EndpointError::DoubleEncodedDot { at: 3 });
    }

    /// Pieces that mean something to some step of the normal form, so that random joins of them meet at its
    /// seams.
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
        fn normalising_twice_changes_nothing(raw in hostile_text()) {
            if let Ok(once) = Endpoint::parse(&raw) {
                prop_assert!(is_normal_form(once.as_str()), "{once}");
                let twice = Endpoint::parse(once.as_str());
                prop_assert_eq!(twice.as_ref(), Ok(&once));
                prop_assert!(matches!(twice, Ok(Endpoint(Cow::Borrowed(_)))));
            }
        }

        #[test]
        fn the_quick_look_agrees_with_the_long_way(raw in hostile_text()) {
            if is_normal(&raw) {
                prop_assert_eq!(normalise(&raw), Ok(raw));
            }
        }

        #[test]
        fn escaping_any_ordinary_character_changes_nothing(
            path in "(/[a-z0-9._~@:,!$&'()=-]{1,4}){1,5}",
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
