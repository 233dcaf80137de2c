use tollgate::identity::IpPrefixes;
use tollgate::{Endpoint, Limiter, MemoryCounters, RuleSet, Span};

use super::*;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

fn at(secs: u64) -> Timestamp {
    START + Span::from_secs(secs)
}

fn user<'a>(tenant: Option<&'a str>, identifier: &'a str) -> WindowKey<'a> {
    WindowKey { identifier, tenant, route: "/x" }
}

fn counts(requests: u64, refused: u64) -> RequestCounts {
    RequestCounts { requests, refused }
}

fn id(text: &str) -> Id<'_> {
    Id::parse(text).unwrap()
}

/// Refuses every request but the first of each user.
struct Refusals {
    limiter: Limiter<MemoryCounters>,
    top: Top,
}

impl Refusals {
    fn new() -> Self {
        let rules = RuleSet::from_toml("default_limit = 1\ndefault_window = 3600").unwrap();
        Refusals { limiter: Limiter::new(rules, MemoryCounters::default()), top: Top::default() }
    }

    fn send(&self, user: &str, endpoint: &str, now: Timestamp) {
        let request = Request { user: Some(id(user)), ..Request::new(Endpoint::parse(endpoint).unwrap()) };
        let decision = self.limiter.check_now(&request, now);
        self.top.note_refusal(Identifier::of(&request, IpPrefixes::DEFAULT).unwrap(), &request, &decision);
    }
}

fn named(list: &TopList) -> Vec<(Option<&str>, &str, u64, u64)> {
    let entry = |entry: &'_ TopEntry| (entry.count, entry.refused);
    let names = list.entries.iter().map(|each| (each.tenant.as_deref(), &*each.name));
    names
        .zip(list.entries.iter().map(entry))
        .map(|((tenant, name), (count, refused))| (tenant, name, count, refused))
        .collect()
}

#[test]
fn busiest_and_most_refused_are_listed_with_their_tenant() {
    let top = Top::default();
    top.add_window(at(0), &user(Some("acme"), "user:bob"), counts(3, 0));
    top.add_window(at(1), &user(Some("acme"), "user:bob"), counts(2, 2));
    top.add_window(at(1), &user(None, "user:bob"), counts(2, 0));
    top.add_rule(at(1), "default", Some("acme"), counts(5, 2));
    top.add_rule(at(1), "default", None, counts(2, 0));
    let summary = top.summary(at(10));
    assert_eq!((summary.requests, summary.refused, summary.window_seconds), (7, 2, 11));
    assert_eq!(named(&summary.clients), [(Some("acme"), "user:bob", 5, 2), (None, "user:bob", 2, 0)]);
    assert_eq!(named(&summary.refused_clients), [(Some("acme"), "user:bob", 2, 2)]);
    assert_eq!(named(&summary.rules), [(None, "default", 7, 2), (Some("acme"), "default", 5, 2)]);
    assert_eq!(named(&summary.endpoints), [(None, "/x", 7, 2), (Some("acme"), "/x", 5, 2)]);
}

#[test]
fn requests_leave_after_a_minute() {
    let top = Top::default();
    for second in 0..60 {
        top.add_window(at(second), &user(None, "user:alice"), counts(1, 0));
    }
    let counted = |now| top.summary(now).requests;
    assert_eq!((counted(at(59)), counted(at(60)), counted(at(75))), (60, 45, 30));
    assert_eq!(counted(at(120)), 0);
    top.add_window(at(120), &user(None, "user:alice"), counts(1, 0));
    assert_eq!(named(&top.summary(at(120)).clients), [(None, "user:alice", 1, 0)]);
}

#[test]
fn flood_of_fake_clients_does_not_hide_a_busy_one() {
    let top = Top::default();
    for number in 0..20_000 {
        top.add_window(at(0), &user(None, &format!("user:{number}")), counts(1, 0));
        if number % 2_000 == 0 {
            top.add_window(at(0), &user(None, "user:busy"), counts(40, 0));
        }
    }
    let clients = top.summary(at(1)).clients;
    let busy = &clients.entries[0];
    assert_eq!(busy.name, "user:busy");
    assert!(busy.count - busy.error <= 400 && 400 <= busy.count, "{busy:?}");
    assert!(clients.entries.len() <= 2 * COUNTERS_MAX);
}

#[test]
fn long_endpoints_are_cut_and_keys_of_tollgate_are_hidden() {
    let top = Top::default();
    let long = format!("/{}", "é".repeat(300));
    let secret = "user:tg_admin_0123456789abcdefghijklmnopqrstuvwxyz";
    top.add_window(at(0), &WindowKey { identifier: secret, tenant: None, route: &long }, counts(1, 0));
    let summary = top.summary(at(0));
    assert!(summary.endpoints.entries[0].name.len() <= NAME_BYTES_MAX);
    assert_eq!(named(&summary.clients), [(None, "***", 1, 0)]);
}

#[test]
fn latest_refusals_are_kept_with_their_reason() {
    let refusals = Refusals::new();
    (0..3).for_each(|_| refusals.send("bob", "/x", at(0)));
    let recent = refusals.top.summary(at(10)).recent;
    let [refusal] = &recent[..] else { panic!("{recent:?}") };
    assert_eq!((refusal.times, &*refusal.identifier, &*refusal.endpoint), (2, "user:bob", "/x"));
    assert_eq!((refusal.rule.as_deref(), &*refusal.reason), (Some("default"), "over_limit"));
    assert_eq!((refusal.at_micros, refusal.retry_after), (at(0).as_micros(), Some(3_600)));
}

#[test]
fn refusals_of_a_busy_client_do_not_push_out_the_others() {
    let refusals = Refusals::new();
    for user in ["quiet", "busy"] {
        (0..2).for_each(|_| refusals.send(user, "/x", at(0)));
    }
    (0..5_000).for_each(|_| refusals.send("busy", "/x", at(1)));
    let recent = refusals.top.summary(at(2)).recent;
    let seen: Vec<(&str, u64)> = recent.iter().map(|each| (&*each.identifier, each.times)).collect();
    assert_eq!(seen, [("user:busy", 5_001), ("user:quiet", 1)]);
}

#[test]
fn oldest_refusals_are_forgotten() {
    let refusals = Refusals::new();
    for second in 0..3_000 {
        refusals.send("bob", &format!("/{second}"), at(second));
        refusals.send("bob", "/always", at(second));
    }
    let recent = refusals.top.summary(at(3_000)).recent;
    assert!((512..=1_024).contains(&recent.len()), "{}", recent.len());
    assert_eq!((&*recent[0].endpoint, &*recent[1].endpoint), ("/2999", "/always"));
    assert!(recent[1].times > 2_990, "{:?}", recent[1]);
}

#[test]
fn refusal_does_not_wait_for_a_reader() {
    let refusals = Refusals::new();
    refusals.send("bob", "/x", at(0));
    let reader = refusals.top.refusals.lock();
    refusals.send("bob", "/x", at(1));
    drop(reader);
    assert!(refusals.top.summary(at(1)).recent.is_empty());
}
