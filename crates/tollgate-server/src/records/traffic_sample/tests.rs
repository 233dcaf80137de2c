use tollgate::{Limiter, MemoryCounters};

use super::*;

fn rules(text: &str) -> RuleSet {
    RuleSet::from_toml(text).unwrap()
}

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

fn at(secs: u64) -> Timestamp {
    START + Span::from_secs(secs)
}

fn ask(sample: &TrafficSample, user: &str, endpoint: &str, now: Timestamp) {
    let limiter = Limiter::new(rules("default_limit = 100"), MemoryCounters::default());
    let request =
        Request { user: Some(Id::parse(user).unwrap()), ..Request::new(Endpoint::parse(endpoint).unwrap()) };
    let decision = limiter.check_now(&request, now);
    sample.offer(&Record { request: &request, decision: &decision });
}

#[test]
fn dry_run_counts_newly_refused_and_admitted() {
    let sample = TrafficSample::default();
    for n in 0..10 {
        ask(&sample, "alice", "/search", at(n));
    }
    ask(&sample, "bob", "/search", at(10));
    let (ten, four) = (
        rules("default_limit = 10\ndefault_window = 3600"),
        rules("default_limit = 4\ndefault_window = 3600"),
    );
    let lower = sample.compare(&ten, &four, at(10));
    assert_eq!((lower.requests, lower.clients, lower.window_seconds), (11, 2, 10));
    assert_eq!((lower.newly_refused, lower.newly_admitted), (6, 0));
    let expected = EffectExample {
        client: "user:alice".to_owned(),
        tenant: None,
        endpoint: "/search".to_owned(),
        before: "admitted",
        after: "refused",
        rule: Some("default".to_owned()),
        requests: 6,
    };
    assert_eq!(lower.examples, [expected]);
    let higher = sample.compare(&four, &ten, at(10));
    assert_eq!((higher.newly_refused, higher.newly_admitted), (0, 6));
    assert_eq!(sample.compare(&ten, &ten, at(10)).examples, []);
}

#[test]
fn sample_drops_requests_older_than_the_window() {
    let sample = TrafficSample::default();
    ask(&sample, "alice", "/", at(0));
    ask(&sample, "alice", "/", at(299));
    let set = rules("default_limit = 1");
    assert_eq!(sample.compare(&set, &set, at(300)).requests, 2);
    assert_eq!(sample.compare(&set, &set, at(301)).requests, 1);
    assert_eq!(sample.compare(&set, &set, at(3_600)).requests, 0);
}

#[test]
fn peek_is_not_sampled() {
    let sample = TrafficSample::default();
    let set = rules("default_limit = 1");
    let limiter = Limiter::new(rules("default_limit = 1"), MemoryCounters::default());
    let look = Request {
        cost: 0,
        user: Some(Id::parse("a").unwrap()),
        ..Request::new(Endpoint::parse("/").unwrap())
    };
    sample.offer(&Record { request: &look, decision: &limiter.check_now(&look, at(0)) });
    assert_eq!(sample.compare(&set, &set, at(0)).requests, 0);
}

fn seen(hash: u64, at: Timestamp, endpoint: &str) -> SampledRequest {
    let endpoint = Endpoint::parse(endpoint).unwrap();
    let request = Request { user: Some(Id::parse("a").unwrap()), ..Request::new(endpoint) };
    SampledRequest::new(&request, hash, at)
}

#[test]
fn sample_is_bounded_in_requests_and_bytes() {
    let mut kept = SampledRequests::default();
    // Clients with the hashes 0 to 9,999, and one that no halving ever drops.
    for n in 0..60_000_u64 {
        let hash = if n % 7 == 0 { 0 } else { n % 10_000 };
        kept.push(seen(hash, at(n / 1_000), "/x"));
        assert!(kept.requests.len() <= REQUESTS_MAX && kept.bytes <= BYTES_MAX);
    }
    let long = format!("/{}", "x".repeat(2_000));
    for n in 0..9_000 {
        kept.push(seen(0, at(60), &long));
        assert!(kept.requests.len() <= REQUESTS_MAX && kept.bytes <= BYTES_MAX, "{n}");
    }
    let bytes: usize = kept.requests.iter().map(|seen| seen.bytes()).sum();
    assert_eq!(kept.bytes, bytes);
}

#[test]
fn every_request_of_a_sampled_client_is_kept() {
    let mut kept = SampledRequests::default();
    for n in 0..20_000_u64 {
        kept.push(seen(n % 16, at(n / 1_000), "/x"));
    }
    assert!(kept.halvings > 0);
    let hashes: HashSet<u64> = kept.requests.iter().map(|seen| seen.hash).collect();
    for hash in hashes {
        assert_eq!(kept.requests.iter().filter(|seen| seen.hash == hash).count(), 1_250, "{hash}");
    }
}

#[test]
fn sample_covers_all_clients_again_when_traffic_drops() {
    let mut kept = SampledRequests::default();
    for n in 0..20_000_u64 {
        kept.push(seen(n % 64, at(0), "/x"));
    }
    let halvings = u64::from(kept.halvings);
    assert!(halvings > 0);
    for n in 1..=halvings + 20 {
        kept.push(seen(0, at(n * 31), "/x"));
    }
    assert_eq!(kept.halvings, 0);
}

#[test]
fn sample_keeps_no_api_key() {
    let request = Request {
        api_key: Some(ApiKey::parse("canary-9b1e").unwrap()),
        ..Request::new(Endpoint::parse("/").unwrap())
    };
    let seen = SampledRequest::new(&request, 1, at(0));
    assert!(seen.client().starts_with("api_key:#"), "{}", seen.client());
    assert!(!format!("{:?}", seen.api_key).contains("canary"));
}
