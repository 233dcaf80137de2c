use tollgate::endpoint::Endpoint;
use tollgate::{Limiter, MemoryCounters, Timestamp};
use tollgate_stores::sql::records::{DecisionRow, WindowRow};

use super::super::codec::{AggregateRow, decode_aggregate, decode_decision};
use super::super::delta_table::Spare;
use super::super::row_buffer::{Rows, SHARDS};
use super::*;
use crate::config::settings::Settings;

const RULES: &str = "[[rules]]\nname = \"api\"\nper = [\"client\"]\nwhen.endpoints = [\"/api/*\"]\n\
                     algorithm = \"fixed_window\"\nlimits = [{ requests = 2, window = \"1m\" }]\n\
                     response = { status = 430 }";
const NOW: u64 = 1_700_000_040;

struct Fixture {
    limiter: Limiter<MemoryCounters>,
    recorder: Recorder,
}

impl Fixture {
    fn new(rules: &str, sample: f64) -> Self {
        let rules = Settings::from_toml(rules).unwrap().rules;
        let node = NodeNames { region: "eu".into(), id: "node-1".into() };
        let recorder = Recorder::new(&rules, node, SampleRate::new(sample).unwrap(), false);
        Fixture { limiter: Limiter::new(rules, MemoryCounters::default()), recorder }
    }

    fn check(&self, request: &Request<'_>, seconds: u64) {
        let decision = self.limiter.check_now(request, Timestamp::from_secs(seconds));
        let latency = Duration::from_micros(7);
        let request_id = Some("req_1");
        self.recorder.offer(&RecordedCheck { request, decision: &decision, latency, request_id });
    }

    fn logged(&self) -> Vec<DecisionRow> {
        let mut decoded = Vec::new();
        let mut rows = Rows::default();
        for shard in 0..SHARDS {
            self.recorder.log.swap(shard, &mut rows);
            decoded.extend(split(&rows.bytes).map(|row| decode_decision(row).unwrap()));
            rows.clear();
        }
        decoded
    }

    fn windows(&self) -> Vec<WindowRow> {
        self.recorder.count_batches();
        let (mut spare, mut windows) = (Spare::default(), Vec::new());
        for shard in 0..self.recorder.windows.shards() {
            self.recorder.windows.take(shard, &mut spare, |minute, fields, counts| {
                let mut row = Vec::new();
                let limit = counts.limit.map(u64::from);
                RowWriter::window(&mut row)
                    .number(minute * MICROS_PER_MINUTE)
                    .number(counts.allowed)
                    .number(counts.refused)
                    .maybe_number(limit)
                    .copied(fields);
                let Some(AggregateRow::Window(row)) = decode_aggregate(&row) else { panic!("not a window") };
                windows.push(row);
            });
        }
        windows.sort_by(|one, other| {
            (&one.identifier, one.start_micros).cmp(&(&other.identifier, other.start_micros))
        });
        windows
    }
}

fn split(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk()?;
        let (row, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        bytes = rest;
        Some(row)
    })
}

fn request<'a>(endpoint: &'a str, user: &'a str) -> Request<'a> {
    let mut request = Request::new(Endpoint::parse(endpoint).unwrap());
    request.user = Some(Id::parse(user).unwrap());
    request
}

#[test]
fn refusals_are_logged_with_all_columns() {
    let fixture = Fixture::new(RULES, 0.0);
    let mut request = request("/api/orders", "alice");
    request.tenant = Some(Id::parse("acme").unwrap());
    request.ip = Some("::ffff:192.0.2.7".parse().unwrap());
    request.method = Some(Method::Get);
    request.api_key = Some(ApiKey::parse("secret-canary").unwrap());
    (0..3).for_each(|_| fixture.check(&request, NOW));
    let rows = fixture.logged();
    assert_eq!(rows.len(), 1, "admitted requests are not sampled here");
    let key = rows[0].api_key_id.clone().unwrap();
    assert!(key.starts_with('#') && !format!("{rows:?}").contains("canary"), "{rows:?}");
    let expected = DecisionRow {
        at_micros: NOW * 1_000_000,
        identifier: "user:alice".to_owned(),
        tenant: Some("acme".to_owned()),
        user_id: Some("alice".to_owned()),
        api_key_id: Some(key),
        ip_address: Some("192.0.2.7".to_owned()),
        endpoint: "/api/orders".to_owned(),
        http_method: Some("GET".to_owned()),
        rule: Some("api".to_owned()),
        decision: DecisionKind::Throttled,
        current_count: Some(2),
        limit_value: Some(2),
        remaining: Some(0),
        cost: 1,
        response_status: 430,
        retry_after_seconds: Some(60),
        latency_micros: 7,
        request_id: Some("req_1".to_owned()),
        degraded: false,
        region: "eu".to_owned(),
        server_id: "node-1".to_owned(),
    };
    assert_eq!(rows[0], expected);
}

