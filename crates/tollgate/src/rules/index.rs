//! Which rules can match a request, found without looking at all of them.
//!
//! Each rule is filed once, under the condition whose values the fewest other rules name: ten thousand rules for
//! ten thousand tenants of one endpoint are filed by tenant, not by endpoint. A request looks under each of its own
//! values and gets the few rules filed there; whether they match in full is checked afterwards.

use std::net::IpAddr;

use hashbrown::HashMap;
use ipnet::IpNet;
use smallvec::SmallVec;

use super::pattern::{FewValues, PatternIndex, ShortText};
use super::rule::{Condition, Matcher, Rule};
use crate::identity::{Id, Request};
use crate::method::Method;

/// Positions of rules that may match, in no order yet.
pub(super) type Candidates = SmallVec<[u32; 16]>;

type ByText = HashMap<ShortText, FewValues>;

/// Rules filed under their rarest condition.
#[derive(Debug, Default)]
pub(super) struct Index {
    endpoints: PatternIndex,
    tiers: ByText,
    users: ByText,
    tenants: ByText,
    descriptors: Vec<(Box<str>, ByText)>,
    /// By prefix length: the few lengths in use are tried one after another.
    networks: Vec<(u8, HashMap<IpAddr, Vec<u32>>)>,
    methods: Vec<(Method, Vec<u32>)>,
    unconditional: Vec<u32>,
}

/// A condition that rules can be filed under.
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
    /// Files the rules; `rules[i]` is found as `i`. And under what each is filed: whoever finds it there has met that
    /// condition.
    pub(super) fn new(rules: &[Rule]) -> (Self, Vec<Option<Condition>>) {
        let mut popularity: HashMap<Term, usize> = HashMap::new();
        for term in rules.iter().flat_map(|rule| conditions(&rule.when)).flatten() {
            *popularity.entry(term).or_default() += 1;
        }
        let (mut index, mut filed) = (Index::default(), Vec::with_capacity(rules.len()));
        for (position, rule) in (0u32..).zip(rules) {
            let crowd = |terms: &Vec<Term>| terms.iter().map(|term| popularity[term]).max();
            let terms = conditions(&rule.when).into_iter().min_by_key(crowd).unwrap_or_default();
            filed.push(terms.first().and_then(Term::condition));
            if terms.is_empty() {
                index.unconditional.push(position);
            }
            for term in terms {
                index.file(term, rule, position);
            }
        }
        (index, filed)
    }

    fn file(&mut self, term: Term, rule: &Rule, position: u32) {
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

    /// The rules that may match, each at least once, in ascending order.
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
            && let Some((_, positions)) = self.methods.iter().find(|(filed, _)| *filed == method.counted())
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
    // Most maps are empty: no value is hashed for them.
    if map.is_empty() {
        return;
    }
    if let Some(positions) = id.and_then(|id| map.get(id.as_str().as_bytes())) {
        found.extend_from_slice(positions);
    }
}

/// The value filed under `key`, made if it is new. For lists that stay short.
fn slot<K: PartialEq, V: Default>(list: &mut Vec<(K, V)>, key: K) -> &mut V {
    let position = list.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
        list.push((key, V::default()));
        list.len() - 1
    });
    &mut list[position].1
}

/// The conditions of a rule, each as the terms one of which must hold.
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
