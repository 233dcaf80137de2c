//! The method of a request, as far as limits care about it.

use std::fmt;

/// The longest method that is looked at, in bytes.
const LENGTH_MAX: usize = 32;

/// An HTTP method.
///
/// Whatever HTTP does not define is [`Method::Other`], without its name: a client could otherwise open a
/// fresh counter with every method it makes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`, counted as `GET`.
    Head,
    /// `HEAD`, counted as itself: what a [`Normalization`](crate::identity::Normalization) makes of it that tells it from `GET`.
    SeparateHead,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `PATCH`
    Patch,
    /// `DELETE`
    Delete,
    /// `OPTIONS`
    Options,
    /// `TRACE`
    Trace,
    /// `CONNECT`
    Connect,
    /// Any other well-formed method.
    Other,
}

/// Why a text is no method.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MethodError {
    /// There is nothing to read.
    #[error("the method is empty")]
    Empty,
    /// No method in use is nearly that long.
    #[error("the method is {length} bytes long, the most is {LENGTH_MAX}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// A character that HTTP does not allow in a method, such as a space.
    #[error("the method has a character at byte {at} that no method may have")]
    NotAToken {
        /// Where it stands, counted in bytes from 0.
        at: usize,
    },
}

impl Method {
    const STANDARD: [Self; 9] = [
        Self::Get,
        Self::Post,
        Self::Head,
        Self::Put,
        Self::Patch,
        Self::Delete,
        Self::Options,
        Self::Trace,
        Self::Connect,
    ];

    /// Reads a method, in whatever case it is spelled.
    ///
    /// HTTP methods are case-sensitive, but many servers are not: `get` must not escape a limit on `GET`.
    ///
    /// # Errors
    ///
    /// When the text is empty, too long, or no token as HTTP defines it.
    pub fn parse(text: &str) -> Result<Self, MethodError> {
        if text.is_empty() {
            return Err(MethodError::Empty);
        }
        if text.len() > LENGTH_MAX {
            return Err(MethodError::TooLong { length: text.len() });
        }
        if let Some(method) = Self::STANDARD.into_iter().find(|m| m.as_str().eq_ignore_ascii_case(text)) {
            return Ok(method);
        }
        match text.bytes().position(|byte| !is_token_byte(byte)) {
            Some(at) => Err(MethodError::NotAToken { at }),
            None => Ok(Self::Other),
        }
    }

    /// The method in upper case; `OTHER` for one that HTTP does not define.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head | Self::SeparateHead => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Connect => "CONNECT",
            Self::Other => "OTHER",
        }
    }

    /// The method that rules match and counters count.
    ///
    /// `HEAD` is `GET` here: it costs the server the same work, so it must not be a second allowance.
    #[must_use]
    pub const fn counted(self) -> Self {
        match self {
            Self::Head => Self::Get,
            method => method,
        }
    }

    /// The same, with `HEAD` counted as itself.
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

    #[test]
    fn t14_a_method_is_the_same_in_every_case() {
        for method in Method::STANDARD {
            let upper = method.as_str();
            let lower = upper.to_lowercase();
            let mixed = format!("{}{}", &lower[..1], &upper[1..]);
            for spelling in [upper, &lower, &mixed] {
                assert_eq!(Method::parse(spelling), Ok(method), "{spelling}");
            }
        }
    }

    #[test]
    fn t14_methods_made_up_by_a_client_are_one_method() {
        for made_up in ["PURGE", "purge", "GETS", "GE", "X-1", "!#$%&'*+-.^_`|~", "OTHER", &"A".repeat(32)] {
            assert_eq!(Method::parse(made_up), Ok(Method::Other), "{made_up}");
        }
    }

    #[test]
    fn every_byte_that_is_no_token_is_refused() {
        for byte in 0..=127_u8 {
            let is_separator = "\"(),/:;<=>?@[\\]{} ".contains(char::from(byte));
            let expected = if is_separator || byte.is_ascii_control() {
                Err(MethodError::NotAToken { at: 1 })
            } else {
                Ok(Method::Other)
            };
            assert_eq!(Method::parse(&format!("A{}", char::from(byte))), expected, "{byte}");
        }
        assert_eq!(Method::parse("GÉT"), Err(MethodError::NotAToken { at: 1 }));
    }

    #[test]
    fn an_empty_or_overlong_method_is_refused() {
        assert_eq!(Method::parse(""), Err(MethodError::Empty));
        assert_eq!(Method::parse(&"A".repeat(33)), Err(MethodError::TooLong { length: 33 }));
    }

    #[test]
    fn t15_head_counts_as_get_and_nothing_else_changes() {
        assert_eq!(Method::Head.counted(), Method::Get);
        assert_eq!(Method::Head.to_string(), "HEAD");
        for method in Method::STANDARD.into_iter().filter(|method| *method != Method::Head) {
            assert_eq!(method.counted(), method);
        }
    }

    #[test]
    fn t15_a_head_of_its_own_is_no_get_and_nothing_else_changes() {
        assert_eq!(Method::Head.with_separate_head().counted(), Method::SeparateHead);
        assert_eq!(Method::SeparateHead.with_separate_head().to_string(), "HEAD");
        for method in Method::STANDARD.into_iter().filter(|method| *method != Method::Head) {
            assert_eq!(method.with_separate_head(), method);
        }
    }
}
