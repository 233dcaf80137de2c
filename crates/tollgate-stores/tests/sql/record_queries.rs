//! Queries on the records.

use tollgate_stores::sql::SqlSettings;
use tollgate_stores::sql::records::{
    DecisionKind, DecisionRow, Granularity, LatencyHistogram, Order, RankedBy, RecordFilter, RecordReader,
    RecordsDatabase, RequestCounts, RollupCursor, RollupRow, StoredRollup, TenantFilter, Usage, WindowRow,
};
use tollgate_testkit::MariaDbServer;

use crate::harness::{NOW, TestDatabase};
use crate::records_harness::{MINUTE, NODE_A, decision, range, records_with_sources, rollup, window};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

async fn reader(empty: &TestDatabase) -> RecordReader {
    RecordReader::connect(&empty.settings()).await.unwrap()
}

async fn store_decisions(database: &RecordsDatabase, rows: &[DecisionRow]) {
    let first = database.position(&NODE_A).await.unwrap();
    let rows_range = range(NODE_A, first, first + rows.len() as u64);
    database.store_decisions(&rows_range, rows).await.unwrap();
}

async fn store_aggregates(database: &RecordsDatabase, windows: &[WindowRow], rollups: &[RollupRow]) {
    let first = database.position(&NODE_A).await.unwrap();
    let count = (windows.len() + rollups.len()) as u64;
    database.store_aggregates(&range(NODE_A, first, first + count), windows, rollups).await.unwrap();
}

fn counts(allowed: u64, refused: u64) -> RequestCounts {
    RequestCounts { allowed, refused }
}

fn between(from_micros: u64, to_micros: u64) -> RecordFilter {
    RecordFilter { from_micros: Some(from_micros), to_micros: Some(to_micros), ..RecordFilter::default() }
}

pub(crate) async fn decisions_are_read_as_stored(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let mut odd = decision("o'brien\\ \"grün\" 🚦", DecisionKind::Throttled);
    odd.at_micros += 123_456;
    odd.tenant = Some("acme".to_owned());
    odd.api_key_id = Some("4kq2mz7ehv3xw5ta".to_owned());
    odd.ip_address = Some("2001:db8::7".to_owned());
    odd.retry_after_seconds = Some(30);
    odd.degraded = true;
    odd.response_status = 429;
    let mut bare = decision("bare", DecisionKind::Unavailable);
    (bare.user_id, bare.ip_address, bare.http_method, bare.rule) = (None, None, None, None);
    (bare.current_count, bare.limit_value, bare.remaining, bare.request_id) = (None, None, None, None);
    let rows = [bare, odd];
    store_decisions(&database, &rows).await;
    let reader = reader(&empty).await;
    let read = reader.decisions(&RecordFilter::default(), Order::OldestFirst, None, 10).await.unwrap();
    assert_eq!(read.iter().map(|each| each.row.clone()).collect::<Vec<_>>(), rows);
    assert!(read.iter().all(|each| !each.truncated) && read[0].id + 1 == read[1].id);
    reader.close().await;
}

pub(crate) async fn decisions_are_filtered(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let row = |user: &str, seconds: u64, edit: &dyn Fn(&mut DecisionRow)| {
        let mut row = decision(user, DecisionKind::Allowed);
        row.at_micros += seconds * SECOND;
        edit(&mut row);
        row
    };
    let rows = [
        row("alice", 0, &|_| {}),
        row("alice", 1, &|row| row.decision = DecisionKind::Blocked),
        row("alice", 2, &|row| row.tenant = Some("acme".to_owned())),
        row("Alice", 3, &|row| row.rule = Some("other".to_owned())),
        row("bob", 4, &|row| "/Projects".clone_into(&mut row.endpoint)),
    ];
    store_decisions(&database, &rows).await;
    let reader = reader(&empty).await;
    let seconds = async |filter: RecordFilter| {
        let read = reader.decisions(&filter, Order::OldestFirst, None, 10).await.unwrap();
        read.iter().map(|each| (each.row.at_micros - NOW) / SECOND).collect::<Vec<u64>>()
    };
    let text = |text: &str| Some(text.to_owned());
    let default = RecordFilter::default;
    assert_eq!(seconds(default()).await, [0, 1, 2, 3, 4]);
    assert_eq!(seconds(RecordFilter { identifier: text("user:alice"), ..default() }).await, [0, 1, 2]);
    assert_eq!(seconds(RecordFilter { rule: text("other"), ..default() }).await, [3]);
    assert_eq!(seconds(RecordFilter { route: text("/Projects"), ..default() }).await, [4]);
    assert_eq!(seconds(RecordFilter { decision: Some(DecisionKind::Blocked), ..default() }).await, [1]);
    let acme = TenantFilter::Named("acme".to_owned());
    assert_eq!(seconds(RecordFilter { tenant: acme, ..default() }).await, [2]);
    assert_eq!(seconds(RecordFilter { tenant: TenantFilter::Without, ..default() }).await, [0, 1, 3, 4]);
    assert_eq!(seconds(between(NOW + SECOND, NOW + 3 * SECOND)).await, [1, 2]);
    let injected = RecordFilter { identifier: text("' OR '1' = '1"), ..default() };
    assert_eq!(seconds(injected).await, [0; 0]);
    let nul = RecordFilter { rule: text("a\0"), ..default() };
    reader.decisions(&nul, Order::OldestFirst, None, 10).await.unwrap_err();
}

