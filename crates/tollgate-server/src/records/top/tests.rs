use tollgate::{ApiKey, Client, Endpoint, Limiter, MemoryCounters, Request, RuleSet, Span};

use super::*;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

fn at(secs: u64) -> Timestamp {
    START + Span::from_secs(secs)
}

/// Decides requests by these rules, and offers the decisions.
struct Traffic {
    limiter: Limiter<MemoryCounters>,
    top: Top,
}

impl Traffic {
    fn new(rules: &str) -> Self {
        let rules = RuleSet::from_toml(rules).unwrap();
        Traffic { limiter: Limiter::new(rules, MemoryCounters::default()), top: Top::default() }
    }

    fn send(&self, request: &Request<'_>, now: Timestamp) {
        let decision = self.limiter.check_now(request, now);
        self.top.offer(&Record { request, decision: &decision });
    }

    fn send_user(&self, tenant: Option<&str>, user: &str, now: Timestamp) {
        self.send(&Request { tenant: tenant.map(id), user: Some(id(user)), ..request("/x") }, now);
    }
}

fn id(text: &str) -> Id<'_> {
    Id::parse(text).unwrap()
}

fn request(endpoint: &str) -> Request<'_> {
    Request::new(Endpoint::parse(endpoint).unwrap())
}

fn named(list: &TopList) -> Vec<(Option<&str>, &str, u64, u64)> {
    let entry = |entry: &TopEntry| (entry.count, entry.refused);
    let names = list.entries.iter().map(|each| (each.tenant.as_deref(), &*each.name));
    names
        .zip(list.entries.iter().map(entry))
        .map(|((tenant, name), (count, refused))| (tenant, name, count, refused))
        .collect()
}

#[test]
fn busiest_and_most_refused_are_listed_with_their_tenant() {
    let traffic = Traffic::new("default_limit = 3\ndefault_window = 3600");
    for _ in 0..5 {
        traffic.send_user(Some("acme"), "bob", at(0));
    }
    (0..2).for_each(|_| traffic.send_user(None, "bob", at(1)));
    let summary = traffic.top.summary(at(10));
    assert_eq!((summary.requests, summary.refused, summary.skipped, summary.window_seconds), (7, 2, 0, 10));
    assert_eq!(named(&summary.clients), [(Some("acme"), "user:bob", 5, 2), (None, "user:bob", 2, 0)]);
    assert_eq!(named(&summary.refused_clients), [(Some("acme"), "user:bob", 2, 2)]);
    assert_eq!(named(&summary.rules), [(None, "default", 7, 2), (Some("acme"), "default", 5, 2)]);
    assert_eq!(named(&summary.endpoints), [(None, "/x", 7, 2), (Some("acme"), "/x", 5, 2)]);
    let [refusal] = &summary.recent[..] else { panic!("{:?}", summary.recent) };
    assert_eq!((refusal.times, &*refusal.identifier, &*refusal.endpoint), (2, "user:bob", "/x"));
    assert_eq!((refusal.rule.as_deref(), &*refusal.reason), (Some("default"), "over_limit"));
    assert_eq!(refusal.retry_after, Some(1_200), "a third of the window restores one request");
}

#[test]
fn requests_leave_after_a_minute() {
    let traffic = Traffic::new("default_limit = 1000");
    for second in 0..60 {
        traffic.send_user(None, "alice", at(second));
    }
    let counted = |now| traffic.top.summary(now).requests;
    assert_eq!((counted(at(59)), counted(at(60)), counted(at(75))), (60, 45, 30));
    assert_eq!(counted(at(120)), 0);
    traffic.send_user(None, "alice", at(120));
    assert_eq!(named(&traffic.top.summary(at(120)).clients), [(None, "user:alice", 1, 0)]);
}

#[test]
fn clock_that_is_set_back_does_not_stop_the_counts() {
    let traffic = Traffic::new("default_limit = 1000");
    traffic.send_user(None, "alice", at(7_200));
    traffic.send_user(None, "bob", at(0));
    assert_eq!(named(&traffic.top.summary(at(1)).clients), [(None, "user:bob", 1, 0)]);
    traffic.send_user(None, "bob", at(31));
    traffic.send_user(None, "late", at(29));
    assert_eq!(traffic.top.summary(at(31)).requests, 3);
}