#[test]
fn rule_overrides_the_sample() {
    let all = Fixture::new(&format!("{RULES}\nsample_allowed = \"all\""), 0.0);
    let none = Fixture::new(&format!("{RULES}\nsample_allowed = 0"), 1.0);
    for (fixture, logged) in [(&all, 2), (&none, 0)] {
        (0..2).for_each(|_| fixture.check(&request("/api/x", "bob"), NOW));
        assert_eq!(fixture.logged().len(), logged);
    }
}

#[test]
fn windows_count_every_request_once() {
    let fixture = Fixture::new(RULES, 0.0);
    for seconds in [NOW, NOW + 1, NOW + 2, NOW + 60] {
        fixture.check(&request("/api/orders", "alice"), seconds);
    }
    fixture.check(&request("/other", "bob"), NOW);
    let mut peek = request("/api/orders", "carol");
    peek.cost = 0;
    fixture.check(&peek, NOW);
    let window = |start: u64, user: &str, route: &str, allowed, refused, limit_value| WindowRow {
        start_micros: start / 60 * 60_000_000,
        identifier: format!("user:{user}"),
        tenant: None,
        route: route.to_owned(),
        allowed,
        refused,
        limit_value,
    };
    let expected = [
        window(NOW, "alice", "/api/*", 2, 1, Some(2)),
        window(NOW + 60, "alice", "/api/*", 1, 0, Some(2)),
        window(NOW, "bob", "/other", 1, 0, None),
    ];
    assert_eq!(fixture.windows(), expected);
    assert!(fixture.windows().is_empty());
}

#[test]
fn rollups_of_many_routes_share_one() {
    let fixture = Fixture::new(RULES, 0.0);
    let requests = 3 * ROLLUPS_MAX as u64;
    for number in 0..requests {
        fixture.check(&request(&format!("/p/{number}"), "alice"), NOW);
    }
    fixture.recorder.count_batches();
    let (mut spare, mut total, mut entries) = (Spare::default(), 0, 0);
    for shard in 0..ROLLUP_SHARDS {
        fixture.recorder.rollups.take(shard, &mut spare, |_, _, counts| {
            total += counts.allowed;
            entries += 1;
            assert_eq!(counts.latency.count(), counts.allowed);
        });
    }
    assert_eq!((total, entries), (requests, ROLLUPS_MAX - OTHER_ROLLUPS_MAX + 1));
    assert_eq!(fixture.recorder.rollups.dropped(), 0);
}

#[test]
fn damaged_rows_do_not_decode() {
    let fixture = Fixture::new(RULES, 1.0);
    fixture.check(&request("/api/orders", "alice"), NOW);
    let mut rows = Rows::default();
    (0..SHARDS).for_each(|shard| {
        if rows.count == 0 {
            fixture.recorder.log.swap(shard, &mut rows);
        }
    });
    let row = split(&rows.bytes).next().unwrap();
    assert!(decode_decision(row).is_some());
    assert!((0..row.len()).all(|length| decode_decision(&row[..length]).is_none()));
    assert!(decode_aggregate(row).is_none());
}

#[test]
fn decisions_of_several_threads_are_counted_once() {
    const THREADS: u64 = 4;
    const REQUESTS: u64 = 2_003;
    let fixture = Fixture::new(RULES, 0.0);
    let (mut windows, mut rollups) = (Spare::default(), Spare::default());
    let mut counted = [0, 0];
    let mut take = || {
        fixture.recorder.count_batches();
        for shard in 0..fixture.recorder.windows.shards() {
            let count = |_, _: &[u8], counts: &counts::WindowCounts| {
                counted[0] += counts.allowed + counts.refused;
            };
            fixture.recorder.windows.take(shard, &mut windows, count);
        }
        for shard in 0..ROLLUP_SHARDS {
            let count = |_, _: &[u8], counts: &RollupCounts| counted[1] += counts.allowed + counts.throttled;
            fixture.recorder.rollups.take(shard, &mut rollups, count);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let fixture = &fixture;
                scope.spawn(move || {
                    for number in 0..REQUESTS {
                        let user = format!("user-{}", (thread + number) % 7);
                        fixture.check(&request("/api/orders", &user), NOW);
                    }
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            take();
        }
    });
    take();
    assert_eq!(counted, [THREADS * REQUESTS; 2]);
}