pub(crate) async fn decisions_are_paged_in_both_directions(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    // Three of each instant, so that pages end between equal times.
    let rows: Vec<DecisionRow> = (0..20)
        .map(|number| {
            let mut row = decision(&format!("u{number}"), DecisionKind::Allowed);
            row.at_micros += number / 3;
            row
        })
        .collect();
    store_decisions(&database, &rows).await;
    let reader = reader(&empty).await;
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let (mut users, mut after) = (Vec::new(), None);
        loop {
            let page = reader.decisions(&RecordFilter::default(), order, after.as_ref(), 4).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.cursor());
            users.extend(page.into_iter().map(|each| each.row.identifier));
        }
        if order == Order::NewestFirst {
            users.reverse();
        }
        assert_eq!(users, rows.iter().map(|row| row.identifier.clone()).collect::<Vec<_>>(), "{order:?}");
    }
    let all = reader.decisions(&RecordFilter::default(), Order::OldestFirst, None, u32::MAX).await.unwrap();
    assert_eq!(all.len(), 20);
}

pub(crate) async fn windows_are_filtered_and_paged(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let users: Vec<String> = (0..10).map(|number| format!("u{number}")).collect();
    let mut windows: Vec<WindowRow> = users.iter().map(|user| window(user, "/a", 1, 2)).collect();
    let mut later = window("u3", "/b", 7, 0);
    (later.start_micros, later.tenant, later.limit_value) =
        (MINUTE + 60 * SECOND, Some("acme".to_owned()), None);
    windows.push(later.clone());
    store_aggregates(&database, &windows, &[]).await;
    let reader = reader(&empty).await;
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let (mut read, mut after) = (Vec::new(), None);
        loop {
            let page = reader.windows(&RecordFilter::default(), order, after.as_ref(), 3).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.cursor());
            read.extend(page.into_iter().map(|each| each.row));
        }
        assert_eq!(read.len(), 11, "{order:?}");
        assert!(windows.iter().all(|window| read.contains(window)), "{order:?}: {read:?}");
        let edge = if order == Order::NewestFirst { read.first() } else { read.last() };
        assert_eq!(edge, Some(&later));
    }
    let rows = async |filter: RecordFilter| {
        let read = reader.windows(&filter, Order::OldestFirst, None, 10).await.unwrap();
        read.into_iter().map(|each| each.row).collect::<Vec<_>>()
    };
    let of_user = RecordFilter { identifier: Some("user:u3".to_owned()), ..RecordFilter::default() };
    assert_eq!(rows(of_user).await, [windows[3].clone(), later.clone()]);
    let on_route = RecordFilter { route: Some("/b".to_owned()), ..RecordFilter::default() };
    assert_eq!(rows(on_route).await, [later.clone()]);
    assert_eq!(rows(between(MINUTE + 1, MINUTE + DAY)).await, [later]);
}

/// All pages of rollups.
async fn all_rollups(reader: &RecordReader, per: Granularity, filter: &RecordFilter) -> Vec<StoredRollup> {
    let (mut read, mut after): (Vec<StoredRollup>, Option<RollupCursor>) = (Vec::new(), None);
    loop {
        let page = reader.rollups(per, filter, Order::OldestFirst, after.as_ref(), 2).await.unwrap();
        if page.is_empty() {
            return read;
        }
        for rollup in page {
            after = Some(rollup.cursor());
            read.push(rollup);
        }
    }
}

