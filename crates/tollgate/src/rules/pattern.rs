//! Which endpoints a rule means.
//!
//! A pattern is a path whose segments may be wildcards. There are no partial wildcards and no regular
//! expressions: each segment of a path is compared once with one segment of the pattern, so there is nothing
//! to backtrack over and no pattern that is slow to match (threat 44).

use std::fmt;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::endpoint::{Endpoint, EndpointError, absolute_form_path, casefold};

/// The longest pattern, in bytes, as it was written and in its normal form.
const LENGTH_MAX: usize = 512;

/// The most segments a pattern may have.
const SEGMENTS_MAX: usize = 64;

/// The endpoints that a rule applies to, as written in the rule.
///
/// | segment  | matches |
/// |----------|---------|
/// | `users`  | itself, in every spelling that is the same [`Endpoint`] |
/// | `{id}`   | exactly one segment |
/// | `*`      | exactly one segment; as the last one, everything below |
///
/// `/api/*` matches `/api/x` and `/api/x/y` but not `/api`, which is not below itself: a rule that means both
/// lists both. `/*`, or `*` alone, matches every endpoint, the root too.
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
    /// Whether a `*` stands behind the segments.
    open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Segment {
    Literal(Box<str>),
    Any,
    Named(Box<str>),
}

/// How narrowly a pattern describes its endpoints; the narrower is the greater.
///
/// A pattern that matches a part of what another one matches is always the more specific of the two: the one
/// with more literal segments, then the one with more single wildcards, then the one without a `*` at its
/// end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Specificity {
    // The order of the fields is the order of comparison.
    literals: usize,
    singles: usize,
    closed: bool,
}

/// Why a text is no pattern. Positions are counted in bytes from 0.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The text is too long.
    #[error("the pattern is {length} bytes long, the most is {LENGTH_MAX}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// There are too many segments.
    #[error("the pattern has more than {SEGMENTS_MAX} segments")]
    TooManySegments,
    /// A scheme and host, which endpoints do not have: the pattern would never match.
    #[error("the pattern begins with a scheme and a host, it must be a path only")]
    AbsoluteForm,
    /// A `*` or `{name}` next to other characters in one segment.
    #[error("the pattern has a wildcard at byte {at} that is not a whole segment")]
    PartialWildcard {
        /// Where the `*` or the `{` stands.
        at: usize,
    },
    /// A `{` without its `}` in the same segment.
    #[error("the pattern has a `{{` at byte {at} that is not closed")]
    UnclosedBrace {
        /// Where the `{` stands.
        at: usize,
    },
    /// A `}` without its `{` in the same segment.
    #[error("the pattern has a `}}` at byte {at} that was not opened")]
    UnopenedBrace {
        /// Where the `}` stands.
        at: usize,
    },
    /// Nothing between the braces.
    #[error("the pattern has no name in the braces at byte {at}")]
    EmptyName {
        /// Where the `{` stands.
        at: usize,
    },
    /// Something else than a name between the braces, such as the `{id:[0-9]+}` of some routers.
    #[error("the pattern has a name at byte {at} with other characters than letters, digits, `_` and `-`")]
    InvalidName {
        /// Where the name begins.
        at: usize,
    },
    /// A name that an earlier segment has already.
    #[error("the pattern has a name at byte {at} that it used before")]
    DuplicateName {
        /// Where the later name begins.
        at: usize,
    },
    /// A query, a fragment or matrix parameters. Endpoints have none left: the pattern would never match.
    #[error("the pattern has `{found}` at byte {at}, it must be a path only")]
    NotInPath {
        /// Where it stands.
        at: usize,
        /// One of `?`, `#` and `;`.
        found: char,
    },
    /// A `.` or `..` segment. Endpoints have none left: the pattern would never match.
    #[error("the pattern has a dot segment at byte {at}")]
    DotSegment {
        /// Where the segment begins.
        at: usize,
    },
    /// A segment that no endpoint may have. The positions inside are those of the pattern.
    #[error("the pattern could not be an endpoint")]
    Endpoint(#[source] EndpointError),
}

