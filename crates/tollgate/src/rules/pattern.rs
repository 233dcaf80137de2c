//! Endpoint patterns.
//!
//! A pattern is a path whose segments may be wildcards. There are no partial wildcards and no regular expressions: each
//! segment is compared once, so no pattern needs backtracking or is slow to match.

use std::fmt;

use crate::endpoint::{Endpoint, EndpointError, absolute_form_path, casefold};

/// The maximum length of a pattern in bytes.
const LENGTH_MAX: usize = 512;

/// The maximum number of segments.
pub(super) const SEGMENTS_MAX: usize = 64;

/// A pattern of endpoints.
///
/// | segment  | matches |
/// |----------|---------|
/// | `users`  | itself, after normalization |
/// | `{id}`   | exactly one segment |
/// | `*`      | exactly one segment; as the last one, everything below |
///
/// `/api/*` matches `/api/x` and `/api/x/y` but not `/api`; list both if both are meant. `/*` and `*` match every
/// endpoint, including the root.
///
/// ```
/// use tollgate::endpoint::Endpoint;
/// use tollgate::rules::pattern::Pattern;
///
/// let pattern = Pattern::parse("/users/{id}/posts/*")?;
/// assert!(pattern.matches(&Endpoint::parse("/users/7/posts/2024/may")?));
/// assert!(!pattern.matches(&Endpoint::parse("/users/7/posts")?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern {
    pub(super) segments: Box<[Segment]>,
    /// Whether the pattern ends with `*`.
    pub(super) open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Segment {
    Literal(Box<str>),
    Any,
    Named(Box<str>),
}

/// How specific a pattern is; more specific is greater.
///
/// Compared by the number of literal segments, then of single wildcards, then by the absence of a final `*`. A pattern
/// that matches a subset of another one is always more specific.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Specificity {
    // The order of the fields is the order of comparison.
    literals: usize,
    singles: usize,
    closed: bool,
}

/// Why a text is not a pattern, with the byte offset or the length.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The text is too long.
    #[error("the pattern is {0} bytes long; the maximum is {LENGTH_MAX}")]
    TooLong(usize),
    /// There are too many segments.
    #[error("the pattern has more than {SEGMENTS_MAX} segments")]
    TooManySegments,
    /// A scheme and host, which endpoints do not have.
    #[error("the pattern starts with a scheme and a host; it must be a path")]
    AbsoluteForm,
    /// A `*` or `{name}` next to other characters in one segment.
    #[error("the pattern has a wildcard at byte {0} that is not a whole segment")]
    PartialWildcard(usize),
    /// A `{` without its `}` in the same segment.
    #[error("the pattern has a `{{` at byte {0} that is not closed")]
    UnclosedBrace(usize),
    /// A `}` without its `{` in the same segment.
    #[error("the pattern has a `}}` at byte {0} that was not opened")]
    UnopenedBrace(usize),
    /// Empty braces.
    #[error("the pattern has no name in the braces at byte {0}")]
    EmptyName(usize),
    /// Something other than a name in braces, such as `{id:[0-9]+}`.
    #[error("the pattern has a name at byte {0} with other characters than letters, digits, `_` and `-`")]
    InvalidName(usize),
    /// A duplicate name.
    #[error("the pattern has a name at byte {0} that it used before")]
    DuplicateName(usize),
    /// A query, a fragment or matrix parameters, which endpoints do not have.
    #[error("the pattern has `{1}` at byte {0}, it must be a path only")]
    NotInPath(usize, char),
    /// A `.` or `..` segment, which endpoints do not have.
    #[error("the pattern has a dot segment at byte {0}")]
    DotSegment(usize),
    /// A segment that is invalid in endpoints. The position is that in the pattern.
    #[error("the pattern could not be an endpoint")]
    Endpoint(#[source] EndpointError),
}

