//! Endpoint patterns and their index.
//!
//! A pattern is a path whose segments may be wildcards. There are no partial wildcards and no regular expressions: each
//! segment is compared once, so no pattern needs backtracking or is slow to match.

use std::fmt;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::endpoint::{Endpoint, EndpointError, absolute_form_path, casefold};

/// The maximum length of a pattern in bytes.
const LENGTH_MAX: usize = 512;

/// The maximum number of segments.
const SEGMENTS_MAX: usize = 64;

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
    segments: Box<[Segment]>,
    /// Whether the pattern ends with `*`.
    open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Segment {
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

/// Why a text is not a pattern. Positions are byte offsets.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The text is too long.
    #[error("the pattern is {length} bytes long; the maximum is {LENGTH_MAX}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// There are too many segments.
    #[error("the pattern has more than {SEGMENTS_MAX} segments")]
    TooManySegments,
    /// A scheme and host, which endpoints do not have.
    #[error("the pattern starts with a scheme and a host; it must be a path")]
    AbsoluteForm,
    /// A `*` or `{name}` next to other characters in one segment.
    #[error("the pattern has a wildcard at byte {at} that is not a whole segment")]
    PartialWildcard {
        /// The position of the `*` or `{`.
        at: usize,
    },
    /// A `{` without its `}` in the same segment.
    #[error("the pattern has a `{{` at byte {at} that is not closed")]
    UnclosedBrace {
        /// The position of the `{`.
        at: usize,
    },
    /// A `}` without its `{` in the same segment.
    #[error("the pattern has a `}}` at byte {at} that was not opened")]
    UnopenedBrace {
        /// The position of the `}`.
        at: usize,
    },
    /// Empty braces.
    #[error("the pattern has no name in the braces at byte {at}")]
    EmptyName {
        /// The position of the `{`.
        at: usize,
    },
    /// Something other than a name in braces, such as `{id:[0-9]+}`.
    #[error("the pattern has a name at byte {at} with other characters than letters, digits, `_` and `-`")]
    InvalidName {
        /// The start of the name.
        at: usize,
    },
    /// A duplicate name.
    #[error("the pattern has a name at byte {at} that it used before")]
    DuplicateName {
        /// The start of the second name.
        at: usize,
    },
    /// A query, a fragment or matrix parameters, which endpoints do not have.
    #[error("the pattern has `{found}` at byte {at}, it must be a path only")]
    NotInPath {
        /// The position of the delimiter.
        at: usize,
        /// One of `?`, `#` and `;`.
        found: char,
    },
    /// A `.` or `..` segment, which endpoints do not have.
    #[error("the pattern has a dot segment at byte {at}")]
    DotSegment {
        /// The start of the segment.
        at: usize,
    },
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
            return Err(PatternError::TooLong { length: text.len() });
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
            length if length > LENGTH_MAX => Err(PatternError::TooLong { length }),
            _ => Ok(pattern),
        }
    }

    /// Whether the pattern matches an endpoint.
    pub fn matches(&self, endpoint: &Endpoint<'_>) -> bool {
        self.is_everything() || fits(&self.segments, self.open, endpoint.below_root())
    }

    /// The same pattern for [case-folded](Endpoint::casefold) endpoints.
    pub(super) fn casefold(&self) -> Self {
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

    fn is_everything(&self) -> bool {
        self.open && self.segments.is_empty()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Literal(text) => write!(f, "/{text}")?,
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
            Some((offset, '*')) => Err(PatternError::PartialWildcard { at: at + offset }),
            Some((offset, '}')) => Err(PatternError::UnopenedBrace { at: at + offset }),
            Some((offset, '{')) if part.contains('}') => {
                Err(PatternError::PartialWildcard { at: at + offset })
            }
            Some((offset, '{')) => Err(PatternError::UnclosedBrace { at: at + offset }),
            Some((offset, found)) => Err(PatternError::NotInPath { at: at + offset, found }),
        }
    }

    fn literal(part: &str, at: usize) -> Result<Self, PatternError> {
        let endpoint = Endpoint::parse(part).map_err(|error| PatternError::Endpoint(error.shifted(at)))?;
        match endpoint.below_root() {
            // Only dots vanish in the normal form: an empty part is not read at all.
            "" => Err(PatternError::DotSegment { at }),
            literal => Ok(Self::Literal(literal.into())),
        }
    }

    fn named(part: &str, at: usize) -> Result<Self, PatternError> {
        let Some((name, behind)) = part.get(1..).and_then(|inside| inside.split_once('}')) else {
            return Err(PatternError::UnclosedBrace { at });
        };
        if !behind.is_empty() {
            return Err(PatternError::PartialWildcard { at });
        }
        if name.is_empty() {
            return Err(PatternError::EmptyName { at });
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
            return Err(PatternError::InvalidName { at: at + 1 });
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
        return Err(PatternError::DuplicateName { at: at + 1 });
    }
    segments.push(segment);
    Ok(())
}

