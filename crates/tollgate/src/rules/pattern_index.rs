//! The index of endpoint patterns.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::pattern::{Pattern, SEGMENTS_MAX, Segment, fits, split_first};
use crate::endpoint::Endpoint;

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

    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    fn endpoint(raw: &str) -> Endpoint<'_> {
        Endpoint::parse(raw).unwrap()
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
    }
}