pub(crate) async fn rollups_of_servers_are_merged(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let mut slow = rollup("node-b", "/a", 3, 1);
    slow.latency = LatencyHistogram::default();
    (0..4).for_each(|_| slow.latency.record(1_000));
    let mut later = rollup("node-a", "/a", 1, 0);
    later.start_micros += 60 * SECOND;
    let others = ["/b", "/c", "/d"].map(|route| rollup("node-a", route, 2, 0));
    let mut rows = vec![rollup("node-a", "/a", 6, 2), slow, later];
    rows.extend(others);
    store_aggregates(&database, &[], &rows).await;
    let reader = reader(&empty).await;
    let read = all_rollups(&reader, Granularity::Minute, &RecordFilter::default()).await;
    let seen: Vec<_> = read
        .iter()
        .map(|each| (each.start_micros - MINUTE, &*each.endpoint, each.allowed, each.throttled))
        .collect();
    assert_eq!(
        seen,
        [(0, "/a", 9, 3), (0, "/b", 2, 0), (0, "/c", 2, 0), (0, "/d", 2, 0), (60 * SECOND, "/a", 1, 0)]
    );
    let latency = &read[0].latency;
    assert_eq!((latency.count(), latency.quantile(0.5)), (12, Some(7)));
    assert!(latency.quantile(0.99).unwrap() >= 1_000);
    let on_route = RecordFilter { route: Some("/b".to_owned()), ..RecordFilter::default() };
    assert_eq!(all_rollups(&reader, Granularity::Minute, &on_route).await.len(), 1);
    assert_eq!(all_rollups(&reader, Granularity::Hour, &RecordFilter::default()).await.len(), 0);
}

/// Rollups of a period that has not ended: new ones appear before the page that is read next.
pub(crate) async fn rollup_pages_repeat_nothing(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let of = |minute: u64, rule: Option<&str>, tenant: Option<&str>, user: Option<&str>| {
        let mut row = rollup("node-a", "/é's", 1, 0);
        row.start_micros += minute * 60 * SECOND;
        (row.rule, row.tenant, row.user_id) =
            (rule.map(str::to_owned), tenant.map(str::to_owned), user.map(str::to_owned));
        row
    };
    let mut rows = Vec::new();
    for minute in 0..2 {
        for rule in [None, Some("r"), Some("R")] {
            rows.extend(
                [(None, None), (Some("t"), None), (Some("t"), Some("u")), (None, Some("u"))]
                    .map(|(tenant, user)| of(minute, rule, tenant, user)),
            );
        }
    }
    store_aggregates(&database, &[], &rows).await;
    let reader = reader(&empty).await;
    let mut earlier = 0;
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let (mut keys, mut after) = (Vec::new(), None);
        loop {
            let all = RecordFilter::default();
            let page = reader.rollups(Granularity::Minute, &all, order, after.as_ref(), 5).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.cursor());
            keys.extend(page.iter().map(StoredRollup::cursor).filter(|key| key.endpoint == "/é's"));
            earlier += 1;
            let new = [0, 1].map(|minute| {
                let mut row = of(minute, None, None, None);
                row.endpoint = format!("/0/{earlier}");
                row
            });
            store_aggregates(&database, &[], &new).await;
        }
        let distinct: std::collections::HashSet<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        assert_eq!((keys.len(), distinct.len()), (rows.len(), rows.len()), "{order:?}");
    }
}

pub(crate) async fn usage_adds_up_by_period_and_route(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let at = |offset: u64, route: &str, allowed, refused| {
        let mut row = window("alice", route, allowed, refused);
        row.start_micros = DAY * 20_000 + offset;
        row
    };
    let mut of_tenant = at(0, "/a", 1_000, 0);
    of_tenant.tenant = Some("acme".to_owned());
    let windows = [
        at(0, "/a", 1, 0),
        at(60 * SECOND, "/b", 5, 5),
        at(HOUR, "/a", 2, 0),
        at(DAY, "/a", 3, 1),
        of_tenant,
    ];
    store_aggregates(&database, &windows, &[]).await;
    let reader = reader(&empty).await;
    let mut filter = between(DAY * 20_000, DAY * 20_002);
    (filter.identifier, filter.tenant) = (Some("user:alice".to_owned()), TenantFilter::Without);
    let usage = reader.usage(&filter, Granularity::Hour).await.unwrap();
    assert_eq!(usage.total, counts(11, 6));
    assert_eq!(usage.last_micros, Some(DAY * 20_001));
    let periods = |usage: &Usage| {
        let each = usage.periods.iter().map(|each| (each.start_micros - DAY * 20_000, each.counts));
        each.collect::<Vec<_>>()
    };
    assert_eq!(periods(&usage), [(0, counts(6, 5)), (HOUR, counts(2, 0)), (DAY, counts(3, 1))]);
    let routes: Vec<_> = usage.routes.iter().map(|each| (&*each.route, each.counts)).collect();
    assert_eq!(routes, [("/b", counts(5, 5)), ("/a", counts(6, 1))]);
    let by_day = reader.usage(&filter, Granularity::Day).await.unwrap();
    assert_eq!(periods(&by_day), [(0, counts(8, 5)), (DAY, counts(3, 1))]);
    let by_minute = reader.usage(&filter, Granularity::Minute).await.unwrap();
    assert_eq!(by_minute.periods.len(), 4);
    filter.tenant = TenantFilter::Any;
    assert_eq!(reader.request_counts(&filter).await.unwrap(), counts(1_011, 6));
    filter.identifier = Some("user:nobody".to_owned());
    assert_eq!(reader.usage(&filter, Granularity::Day).await.unwrap(), Usage::default());
}