impl Pattern {
    /// Reads a pattern. As for endpoints, repeated slashes, trailing ones and a missing leading one do not
    /// matter.
    ///
    /// # Errors
    ///
    /// When the pattern could never match, or does not mean what it seems to: see [`PatternError`].
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

    /// Whether a rule with this pattern applies to the endpoint.
    pub fn matches(&self, endpoint: &Endpoint<'_>) -> bool {
        self.is_everything() || fits(&self.segments, self.open, endpoint.below_root())
    }

    /// The same pattern for endpoints [without case](Endpoint::casefold).
    pub(super) fn casefold(&self) -> Self {
        let fold = |segment: &Segment| match segment {
            Segment::Literal(text) => {
                casefold(text).map_or_else(|| segment.clone(), |text| Segment::Literal(text.into()))
            }
            Segment::Any | Segment::Named(_) => segment.clone(),
        };
        Pattern { segments: self.segments.iter().map(fold).collect(), open: self.open }
    }

    /// How narrow the pattern is, to decide which of two matching ones goes first.
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
    /// Reads one segment that begins at byte `at` of its pattern.
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

/// The first segment of a path and what is below it. In a normal form only the end of the path is empty.
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

/// Many patterns, looked up together: the cost depends on the path's depth, not on how many patterns there
/// are.
///
/// It is a tree with one level per segment. From each node at most two branches fit a segment, the literal
/// and the wildcard, and a node can be reached in one way only. So a lookup visits no node twice: it cannot
/// backtrack, however the patterns are chosen. Only patterns with literals and wildcards mixed in the same
/// places are followed side by side, at worst all of them. A lookup allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct PatternIndex {
    root: Node,
    /// Values of `/*`, the only open pattern that matches without a segment below its place.
    everywhere: Vec<u32>,
}

/// A text or a few values that lie where they are looked for: one miss of the cache less for each.
pub(super) type ShortText = SmallVec<[u8; 16]>;
pub(super) type FewValues = SmallVec<[u32; 4]>;

#[derive(Debug, Clone, Default)]
struct Node {
    /// Values of the patterns that end here.
    here: FewValues,
    /// Values of the patterns that go on with a last `*`.
    below: FewValues,
    /// Where other patterns go on. Elsewhere, because most nodes are ends, and those lie close together without it.
    onward: Option<Box<Onward>>,
}

#[derive(Debug, Clone, Default)]
struct Onward {
    literals: HashMap<ShortText, Node>,
    wildcard: Option<Node>,
    /// What is left of the only pattern that leads here. It branches out into nodes when a second one comes:
    /// most of a long pattern is compared in one go, where a chain of nodes would miss the cache at every
    /// segment.
    tail: Option<Tail>,
}

#[derive(Debug, Clone)]
struct Tail {
    segments: Box<[Segment]>,
    end: End,
}

/// How a pattern ends, and what to report then.
#[derive(Debug, Clone, Copy)]
struct End {
    open: bool,
    value: u32,
}

impl PatternIndex {
    /// Adds a pattern, and the value to report when it matches. Values need not differ.
    pub fn insert(&mut self, pattern: &Pattern, value: u32) {
        if pattern.is_everything() {
            self.everywhere.push(value);
        } else {
            self.root.insert(&pattern.segments, End { open: pattern.open, value });
        }
    }

    /// Calls `f` with the value of each pattern that matches, once for each time it was inserted, in no
    /// order.
    pub fn for_each_match(&self, endpoint: &Endpoint<'_>, mut f: impl FnMut(u32)) {
        self.everywhere.iter().copied().for_each(&mut f);
        self.walk(endpoint, |node, rest| node.for_each_end(rest, &mut f));
    }

    /// Visits the nodes that fit the beginning of the endpoint, each with the rest of the path.
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
    /// The values of the patterns that this node alone completes for the rest of a path.
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
    fn a_literal_pattern_matches_its_endpoint_only() {
        assert_matches(
            "/api/v1",
            &["/api/v1", "api//v1/", "/%61pi/v1?x"],
            &["/", "/api", "/api/v1/x", "/API/v1"],
        );
        assert_matches("/", &["/", ""], &["/a", "/*"]);
        assert_matches("", &["/"], &["/a"]);
    }

