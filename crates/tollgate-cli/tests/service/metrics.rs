//! `/metrics`: formats, and metrics of the process.

use serde_json::Value;
use tollgate_testkit::PrometheusServer;

use crate::harness::{Service, wait_for};

const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// The label `rule` needs escaping.
const RULES: &str =
    "[[rules]]\nname = 'by \"user\" \\ ü'\nper = \"user\"\nlimits = [{ requests = 3, window = \"30d\" }]\n";

#[test]
fn prometheus_reads_native_and_classic_buckets() {
    let service = Service::with_config(RULES);
    (0..7).for_each(|_| drop(service.check("alice", "/x")));
    let prometheus = PrometheusServer::scraping(service.address);
    let value = |query: &str| {
        let answer: Value = serde_json::from_str(&prometheus.api(&format!("query?query={query}"))).ok()?;
        Some(answer["data"]["result"][0]["value"][1].as_str()?.to_owned())
    };
    let count = |query: &str| wait_for(query, || value(query).filter(|count| count != "0"));
    assert_eq!(count("histogram_count(tollgate_decision_duration_seconds)"), "7", "native");
    let median = count("histogram_quantile(0.5,tollgate_decision_duration_seconds)");
    assert!((1e-7..1.0).contains(&median.parse::<f64>().unwrap()), "{median}");
    let refused =
        "tollgate_decisions_total{decision=%22over_limit%22,rule=%22by%20\\%22user\\%22%20\\\\%20%C3%BC%22}";
    assert_eq!(count(refused), "4");
    assert_eq!(count("count(tollgate_build_info)"), "1");
    let targets: Value = serde_json::from_str(&prometheus.api("targets")).unwrap();
    assert_eq!(targets["data"]["activeTargets"][0]["lastError"], "", "{targets}");
}

#[test]
fn format_follows_the_accept_header() {
    let service = Service::unconfigured();
    let kind = |accept: &str| {
        let answer = service.send("GET", "/metrics", &[("accept", accept)], "");
        (answer.status, answer.header("content-type").unwrap().to_owned())
    };
    assert_eq!(kind(PROTOBUF), (200, PROTOBUF.to_owned()));
    let text = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    for accept in ["*/*", "text/plain", "application/vnd.google.protobuf", "application/json"] {
        assert_eq!(kind(accept), (200, text.to_owned()), "{accept}");
    }
}

#[test]
fn classic_buckets_are_cumulative() {
    let service = Service::unconfigured();
    (0..5).for_each(|_| drop(service.check("alice", "/x")));
    let batch =
        r#"{"checks":[{"user_id":"a","endpoint":"/x"},{"user_id":"b","endpoint":"/x"},{"user_id":7}]}"#;
    assert_eq!(service.post("/v1/rate-limit/batch-check", batch).status, 200);
    let text = service.get("/metrics").text;
    let bucket =
        |line: &str| line.strip_prefix("tollgate_decision_duration_seconds_bucket{le=\"").map(str::to_owned);
    let buckets: Vec<String> = text.lines().filter_map(bucket).collect();
    let counts: Vec<u64> =
        buckets.iter().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(counts.is_sorted() && counts.last() == Some(&7), "{buckets:?}");
    assert!(buckets[0].starts_with("0.000001\"") || buckets[0].starts_with("1e-6\""), "{buckets:?}");
    assert!(buckets.last().unwrap().starts_with("+Inf"));
    assert_eq!(service.metric("tollgate_decision_duration_seconds_count"), Some(7.0));
    assert!(service.metric("tollgate_decision_duration_seconds_sum").unwrap() > 0.0);
}

#[test]
fn process_metrics_are_those_of_the_process() {
    let service = Service::unconfigured();
    let metric = |name: &str| service.metric(name).unwrap_or_else(|| panic!("{name} is missing"));
    #[allow(clippy::cast_precision_loss, reason = "a few megabytes")]
    let resident = service.resident_kib() as f64 * 1024.0;
    let reported = metric("process_resident_memory_bytes");
    assert!((0.5..2.0).contains(&(reported / resident)), "{reported} of {resident}");
    assert!(metric("process_virtual_memory_bytes") >= reported);
    let before = metric("process_cpu_seconds_total");
    assert!((before - service.processor_time().as_secs_f64()).abs() < 1.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let age = now - metric("process_start_time_seconds");
    assert!((-2.0..120.0).contains(&age), "{age}");
    let (open, most) = (metric("process_open_fds"), metric("process_max_fds"));
    assert!(open > 5.0 && open < most, "{open} of {most}");
    assert!(metric("process_threads") >= 2.0);
    let _held: Vec<_> = (0..20).map(|_| service.connect()).collect();
    wait_for("the connections to be counted", || (metric("process_open_fds") >= open + 15.0).then_some(()));
}

#[test]
fn two_scrapes_have_the_same_order() {
    let service = Service::with_config(RULES);
    let names = || -> Vec<String> {
        let text = service.get("/metrics").text;
        text.lines().map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    service.check("alice", "/x");
    names();
    let first = names();
    for path in ["/healthz", "/readyz", "/v1/admin/rules", "/nowhere", "/openapi.json"] {
        service.get(path);
    }
    let then = names();
    let mut kept = then.iter().filter(|line| first.contains(line));
    assert!(first.iter().all(|line| kept.next() == Some(line)), "only new series are inserted");
}
