//! HTTP methods, as rules match and count them.

use std::fmt;

/// The maximum length of a method in bytes.
const LENGTH_MAX: usize = 32;

named_enum! {
    /// An HTTP method.
    ///
    /// Methods that HTTP does not define are all [`Method::Other`]: otherwise a client could get a new counter with every
    /// invented method.
    #[derive(PartialOrd, Ord)]
    pub enum Method {
        Get = "GET",
        /// `HEAD`, counted as `GET`.
        Head = "HEAD",
        /// `HEAD`, counted separately from `GET`: see [`HeadCounting`](crate::identity::HeadCounting).
        SeparateHead = "HEAD",
        Post = "POST",
        Put = "PUT",
        Patch = "PATCH",
        Delete = "DELETE",
        Options = "OPTIONS",
        Trace = "TRACE",
        Connect = "CONNECT",
        /// Any other well-formed method.
        Other = "OTHER",
    }
}

/// Why a text is not a method, with the length or the byte offset.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MethodError {
    /// The text is empty.
    #[error("the method is empty")]
    Empty,
    /// The text is too long.
    #[error("the method is {0} bytes long; the maximum is {LENGTH_MAX}")]
    TooLong(usize),
    /// A character that HTTP does not allow in a method, such as a space.
    #[error("the method has an invalid character at byte {0}")]
    NotAToken(usize),
}

impl Method {
    /// Parses a method, ignoring case.
    ///
    /// HTTP methods are case-sensitive, but many servers are not: `get` must not bypass a limit on `GET`.
    ///
    /// # Errors
    ///
    /// When the text is empty, too long, or not an HTTP token.
    pub fn parse(text: &str) -> Result<Self, MethodError> {
        if text.is_empty() {
            return Err(MethodError::Empty);
        }
        if text.len() > LENGTH_MAX {
            return Err(MethodError::TooLong(text.len()));
        }
        if let Some(method) = Self::ALL.into_iter().find(|m| m.as_str().eq_ignore_ascii_case(text)) {
            return Ok(method);
        }
        match text.bytes().position(|byte| !is_token_byte(byte)) {
            Some(at) => Err(MethodError::NotAToken(at)),
            None => Ok(Self::Other),
        }
    }

    /// The method that is matched and counted. `HEAD` is `GET`: it costs the server the same work.
    #[must_use]
    pub const fn counted(self) -> Self {
        match self {
            Self::Head => Self::Get,
            method => method,
        }
    }

    /// The same method, with `HEAD` counted separately.
    #[must_use]
    pub const fn with_separate_head(self) -> Self {
        match self {
            Self::Head => Self::SeparateHead,
            method => method,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// RFC 9110, section 5.6.2: `tchar`.
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standard() -> impl Iterator<Item = Method> {
        Method::ALL.into_iter().filter(|method| !matches!(method, Method::SeparateHead | Method::Other))
    }

    #[test]
    fn methods_ignore_case() {
        for method in standard() {
            let upper = method.as_str();
            let lower = upper.to_lowercase();
            let mixed = format!("{}{}", &lower[..1], &upper[1..]);
            for variant in [upper, &lower, &mixed] {
                assert_eq!(Method::parse(variant), Ok(method), "{variant}");
            }
        }
    }

    #[test]
    fn invented_methods_are_one_method() {
        for made_up in ["PURGE", "purge", "GETS", "GE", "X-1", "!#$%&'*+-.^_`|~", "OTHER", &"A".repeat(32)] {
            assert_eq!(Method::parse(made_up), Ok(Method::Other), "{made_up}");
        }
    }

    #[test]
    fn non_token_bytes_are_rejected() {
        for byte in 0..=127_u8 {
            let is_separator = "\"(),/:;<=>?@[\\]{} ".contains(char::from(byte));
            let expected = if is_separator || byte.is_ascii_control() {
                Err(MethodError::NotAToken(1))
            } else {
                Ok(Method::Other)
            };
            assert_eq!(Method::parse(&format!("A{}", char::from(byte))), expected, "{byte}");
        }
        assert_eq!(Method::parse("GÉT"), Err(MethodError::NotAToken(1)));
    }

    #[test]
    fn empty_and_long_methods_are_rejected() {
        assert_eq!(Method::parse(""), Err(MethodError::Empty));
        assert_eq!(Method::parse(&"A".repeat(33)), Err(MethodError::TooLong(33)));
    }

    #[test]
    fn head_counts_as_get() {
        assert_eq!(Method::Head.counted(), Method::Get);
        assert_eq!(Method::Head.to_string(), "HEAD");
        for method in standard().filter(|method| *method != Method::Head) {
            assert_eq!(method.counted(), method);
        }
    }

    #[test]
    fn separate_head_is_not_get() {
        assert_eq!(Method::Head.with_separate_head().counted(), Method::SeparateHead);
        assert_eq!(Method::SeparateHead.with_separate_head().to_string(), "HEAD");
        for method in standard().filter(|method| *method != Method::Head) {
            assert_eq!(method.with_separate_head(), method);
        }
    }
}