    #[test]
    fn a_star_in_the_middle_is_exactly_one_segment() {
        assert_matches("/a/*/c", &["/a/b/c", "/a/c/c"], &["/a/c", "/a/b/b/c", "/a/b", "/a/b/c/d"]);
        assert_matches("/*/c", &["/a/c"], &["/c", "/", "/a/b/c"]);
    }

    #[test]
    fn a_star_at_the_end_is_everything_below_but_not_the_place_itself() {
        assert_matches(
            "/api/v1/*",
            &["/api/v1/x", "/api/v1/x/y/z", "/api/v1/%2F"],
            &["/api/v1", "/api/v1/", "/api"],
        );
        assert_matches("/a/*/*", &["/a/b/c", "/a/b/c/d"], &["/a", "/a/b"]);
        assert_matches("/a/*/", &["/a/b/c"], &["/a"]);
    }

    #[test]
    fn a_star_alone_is_everything_even_the_root() {
        for text in ["*", "/*", "//*/"] {
            assert_matches(text, &["/", "/a", "/a/b", "*"], &[]);
            assert_eq!(pattern(text).to_string(), "/*");
        }
    }

    #[test]
    fn a_name_is_exactly_one_segment_even_at_the_end() {
        assert_matches("/users/{id}", &["/users/7", "/users/%2F"], &["/users", "/users/7/posts"]);
        assert_matches("{any}", &["/a"], &["/", "/a/b"]);
    }

    #[test]
    fn literals_are_normalised_like_endpoints() {
        assert_matches("/caf%c3%a9", &["/café", "/caf%C3%A9"], &["/cafe"]);
        assert_matches("/%61 b/%7Bx%7d", &["/a%20b/{x}"], &["/a%20b/x"]);
        assert_matches("search", &["/search"], &[]);
        assert_matches("/pkg.Service/Method:run", &["/pkg.Service/Method:run"], &["/pkg.Service/Method"]);
    }

    #[test]
    fn display_gives_the_pattern_back_in_normal_form() {
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
    fn the_more_specific_pattern_is_the_greater() {
        let ascending =
            ["/*", "/", "/*/*", "/{x}", "/{x}/{y}", "/a/*", "/a", "/a/{x}/*", "/a/{x}", "/a/b/*", "/a/b"];
        assert!(ascending.map(|text| pattern(text).specificity()).is_sorted_by(|a, b| a < b));
        assert_eq!(pattern("/a/*/c").specificity(), pattern("/a/{b}/c").specificity());
    }

    #[test]
    fn wildcards_that_are_not_a_whole_segment_are_refused() {
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
    fn braces_that_hold_no_name_are_refused() {
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
    fn patterns_that_could_never_match_are_refused() {
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
    fn t44_patterns_are_bounded_in_length_and_depth() {
        assert!(Pattern::parse(&"a".repeat(511)).is_ok());
        assert_eq!(refusal(&"a".repeat(513)), PatternError::TooLong { length: 513 });
        assert_eq!(refusal(&" ".repeat(200)), PatternError::TooLong { length: 601 }, "in its normal form");
        assert!(Pattern::parse(&"/*".repeat(64)).is_ok());
        assert_eq!(refusal(&"/*".repeat(65)), PatternError::TooManySegments);
    }

    #[test]
    fn t44_patterns_made_to_backtrack_visit_each_node_at_most_once() {
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
    fn ten_thousand_patterns_cost_what_ten_do() {
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
    fn each_insert_is_reported_once() {
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
        fn the_index_agrees_with_each_pattern(
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
        fn any_text_is_a_pattern_that_survives_display_or_an_error(
            text in "(/|[a-c]|\\*|\\{|\\}|%2e|%25|é|\\PC){0,12}",
        ) {
            if let Ok(once) = Pattern::parse(&text) {
                prop_assert_eq!(Pattern::parse(&once.to_string()), Ok(once));
            }
        }

        #[test]
        fn a_pattern_without_wildcards_matches_what_is_spelled_like_it(
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
