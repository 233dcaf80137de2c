//! The rule index: finds the rules that may match a request without visiting all of them.
//!
//! Each rule is indexed by its most selective condition, the one whose values the fewest other rules name: ten
//! thousand rules for ten thousand tenants on one endpoint are indexed by tenant. A request looks up each of its values;
//! the remaining conditions of the candidates are checked afterwards.

use std::net::IpAddr;

use hashbrown::HashMap;
use ipnet::IpNet;
use smallvec::SmallVec;

use super::pattern_index::{FewValues, PatternIndex, ShortText};
use super::rule::{Condition, Matcher, Rule};
use crate::identity::{Id, Request};
use crate::method::Method;

/// The positions of rules that may match.
pub(super) type Candidates = SmallVec<[u32; 16]>;

type ByText = HashMap<ShortText, FewValues>;

/// Rules by their most selective condition.
#[derive(Debug, Default)]
pub(super) struct Index {
    endpoints: PatternIndex,
    tiers: ByText,
    users: ByText,
    tenants: ByText,
    descriptors: Vec<(Box<str>, ByText)>,
    /// By prefix length; each length in use is looked up.
    networks: Vec<(u8, HashMap<IpAddr, Vec<u32>>)>,
    methods: Vec<(Method, Vec<u32>)>,
    unconditional: Vec<u32>,
}

/// A condition value that rules can be indexed by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Term {
    Endpoint(String),
    Tier(Box<str>),
    User(Box<str>),
    Tenant(Box<str>),
    Descriptor(Box<str>, Box<str>),
    Network(IpNet),
    Method(Method),
}

impl Term {
    fn condition(&self) -> Option<Condition> {
        match self {
            Term::Endpoint(_) => Some(Condition::Endpoint),
            Term::Tier(_) => Some(Condition::Tier),
            Term::User(_) => Some(Condition::User),
            Term::Tenant(_) => Some(Condition::Tenant),
            Term::Descriptor(..) | Term::Network(_) | Term::Method(_) => None,
        }
    }
}

impl Index {
    /// Indexes the rules by position. Also returns the condition that each rule is indexed by: it holds for every request
    /// that finds the rule.
    pub(super) fn new(rules: &[Rule]) -> (Self, Vec<Option<Condition>>) {
        let mut frequencies: HashMap<Term, usize> = HashMap::new();
        for term in rules.iter().flat_map(|rule| conditions(&rule.when)).flatten() {
            *frequencies.entry(term).or_default() += 1;
        }
        let (mut index, mut indexed_by) = (Index::default(), Vec::with_capacity(rules.len()));
        for (position, rule) in (0u32..).zip(rules) {
            let frequency = |terms: &Vec<Term>| terms.iter().map(|term| frequencies[term]).max();
            let terms = conditions(&rule.when).into_iter().min_by_key(frequency).unwrap_or_default();
            indexed_by.push(terms.first().and_then(Term::condition));
            if terms.is_empty() {
                index.unconditional.push(position);
            }
            for term in terms {
                index.insert(term, rule, position);
            }
        }
        (index, indexed_by)
    }

    fn insert(&mut self, term: Term, rule: &Rule, position: u32) {
        match term {
            Term::Endpoint(text) => {
                let pattern = rule.when.endpoints.iter().find(|pattern| pattern.to_string() == text);
                if let Some(pattern) = pattern {
                    self.endpoints.insert(pattern, position);
                }
            }
            Term::Tier(tier) => self.tiers.entry(tier.as_bytes().into()).or_default().push(position),
            Term::User(user) => self.users.entry(user.as_bytes().into()).or_default().push(position),
            Term::Tenant(tenant) => self.tenants.entry(tenant.as_bytes().into()).or_default().push(position),
            Term::Descriptor(name, value) => {
                slot(&mut self.descriptors, name).entry(value.as_bytes().into()).or_default().push(position);
            }
            Term::Network(net) => {
                let network = slot(&mut self.networks, net.prefix_len());
                network.entry(net.network()).or_default().push(position);
            }
            Term::Method(method) => slot(&mut self.methods, method).push(position),
        }
    }

    /// The rules that may match, in evaluation order.
    pub(super) fn candidates(&self, request: &Request<'_>) -> Candidates {
        let mut found: Candidates = SmallVec::from_slice(&self.unconditional);
        self.endpoints.for_each_match(&request.endpoint, |position| found.push(position));
        let by_text =
            [(&self.tiers, request.tier), (&self.users, request.user), (&self.tenants, request.tenant)];
        for (map, id) in by_text {
            look_up(map, id, &mut found);
        }
        for (name, map) in &self.descriptors {
            look_up(map, request.descriptor(name), &mut found);
        }
        if let Some(method) = request.method
            && let Some((_, positions)) = self.methods.iter().find(|(known, _)| *known == method.counted())
        {
            found.extend_from_slice(positions);
        }
        self.look_up_ip(request, &mut found);
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    fn look_up_ip(&self, request: &Request<'_>, found: &mut Candidates) {
        let Some(ip) = request.ip.map(|ip| ip.to_canonical()) else { return };
        for (length, networks) in &self.networks {
            if let Ok(net) = IpNet::new(ip, *length)
                && let Some(positions) = networks.get(&net.network())
            {
                found.extend_from_slice(positions);
            }
        }
    }
}

#[inline]
fn look_up(map: &ByText, id: Option<Id<'_>>, found: &mut Candidates) {
    // Most maps are empty; then nothing is hashed.
    if map.is_empty() {
        return;
    }
    if let Some(positions) = id.and_then(|id| map.get(id.as_str().as_bytes())) {
        found.extend_from_slice(positions);
    }
}

/// The entry of `key` in a short list, added if missing.
fn slot<K: PartialEq, V: Default>(list: &mut Vec<(K, V)>, key: K) -> &mut V {
    let position = list.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
        list.push((key, V::default()));
        list.len() - 1
    });
    &mut list[position].1
}

/// The conditions of a rule, each as a list of alternatives.
fn conditions(when: &Matcher) -> Vec<Vec<Term>> {
    let texts = |values: &[Box<str>], term: fn(Box<str>) -> Term| values.iter().cloned().map(term).collect();
    let mut all: Vec<Vec<Term>> = vec![
        when.endpoints.iter().map(|pattern| Term::Endpoint(pattern.to_string())).collect(),
        texts(&when.tiers, Term::Tier),
        texts(&when.users, Term::User),
        texts(&when.tenants, Term::Tenant),
        when.ips.iter().map(|net| Term::Network(net.trunc())).collect(),
        when.methods.iter().map(|method| Term::Method(method.counted())).collect(),
    ];
    for (name, values) in &when.descriptors {
        all.push(values.iter().map(|value| Term::Descriptor(name.clone(), value.clone())).collect());
    }
    all.retain(|terms| !terms.is_empty());
    all
}