pub(crate) async fn clients_routes_and_rules_are_ranked(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let mut of_tenant = window("alice", "/a", 7, 0);
    of_tenant.tenant = Some("acme".to_owned());
    let windows =
        [window("alice", "/a", 10, 1), window("alice", "/b", 5, 0), window("bob", "/a", 2, 9), of_tenant];
    let mut unruled = rollup("node-a", "/b", 100, 0);
    unruled.rule = None;
    let rollups = [rollup("node-a", "/a", 4, 6), rollup("node-b", "/a", 1, 1), unruled];
    store_aggregates(&database, &windows, &rollups).await;
    let reader = reader(&empty).await;
    let filter = between(MINUTE, MINUTE + HOUR);
    let clients = async |by| {
        let ranked = reader.top_clients(&filter, by, 10).await.unwrap();
        let each = ranked.into_iter().map(|each| (each.identifier, each.tenant.is_some(), each.counts));
        each.collect::<Vec<_>>()
    };
    let (alice, bob) = ("user:alice".to_owned(), "user:bob".to_owned());
    assert_eq!(
        clients(RankedBy::Requests).await,
        [
            (alice.clone(), false, counts(15, 1)),
            (bob.clone(), false, counts(2, 9)),
            (alice.clone(), true, counts(7, 0))
        ]
    );
    // Only minutes with refused requests are counted.
    assert_eq!(clients(RankedBy::Refused).await, [(bob, false, counts(2, 9)), (alice, false, counts(10, 1))]);
    let routes = reader.top_routes(&filter, RankedBy::Requests, 10).await.unwrap();
    let routes: Vec<_> = routes.iter().map(|each| (each.name.as_deref(), each.counts)).collect();
    assert_eq!(routes, [(Some("/b"), counts(100, 0)), (Some("/a"), counts(5, 7))]);
    let rules = async |by| {
        let rules = reader.top_rules(&filter, by, 10).await.unwrap();
        rules.into_iter().map(|each| (each.name, each.counts)).collect::<Vec<_>>()
    };
    let per_user = (Some("per-user".to_owned()), counts(5, 7));
    assert_eq!(rules(RankedBy::Requests).await, [(None, counts(100, 0)), per_user.clone()]);
    assert_eq!(rules(RankedBy::Refused).await, [per_user]);
    let violations = reader.violations(&filter, 10).await.unwrap();
    let violations: Vec<_> =
        violations.iter().map(|each| (&*each.identifier, &*each.route, each.counts, each.minutes)).collect();
    assert_eq!(violations, [("user:bob", "/a", counts(2, 9), 1), ("user:alice", "/a", counts(10, 1), 1)]);
}