impl Pattern {
    /// Parses a pattern. As in endpoints, repeated and trailing slashes and a missing leading one are ignored.
    ///
    /// # Errors
    ///
    /// When the pattern could never match or is ambiguous: see [`PatternError`].
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.len() > LENGTH_MAX {
            return Err(PatternError::TooLong(text.len()));
        }
        if absolute_form_path(text).is_some() {
            return Err(PatternError::AbsoluteForm);
        }
        let mut segments = Vec::new();
        let mut at = 0;
        for part in text.split('/') {
            if !part.is_empty() {
                push_segment(&mut segments, Segment::parse(part, at)?, at)?;
            }
            at += part.len() + 1;
        }
        let open = segments.pop_if(|last| *last == Segment::Any).is_some();
        let pattern = Self { segments: segments.into(), open };
        // Escapes written out make it longer, and what is shown must be a pattern again.
        match pattern.to_string().len() {
            length if length > LENGTH_MAX => Err(PatternError::TooLong(length)),
            _ => Ok(pattern),
        }
    }

    /// Whether the pattern matches an endpoint.
    pub fn matches(&self, endpoint: &Endpoint<'_>) -> bool {
        self.is_everything() || fits(&self.segments, self.open, endpoint.below_root())
    }

    /// The same pattern for [case-folded](Endpoint::casefold) endpoints.
    #[must_use]
    pub fn casefold(&self) -> Self {
        let fold = |segment: &Segment| match segment {
            Segment::Literal(text) => {
                casefold(text).map_or_else(|| segment.clone(), |text| Segment::Literal(text.into()))
            }
            Segment::Any | Segment::Named(_) => segment.clone(),
        };
        Pattern { segments: self.segments.iter().map(fold).collect(), open: self.open }
    }

    /// The specificity, which orders rules with the same priority.
    pub fn specificity(&self) -> Specificity {
        let literals = self.segments.iter().filter(|segment| matches!(segment, Segment::Literal(_))).count();
        Specificity { literals, singles: self.segments.len() - literals, closed: !self.open }
    }

    /// Whether the pattern is `/*`, which matches every endpoint.
    pub fn is_everything(&self) -> bool {
        self.open && self.segments.is_empty()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                // A `*` here was written as `%2A`: it is no wildcard.
                Segment::Literal(text) => write!(f, "/{}", text.replace('*', "%2A"))?,
                Segment::Any => f.write_str("/*")?,
                Segment::Named(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match (self.open, self.segments.is_empty()) {
            (true, _) => f.write_str("/*"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

impl Segment {
    /// Parses the segment at byte `at` of its pattern.
    fn parse(part: &str, at: usize) -> Result<Self, PatternError> {
        if part == "*" {
            return Ok(Self::Any);
        }
        match part.char_indices().find(|(_, found)| "*{}?#;".contains(*found)) {
            None => Self::literal(part, at),
            Some((0, '{')) => Self::named(part, at),
            Some((offset, '*')) => Err(PatternError::PartialWildcard(at + offset)),
            Some((offset, '}')) => Err(PatternError::UnopenedBrace(at + offset)),
            Some((offset, '{')) if part.contains('}') => Err(PatternError::PartialWildcard(at + offset)),
            Some((offset, '{')) => Err(PatternError::UnclosedBrace(at + offset)),
            Some((offset, found)) => Err(PatternError::NotInPath(at + offset, found)),
        }
    }

    fn literal(part: &str, at: usize) -> Result<Self, PatternError> {
        let endpoint = Endpoint::parse(part).map_err(|error| PatternError::Endpoint(error.shifted(at)))?;
        match endpoint.below_root() {
            // Only dots vanish in the normal form: an empty part is not read at all.
            "" => Err(PatternError::DotSegment(at)),
            literal => Ok(Self::Literal(literal.into())),
        }
    }

    fn named(part: &str, at: usize) -> Result<Self, PatternError> {
        let Some((name, behind)) = part.get(1..).and_then(|inside| inside.split_once('}')) else {
            return Err(PatternError::UnclosedBrace(at));
        };
        if !behind.is_empty() {
            return Err(PatternError::PartialWildcard(at));
        }
        if name.is_empty() {
            return Err(PatternError::EmptyName(at));
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
            return Err(PatternError::InvalidName(at + 1));
        }
        Ok(Self::Named(name.into()))
    }

    fn matches(&self, segment: &str) -> bool {
        match self {
            Self::Literal(text) => **text == *segment,
            Self::Any | Self::Named(_) => true,
        }
    }
}

fn push_segment(segments: &mut Vec<Segment>, segment: Segment, at: usize) -> Result<(), PatternError> {
    if segments.len() == SEGMENTS_MAX {
        return Err(PatternError::TooManySegments);
    }
    if matches!(segment, Segment::Named(_)) && segments.contains(&segment) {
        return Err(PatternError::DuplicateName(at + 1));
    }
    segments.push(segment);
    Ok(())
}

/// Whether a path has these segments and, if `open`, at least one more.
pub(super) fn fits(segments: &[Segment], open: bool, path: &str) -> bool {
    let mut rest = path;
    for expected in segments {
        match split_first(rest) {
            Some((segment, below)) if expected.matches(segment) => rest = below,
            _ => return false,
        }
    }
    rest.is_empty() != open
}

/// The first segment of a path and the rest.
pub(super) fn split_first(path: &str) -> Option<(&str, &str)> {
    if path.is_empty() {
        return None;
    }
    // Segments are short: looking at each byte is quicker than any cleverer search.
    match path.bytes().position(|byte| byte == b'/') {
        Some(end) => Some((&path[..end], &path[end + 1..])),
        None => Some((path, "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    fn endpoint(raw: &str) -> Endpoint<'_> {
        Endpoint::parse(raw).unwrap()
    }

    fn refusal(text: &str) -> PatternError {
        Pattern::parse(text).expect_err(text)
    }

    #[track_caller]
    fn assert_matches(text: &str, matching: &[&str], others: &[&str]) {
        let pattern = pattern(text);
        for path in matching {
            assert!(pattern.matches(&endpoint(path)), "{text} should match {path}");
        }
        for path in others {
            assert!(!pattern.matches(&endpoint(path)), "{text} should not match {path}");
        }
    }

    #[test]
    fn literals_match_only_themselves() {
        assert_matches(
            "/api/v1",
            &["/api/v1", "api//v1/", "/%61pi/v1?x"],
            &["/", "/api", "/api/v1/x", "/API/v1"],
        );
        assert_matches("/", &["/", ""], &["/a", "/*"]);
        assert_matches("", &["/"], &["/a"]);
    }

    #[test]
    fn inner_star_matches_one_segment() {
        assert_matches("/a/*/c", &["/a/b/c", "/a/c/c"], &["/a/c", "/a/b/b/c", "/a/b", "/a/b/c/d"]);
        assert_matches("/*/c", &["/a/c"], &["/c", "/", "/a/b/c"]);
    }

    #[test]
    fn final_star_matches_everything_below() {
        assert_matches(
            "/api/v1/*",
            &["/api/v1/x", "/api/v1/x/y/z", "/api/v1/%2F"],
            &["/api/v1", "/api/v1/", "/api"],
        );
        assert_matches("/a/*/*", &["/a/b/c", "/a/b/c/d"], &["/a", "/a/b"]);
        assert_matches("/a/*/", &["/a/b/c"], &["/a"]);
    }

    #[test]
    fn single_star_matches_everything() {
        for text in ["*", "/*", "//*/"] {
            assert_matches(text, &["/", "/a", "/a/b", "*"], &[]);
            assert_eq!(pattern(text).to_string(), "/*");
        }
    }

    #[test]
    fn named_wildcard_matches_one_segment() {
        assert_matches("/users/{id}", &["/users/7", "/users/%2F"], &["/users", "/users/7/posts"]);
        assert_matches("{any}", &["/a"], &["/", "/a/b"]);
    }

    #[test]
    fn literals_are_normalized_like_endpoints() {
        assert_matches("/caf%c3%a9", &["/café", "/caf%C3%A9"], &["/cafe"]);
        assert_matches("/%61 b/%7Bx%7d", &["/a%20b/{x}"], &["/a%20b/x"]);
        assert_matches("/a%2bb/%2A", &["/a+b/*", "/a%2Bb/%2a"], &["/a+b/c", "/a b/*"]);
        assert_matches("search", &["/search"], &[]);
        assert_matches("/pkg.Service/Method:run", &["/pkg.Service/Method:run"], &["/pkg.Service/Method"]);
    }

    #[test]
    fn display_is_the_normal_form() {
        for (text, normal) in [
            ("", "/"),
            ("a//%62/", "/a/b"),
            ("/{id}/*/é/*", "/{id}/*/%C3%A9/*"),
            ("/a/{b_1-x}", "/a/{b_1-x}"),
            ("/%2a/%3b", "/%2A/%3B"),
        ] {
            assert_eq!(pattern(text).to_string(), normal);
            assert_eq!(pattern(normal), pattern(text));
        }
    }

    #[test]
    fn more_specific_patterns_are_greater() {
        let ascending =
            ["/*", "/", "/*/*", "/{x}", "/{x}/{y}", "/a/*", "/a", "/a/{x}/*", "/a/{x}", "/a/b/*", "/a/b"];
        assert!(ascending.map(|text| pattern(text).specificity()).is_sorted_by(|a, b| a < b));
        assert_eq!(pattern("/a/*/c").specificity(), pattern("/a/{b}/c").specificity());
    }

    #[test]
    fn partial_wildcards_are_rejected() {
        for (text, at) in
            [("/a*b", 2), ("/a/b*", 4), ("/*a", 1), ("/a/**", 3), ("/a/{b}.json", 3), ("/a/v{b}", 4)]
        {
            assert_eq!(refusal(text), PatternError::PartialWildcard(at), "{text}");
        }
        assert_eq!(
            refusal("/é/a*").to_string(),
            "the pattern has a wildcard at byte 5 that is not a whole segment"
        );
    }

    #[test]
    fn braces_without_name_are_rejected() {
        assert_eq!(refusal("/a/{b"), PatternError::UnclosedBrace(3));
        assert_eq!(refusal("/a/x{b"), PatternError::UnclosedBrace(4));
        assert_eq!(refusal("/{a/b}"), PatternError::UnclosedBrace(1));
        assert_eq!(refusal("/a/b}"), PatternError::UnopenedBrace(4));
        assert_eq!(refusal("/a/{}"), PatternError::EmptyName(3));
        assert_eq!(refusal("/{id:[0-9]+}"), PatternError::InvalidName(2));
        assert_eq!(refusal("/{*rest}"), PatternError::InvalidName(2));
        assert_eq!(refusal("/{{a}}"), PatternError::PartialWildcard(1));
        assert_eq!(refusal("/{a}/b/{a}"), PatternError::DuplicateName(8));
    }

    #[test]
    fn patterns_that_never_match_are_rejected() {
        assert_eq!(refusal("/a?b=*"), PatternError::NotInPath(2, '?'));
        assert_eq!(refusal("/a#b"), PatternError::NotInPath(2, '#'));
        assert_eq!(refusal("/a;b"), PatternError::NotInPath(2, ';'));
        assert_eq!(refusal("/a/../b"), PatternError::DotSegment(3));
        assert_eq!(refusal("/a/%2e"), PatternError::DotSegment(3));
        assert_eq!(refusal("https://host/a"), PatternError::AbsoluteForm);
        assert_eq!(refusal("/a/b%zz"), PatternError::Endpoint(EndpointError::MalformedEscape(4)));
        assert_eq!(refusal("/a/\\"), PatternError::Endpoint(EndpointError::Backslash(3)));
    }

    #[test]
    fn patterns_are_bounded() {
        assert!(Pattern::parse(&"a".repeat(511)).is_ok());
        assert_eq!(refusal(&"a".repeat(513)), PatternError::TooLong(513));
        assert_eq!(refusal(&" ".repeat(200)), PatternError::TooLong(601), "in its normal form");
        assert!(Pattern::parse(&"/*".repeat(64)).is_ok());
        assert_eq!(refusal(&"/*".repeat(65)), PatternError::TooManySegments);
    }

    proptest! {
        #[test]
        fn display_of_any_pattern_parses_again(
            text in "(/|[a-c]|\\*|\\{|\\}|%2e|%25|é|\\PC){0,12}",
        ) {
            if let Ok(once) = Pattern::parse(&text) {
                prop_assert_eq!(Pattern::parse(&once.to_string()), Ok(once));
            }
        }

        #[test]
        fn pattern_without_wildcards_matches_its_text(
            text in "(/|[a-c]|%61|é| |:|%2f){0,12}",
        ) {
            if let (Ok(pattern), Ok(endpoint)) = (Pattern::parse(&text), Endpoint::parse(&text)) {
                prop_assert!(pattern.matches(&endpoint));
                let text = pattern.to_string();
                prop_assert_eq!(text.as_str(), endpoint.as_str());
            }
        }
    }
}