/// Whether a path has these segments and, if `open`, at least one more.
fn fits(segments: &[Segment], open: bool, path: &str) -> bool {
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
fn split_first(path: &str) -> Option<(&str, &str)> {
    if path.is_empty() {
        return None;
    }
    // Segments are short: looking at each byte is quicker than any cleverer search.
    match path.bytes().position(|byte| byte == b'/') {
        Some(end) => Some((&path[..end], &path[end + 1..])),
        None => Some((path, "")),
    }
}

/// An index of patterns: the cost of a lookup depends on the depth of the path, not on the number of patterns.
///
/// A tree with one level per segment. At each node at most two branches match a segment, the literal and the wildcard, and
/// every node has one parent, so a lookup visits no node twice. Patterns that mix literals and wildcards at the same
/// positions are followed in parallel, at worst all of them. A lookup does not allocate.
#[derive(Debug, Clone, Default)]
pub struct PatternIndex {
    root: Node,
    /// Values of `/*`, the only pattern with a final `*` that also matches without a further segment.
    everywhere: Vec<u32>,
}

/// Stored inline, which saves a cache miss.
pub(super) type ShortText = SmallVec<[u8; 16]>;
pub(super) type FewValues = SmallVec<[u32; 4]>;

#[derive(Debug, Clone, Default)]
struct Node {
    /// Values of patterns that end here.
    here: FewValues,
    /// Values of patterns that end with `*` after this node.
    below: FewValues,
    /// The branches. Boxed, because most nodes are leaves and stay small without them.
    onward: Option<Box<Onward>>,
}

#[derive(Debug, Clone, Default)]
struct Onward {
    literals: HashMap<ShortText, Node>,
    wildcard: Option<Node>,
    /// The rest of the only pattern through this node, compared at once. It becomes nodes when a second pattern is added;
    /// a chain of nodes would miss the cache at every segment.
    tail: Option<Tail>,
}

#[derive(Debug, Clone)]
struct Tail {
    segments: Box<[Segment]>,
    end: End,
}

/// How a pattern ends, and its value.
#[derive(Debug, Clone, Copy)]
struct End {
    open: bool,
    value: u32,
}

impl PatternIndex {
    /// Adds a pattern and the value to report when it matches.
    pub fn insert(&mut self, pattern: &Pattern, value: u32) {
        if pattern.is_everything() {
            self.everywhere.push(value);
        } else {
            self.root.insert(&pattern.segments, End { open: pattern.open, value });
        }
    }

    /// Calls `f` with the value of each matching pattern, once per insertion, in no particular order.
    pub fn for_each_match(&self, endpoint: &Endpoint<'_>, mut f: impl FnMut(u32)) {
        self.everywhere.iter().copied().for_each(&mut f);
        self.walk(endpoint, |node, rest| node.for_each_end(rest, &mut f));
    }

    /// Visits the nodes that match a prefix of the endpoint, each with the rest of the path.
    fn walk(&self, endpoint: &Endpoint<'_>, mut visit: impl FnMut(&Node, &str)) {
        // Depth first: where both branches fit, one waits while the other is followed. So at most one waits per
        // level, and this never grows past its place on the stack.
        let mut waiting: SmallVec<[(&Node, &str); SEGMENTS_MAX]> = SmallVec::new();
        let (mut node, mut rest) = (&self.root, endpoint.below_root());
        loop {
            visit(node, rest);
            let (literal, wildcard, below) = match (&node.onward, split_first(rest)) {
                (Some(onward), Some((segment, below))) => {
                    (onward.literals.get(segment.as_bytes()), onward.wildcard.as_ref(), below)
                }
                _ => (None, None, ""),
            };
            (node, rest) = match (literal, wildcard) {
                (Some(literal), Some(wildcard)) => {
                    waiting.push((wildcard, below));
                    (literal, below)
                }
                (Some(only), None) | (None, Some(only)) => (only, below),
                (None, None) => match waiting.pop() {
                    Some(branch) => branch,
                    None => return,
                },
            };
        }
    }
}

impl Node {
    /// The values of patterns that end at this node for the rest of a path.
    #[inline]
    fn for_each_end(&self, rest: &str, f: &mut impl FnMut(u32)) {
        let values = if rest.is_empty() { &self.here } else { &self.below };
        values.iter().copied().for_each(&mut *f);
        if let Some(Tail { segments, end }) = self.onward.as_ref().and_then(|onward| onward.tail.as_ref())
            && fits(segments, end.open, rest)
        {
            f(end.value);
        }
    }

    fn insert(&mut self, segments: &[Segment], end: End) {
        if self.is_vacant() && !segments.is_empty() {
            self.onward.get_or_insert_default().tail = Some(Tail { segments: segments.into(), end });
            return;
        }
        if let Some(earlier) = self.onward.as_mut().and_then(|onward| onward.tail.take()) {
            self.branch(&earlier.segments, earlier.end);
        }
        self.branch(segments, end);
    }

    fn branch(&mut self, segments: &[Segment], end: End) {
        let next = match segments.first() {
            Some(Segment::Literal(text)) => {
                self.onward.get_or_insert_default().literals.entry(text.as_bytes().into()).or_default()
            }
            Some(Segment::Any | Segment::Named(_)) => {
                self.onward.get_or_insert_default().wildcard.get_or_insert_default()
            }
            None if end.open => return self.below.push(end.value),
            None => return self.here.push(end.value),
        };
        next.insert(&segments[1..], end);
    }

    fn is_vacant(&self) -> bool {
        let Self { here, below, onward } = self;
        here.is_empty() && below.is_empty() && onward.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

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

    fn lookup(index: &PatternIndex, path: &str) -> Vec<u32> {
        let mut found = Vec::new();
        index.for_each_match(&endpoint(path), |value| found.push(value));
        found.sort_unstable();
        found
    }

    fn nodes_visited(index: &PatternIndex, path: &str) -> usize {
        let mut count = 0;
        index.walk(&endpoint(path), |_, _| count += 1);
        count
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
            assert_eq!(refusal(text), PatternError::PartialWildcard { at }, "{text}");
        }
        assert_eq!(
            refusal("/é/a*").to_string(),
            "the pattern has a wildcard at byte 5 that is not a whole segment"
        );
    }

    #[test]
    fn braces_without_name_are_rejected() {
        assert_eq!(refusal("/a/{b"), PatternError::UnclosedBrace { at: 3 });
        assert_eq!(refusal("/a/x{b"), PatternError::UnclosedBrace { at: 4 });
        assert_eq!(refusal("/{a/b}"), PatternError::UnclosedBrace { at: 1 });
        assert_eq!(refusal("/a/b}"), PatternError::UnopenedBrace { at: 4 });
        assert_eq!(refusal("/a/{}"), PatternError::EmptyName { at: 3 });
        assert_eq!(refusal("/{id:[0-9]+}"), PatternError::InvalidName { at: 2 });
        assert_eq!(refusal("/{*rest}"), PatternError::InvalidName { at: 2 });
        assert_eq!(refusal("/{{a}}"), PatternError::PartialWildcard { at: 1 });
        assert_eq!(refusal("/{a}/b/{a}"), PatternError::DuplicateName { at: 8 });
    }

    #[test]
    fn patterns_that_never_match_are_rejected() {
        assert_eq!(refusal("/a?b=*"), PatternError::NotInPath { at: 2, found: '?' });
        assert_eq!(refusal("/a#b"), PatternError::NotInPath { at: 2, found: '#' });
        assert_eq!(refusal("/a;b"), PatternError::NotInPath { at: 2, found: ';' });
        assert_eq!(refusal("/a/../b"), PatternError::DotSegment { at: 3 });
        assert_eq!(refusal("/a/%2e"), PatternError::DotSegment { at: 3 });
        assert_eq!(refusal("https://host/a"), PatternError::AbsoluteForm);
        assert_eq!(refusal("/a/b%zz"), PatternError::Endpoint(EndpointError::MalformedEscape { at: 4 }));
        assert_eq!(refusal("/a/\\"), PatternError::Endpoint(EndpointError::Backslash { at: 3 }));
    }

    #[test]
    fn patterns_are_bounded() {
        assert!(Pattern::parse(&"a".repeat(511)).is_ok());
        assert_eq!(refusal(&"a".repeat(513)), PatternError::TooLong { length: 513 });
        assert_eq!(refusal(&" ".repeat(200)), PatternError::TooLong { length: 601 }, "in its normal form");
        assert!(Pattern::parse(&"/*".repeat(64)).is_ok());
        assert_eq!(refusal(&"/*".repeat(65)), PatternError::TooManySegments);
    }

    #[test]
    fn lookup_visits_each_node_once() {
        let mut index = PatternIndex::default();
        let mut nodes_max = 1;
        // All mixtures of `a` and `*` at the front, and a long way down to the segment that never fits.
        for mixture in 0..1024_u32 {
            let front = (0..10).map(|bit| if mixture >> bit & 1 == 0 { "/a" } else { "/*" });
            let text = front.chain(iter::repeat_n("/a", 53)).chain(["/z"]).collect::<String>();
            index.insert(&pattern(&text), mixture);
            nodes_max += 64;
        }
        let path = "/a".repeat(64);
        assert!(nodes_visited(&index, &path) <= nodes_max);
        assert_eq!(lookup(&index, &path), []);
        let deeper = "/a".repeat(1000);
        assert!(nodes_visited(&index, &deeper) <= nodes_max);
    }

    #[test]
    fn lookup_cost_is_independent_of_pattern_count() {
        let visited = |patterns: u32| {
            let mut index = PatternIndex::default();
            for number in 0..patterns {
                index.insert(&pattern(&format!("/api/v{number}/users/{{id}}")), number);
            }
            assert_eq!(lookup(&index, "/api/v3/users/x"), [3]);
            nodes_visited(&index, "/api/v3/users/x")
        };
        assert_eq!(visited(10), visited(10_000));
    }

    #[test]
    fn each_insertion_is_reported_once() {
        let mut index = PatternIndex::default();
        for (text, value) in
            [("/*", 1), ("/a/*", 2), ("/a/{x}", 2), ("/*/b", 3), ("/a/b", 4), ("/a/b", 4), ("/", 5)]
        {
            index.insert(&pattern(text), value);
        }
        assert_eq!(lookup(&index, "/a/b"), [1, 2, 2, 3, 4, 4]);
        assert_eq!(lookup(&index, "/a"), [1]);
        assert_eq!(lookup(&index, "/"), [1, 5]);
        assert_eq!(lookup(&PatternIndex::default(), "/"), []);
    }

    fn any_pattern() -> impl Strategy<Value = String> {
        let segment = proptest::sample::select(&["a", "b", "c", "*", "*", "{x}", "é"][..]);
        proptest::collection::vec(segment, 0..6).prop_map(|segments| format!("/{}", segments.join("/")))
    }

    fn any_path() -> impl Strategy<Value = String> {
        let segment = proptest::sample::select(&["a", "b", "c", "%C3%A9", "*"][..]);
        proptest::collection::vec(segment, 0..7).prop_map(|segments| format!("/{}", segments.join("/")))
    }

    proptest! {
        #[test]
        fn index_agrees_with_single_patterns(
            texts in proptest::collection::vec(any_pattern(), 0..40),
            paths in proptest::collection::vec(any_path(), 1..10),
        ) {
            let patterns: Vec<_> = texts.iter().filter_map(|text| Pattern::parse(text).ok()).collect();
            let mut index = PatternIndex::default();
            for (value, pattern) in (0..).zip(&patterns) {
                index.insert(pattern, value);
            }
            for path in &paths {
                let matching = (0..).zip(&patterns).filter(|(_, pattern)| pattern.matches(&endpoint(path)));
                prop_assert_eq!(lookup(&index, path), matching.map(|(value, _)| value).collect::<Vec<_>>());
            }
        }

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