pub(crate) async fn trend_counts_every_minute_once(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let start = DAY * 20_000;
    // Every half hour of three days.
    let rows: Vec<RollupRow> = (0..144)
        .map(|number| {
            let mut row = rollup("node-a", "/a", 2, 1);
            row.start_micros = start + number * HOUR / 2;
            row
        })
        .collect();
    store_aggregates(&database, &[], &rows).await;
    let reader = reader(&empty).await;
    let trend = async |filter: &RecordFilter, per| {
        let points = reader.trend(filter, per).await.unwrap();
        points
            .iter()
            .map(|point| (point.start_micros - start, point.allowed, point.throttled))
            .collect::<Vec<_>>()
    };
    let all = between(start, start + 3 * DAY);
    let days = [(0, 96, 48), (DAY, 96, 48), (2 * DAY, 96, 48)];
    assert_eq!(trend(&all, Granularity::Day).await, days, "from minutes");
    assert_eq!(trend(&all, Granularity::Minute).await.len(), 144);
    let points = reader.trend(&all, Granularity::Day).await.unwrap();
    assert_eq!((points[0].latency.count(), points[0].latency.quantile(0.99)), (144, Some(7)));

    // Hours are computed up to noon of the second day; then another minute arrives.
    let mut client = empty.client().await;
    client.execute(&hours_sql(&empty, start, 36)).await;
    let changed = start + 36 * HOUR;
    client.execute(&format!("DELETE FROM record_changed_hours WHERE hour_micros < {changed}")).await;
    assert_eq!(trend(&all, Granularity::Day).await, days, "from hours, then minutes");
    let part = between(start + HOUR / 2, start + 2 * DAY + HOUR / 2);
    assert_eq!(
        trend(&part, Granularity::Day).await,
        [(0, 94, 47), (DAY, 96, 48), (2 * DAY, 2, 1)],
        "parts of hours at both ends"
    );
    let mut filter = part.clone();
    filter.route = Some("/none".to_owned());
    assert_eq!(trend(&filter, Granularity::Hour).await, []);
    let routes = reader.top_routes(&all, RankedBy::Requests, 10).await.unwrap();
    assert_eq!(routes[0].counts, counts(288, 144));
}

/// Inserts hour rows, each the sum of two minutes.
fn hours_sql(empty: &TestDatabase, start: u64, hours: u64) -> String {
    let zone = if empty.engine() == tollgate_stores::sql::Engine::Postgres { "+00" } else { "" };
    let hash = match empty.engine() {
        tollgate_stores::sql::Engine::Postgres => "'\\x00112233445566778899aabbccddeeff'",
        _ => "x'00112233445566778899aabbccddeeff'",
    };
    let row = |hour: u64| {
        let micros = i64::try_from(start + hour * HOUR).unwrap();
        let time = jiff::Timestamp::from_microsecond(micros).unwrap().strftime("%Y-%m-%d %H:%M:%S.000000");
        format!(
            "('{time}{zone}', '{time}{zone}', {hash}, 'hour', '/a', 'per-user', 'eu-1', '', 6, 4, 2, 0, 4, 2, '7:6')"
        )
    };
    let rows: Vec<String> = (0..hours).map(row).collect();
    format!(
        "INSERT INTO rate_limit_metrics (timestamp, created_at, key_hash, granularity, endpoint, rule_id, region, \
         server_id, total_requests, allowed_requests, throttled_requests, blocked_requests, cache_hits, cache_misses, \
         latency_histogram) VALUES {}",
        rows.join(", ")
    )
}

/// The table is partitioned, and texts are bound as bytes: both have kept MariaDB from using the index in its order.
#[tokio::test]
async fn mariadb_search_reads_only_its_page() {
    let server = MariaDbServer::start();
    let settings = SqlSettings::from_url(&server.create_database()).unwrap();
    RecordsDatabase::connect(settings.clone()).await.unwrap().migrate().await.unwrap();
    server.execute(
        "test_0",
        "INSERT INTO rate_limit_audit_logs (log_id, timestamp, identifier, endpoint, decision, cost, response_status, \
         region, server_id, latency_us, degraded, truncated) \
         SELECT seq, '2026-10-01' + INTERVAL seq SECOND, IF(seq <= 20000, 'user:quiet', 'user:busy'), '/', 'allowed', \
         1, 200, '', '', 1, 0, 0 FROM seq_1_to_40000",
    );
    server.execute("test_0", "ANALYZE TABLE rate_limit_audit_logs");
    let rows_read = || {
        let reads = "SELECT CAST(SUM(variable_value) AS INT) FROM information_schema.global_status \
                     WHERE variable_name LIKE 'handler_read%'";
        server.execute("test_0", reads).trim().parse::<u64>().unwrap()
    };
    let reader = RecordReader::connect(&settings).await.unwrap();
    for identifier in ["user:quiet", "user:busy"] {
        let filter = RecordFilter { identifier: Some(identifier.to_owned()), ..RecordFilter::default() };
        let before = rows_read();
        let page = reader.decisions(&filter, Order::NewestFirst, None, 100).await.unwrap();
        // Reading the counters costs about a thousand.
        let read = rows_read() - before;
        assert!(page.len() == 100 && read < 10_000, "{} of {read} rows", page.len());
    }
    reader.close().await;
}
