//! Ten million fake client ids (threat 16). A test binary of its own, because it measures the memory of the process.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::num::NonZeroUsize;

use tollgate::counters::memory::{MemoryBounds, MemoryCounters};
use tollgate::{ApiKey, Endpoint, Id, Limiter, Request, RuleSet, Span, Timestamp};

const FLOOD: u64 = 10_000_000;
const KEYS_MAX: usize = 200_000;
const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

/// A rule per algorithm, with windows so long that nothing is restored during the test.
const RULES: &str = r#"
[[rules]]
name = "bucket"
per = ["client"]
layer = "a"
algorithm = "token_bucket"
limits = [{ requests = 5, window = "1d" }]
[[rules]]
name = "sliding"
per = ["client", "endpoint"]
layer = "b"
algorithm = "sliding_window_counter"
limits = [{ requests = 5, window = "1d" }]
[[rules]]
name = "fixed"
per = ["ip"]
layer = "c"
algorithm = "fixed_window"
limits = [{ requests = 5, window = "1d" }]
"#;

/// The resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() * 1_024
}

fn asked<'a>(name: &'a str, path: &'a str, kind: u64) -> Request<'a> {
    let mut request = Request::new(Endpoint::parse(path).unwrap());
    match kind {
        0 => request.user = Some(Id::parse(name).unwrap()),
        1 => request.api_key = Some(ApiKey::parse(name).unwrap()),
        _ => request.login = Some(Id::parse(name).unwrap()),
    }
    request
}

#[test]
fn flood_of_client_ids_is_bounded_and_evicts_no_victim() {
    let bounds = MemoryBounds { keys_max: NonZeroUsize::new(KEYS_MAX).unwrap(), ..MemoryBounds::default() };
    let limiter = Limiter::new(RuleSet::from_toml(RULES).unwrap(), MemoryCounters::new(bounds));
    let victim = asked("victim", "/x", 0);
    assert!((0..5).all(|_| limiter.check_now(&victim, NOW).admits()));
    let before = resident();
    let mut most = 0;
    for number in 0..FLOOD {
        let now = NOW + Span::from_micros(number * 100);
        let (name, path) = (format!("{number:x}"), format!("/{}", number % 977));
        limiter.check_now(&asked(&name, &path, number % 3), now);
        if number % 100_000 == 0 {
            most = most.max(resident());
            assert!(!limiter.check_now(&victim, now).admits(), "the victim was admitted after {number}");
        }
    }
    let grown = most.saturating_sub(before);
    println!("{} bytes for {} counters", grown, limiter.counters().len());
    assert!(limiter.counters().len() <= KEYS_MAX);
    // 51 bytes per counter, as docs/scale.md says, and allocator overhead.
    assert!(grown <= KEYS_MAX * 51 + (4 << 20), "{grown} bytes");
    assert!(limiter.counters().overflow_charges() > FLOOD / 2);
}