#[test]
fn every_kind_of_client_has_its_form_and_no_secret() {
    let traffic = Traffic::new("default_limit = 1000");
    let secret = ApiKey::parse("a-secret-of-the-client").unwrap();
    for _ in 0..2 {
        traffic.send(&Request { ip: Some([192, 0, 2, 1].into()), ..request("/x") }, at(0));
        traffic.send(&Request { ip: Some("2001:db8::1".parse().unwrap()), ..request("/x") }, at(0));
        traffic.send(&Request { login: Some(id("eve")), ..request("/x") }, at(0));
        traffic.send(&Request { tenant: Some(id("acme")), ..request("/x") }, at(0));
        traffic.send(&Request { api_key: Some(secret), ..request("/x") }, at(0));
        traffic.send(
            &Request { user: Some(id("tg_admin_0123456789abcdefghijklmnopqrstuvwxyz")), ..request("/x") },
            at(0),
        );
    }
    let summary = traffic.top.summary(at(0));
    let mut names: Vec<&str> = summary.clients.entries.iter().map(|entry| &*entry.name).collect();
    names.sort_unstable();
    let opaque = Client::ApiKey(secret).to_string();
    assert!(opaque.starts_with("api_key:#"), "{opaque}");
    assert_eq!(names, ["***", &*opaque, "ip:192.0.2.1", "ip:2001:db8::1", "login:eve", "tenant:acme"]);
    assert!(summary.clients.entries.iter().all(|entry| entry.count == 2), "{:?}", summary.clients);
    assert!(!serde_json::to_string(&summary).unwrap().contains("secret"));
}

#[test]
fn flood_of_fake_clients_does_not_hide_a_busy_one() {
    let traffic = Traffic::new("default_limit = 1000000");
    for number in 0..20_000 {
        traffic.send_user(None, &number.to_string(), at(0));
        if number % 50 == 0 {
            traffic.send_user(None, "busy", at(0));
        }
    }
    let clients = traffic.top.summary(at(1)).clients;
    let busy = &clients.entries[0];
    assert_eq!(busy.name, "user:busy");
    assert!(busy.count - busy.error <= 400 && 400 <= busy.count, "{busy:?}");
    assert!(clients.entries.len() <= SHARDS * usize::from(CLIENTS_MAX));
}

#[test]
fn refusals_of_a_busy_client_do_not_push_out_the_others() {
    let traffic = Traffic::new("default_limit = 1\ndefault_window = 3600");
    for user in ["quiet", "busy"] {
        (0..2).for_each(|_| traffic.send_user(None, user, at(0)));
    }
    (0..5_000).for_each(|_| traffic.send_user(None, "busy", at(1)));
    let recent = traffic.top.summary(at(2)).recent;
    let seen: Vec<(&str, u64)> = recent.iter().map(|each| (&*each.identifier, each.times)).collect();
    assert_eq!(seen, [("user:busy", 5_001), ("user:quiet", 1)]);
}

#[test]
fn long_endpoints_are_cut_and_peeks_are_not_counted() {
    let traffic = Traffic::new("default_limit = 1000");
    let long = format!("/{}", "é".repeat(300));
    traffic.send(&Request { user: Some(id("a")), ..request(&long) }, at(0));
    traffic.send(&Request { user: Some(id("a")), cost: 0, ..request("/peek") }, at(0));
    let summary = traffic.top.summary(at(0));
    assert_eq!((summary.requests, summary.endpoints.entries.len()), (1, 1));
    assert!(summary.endpoints.entries[0].name.len() <= 256);
}

#[test]
fn locked_shard_is_skipped_and_counted() {
    let traffic = Traffic::new("default_limit = 1000");
    let locked: Vec<_> = traffic.top.shards.iter().map(Mutex::lock).collect();
    traffic.send_user(None, "alice", at(0));
    drop(locked);
    traffic.send_user(None, "alice", at(0));
    let summary = traffic.top.summary(at(0));
    assert_eq!((summary.requests, summary.skipped), (1, 1));
}
