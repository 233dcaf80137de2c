use std::num::NonZeroU8;

use tollgate::identity::AddressSource;
use tollgate::rules::{Action, OnStoreFailure};

use crate::config::settings::{Settings, SettingsError};

/// Every key of the other schema, with its defaults, and one entry in each list.
const KEYS: &str = r#"
enabled = true
default_limit = 100
default_window = 60
trusted_proxy_depth = 1
failure_mode = "fail_open"
redis_url = "redis://127.0.0.1:26379/0"
redis_topology = "sentinel"
redis_pool_size = 20
redis_socket_timeout = 5.0
exemptions = [{ type = "ip", value = "10.0.0.0/8" }, { type = "user_id", value = "monitor" }]
"#;
const TABLES: &str = r#"
[[endpoints]]
pattern = "/api/v1/search"
limit = 30
window = 60
[[tiers]]
name = "premium"
limit = 1000
window = 60
[progressive_penalties]
enabled = true
detection_window = 3600
violation_threshold = 3
penalty_multipliers = [1, 2, 4, 8]
"#;

fn at_top() -> String {
    format!("{KEYS}{TABLES}")
}

fn in_table() -> String {
    let tables = TABLES.replace("[[", "[[rate_limit.").replace("[progressive", "[rate_limit.progressive");
    format!("[rate_limit]{KEYS}{tables}")
}

fn load(text: &str) -> Settings {
    Settings::from_toml(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[track_caller]
fn assert_error(text: &str, expected: &str) {
    let Err(SettingsError::Invalid { problems, .. }) = Settings::from_toml(text) else { panic!("{text}") };
    assert_eq!(problems.to_string(), expected, "{text}");
}

#[test]
fn other_schema_loads_as_written() {
    for text in [at_top(), in_table()] {
        let settings = load(&text);
        let rules = &settings.rules;
        let names: Vec<&str> = rules.rules().iter().map(|rule| &*rule.name).collect();
        let expected = [
            "exempt:ip:10.0.0.0/8",
            "exempt:user_id:monitor",
            "endpoint:/api/v1/search",
            "tier:premium",
            "default",
        ];
        assert_eq!(names, expected);
        assert_eq!(rules.rules()[0].action, Action::Allow);
        let limits = rules.rules()[2..].iter().map(|rule| rule.limits[0].limit.requests());
        assert_eq!(limits.collect::<Vec<_>>(), [30, 1_000, 100]);
        assert!(rules.settings().enabled);
        assert_eq!(rules.settings().on_store_failure, OnStoreFailure::Open);
        let penalties = rules.penalties().unwrap();
        assert_eq!((penalties.violation_threshold, &*penalties.multipliers), (3, &[1, 2, 4, 8][..]));
        let counters = &settings.to_json()["counters"];
        assert_eq!((&counters["store"], &counters["topology"]), (&"redis".into(), &"sentinel".into()));
        assert_eq!(
            (&counters["nodes"][0], &counters["timeout"]),
            (&"127.0.0.1:26379".into(), &"15ms".into())
        );
        assert_eq!(settings.client_address.source, AddressSource::Peer);
    }
}

#[test]
fn differences_are_warnings() {
    for text in [at_top(), in_table()] {
        let expected = [
            "counters.sentinel_master is not set: the sentinels are asked for \"mymaster\"",
            "redis_socket_timeout is 5s, but a decision waits for Redis at most 15ms; to wait longer, remove it and set \
             counters.timeout",
            "trusted_proxy_depth has no effect without identity.trusted_proxies: list your proxies there; \
             X-Forwarded-For is believed only from them",
            "redis_pool_size is ignored: all requests share one connection to each server; set counters.connections \
             if one is not enough",
        ];
        assert_eq!(load(&text).warnings, expected);
    }
    let unset = "[rate_limit]\nredis_url = \"redis://127.0.0.1\"";
    let warnings = load(unset).warnings;
    assert!(
        warnings[0].starts_with("failure_mode is not set: ")
            && warnings[1].starts_with("redis_topology is not set: ")
    );
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(load("redis_url = \"redis://127.0.0.1\"").warnings.is_empty(), "our own short form");
    assert!(load("[rate_limit]\ndefault_limit = 5\nendpoints = []").warnings.is_empty(), "no Redis");
    let in_url =
        "[rate_limit]\nfailure_mode = \"fail_closed\"\nredis_url = \"redis+cluster://127.0.0.1:7000\"";
    assert!(load(in_url).warnings.is_empty());
}

#[test]
fn depth_applies_to_trusted_proxies() {
    for depth in ["trusted_proxy_depth = 2\n", "[rate_limit]\ntrusted_proxy_depth = 2\n"] {
        let settings = load(&format!("{depth}[identity]\ntrusted_proxies = [\"10.0.0.0/8\"]"));
        assert_eq!(settings.client_address.depth, NonZeroU8::new(2));
        assert_eq!(settings.client_address.source, AddressSource::XForwardedFor);
        let [warning] = &*settings.warnings else { panic!("{:?}", settings.warnings) };
        assert!(warning.starts_with(
            "trusted_proxy_depth = 2 is the number of proxies: the client is address 2 from the right"
        ));
        let settings = load(&format!("{depth}[identity]\ntrusted_proxies = []"));
        assert_eq!((settings.client_address.depth, settings.warnings.len()), (None, 1));
    }
}

#[test]
fn socket_timeout_below_the_default_is_used() {
    let redis =
        "redis_url = \"redis://127.0.0.1\"\nredis_topology = \"single\"\nfailure_mode = \"fail_closed\"\n";
    let settings = load(&format!("{redis}redis_socket_timeout = 0.005"));
    assert_eq!(settings.to_json()["counters"]["timeout"], "5ms");
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
    let in_memory = load("redis_socket_timeout = 5").warnings;
    assert_eq!(in_memory, ["redis_socket_timeout is ignored: counters are in memory"]);
}

#[test]
fn keys_that_are_set_twice_are_errors() {
    assert_error(
        "default_limit = 5\n[rate_limit]\ndefault_limit = 6\ntiers = []",
        "line 3: rate_limit.default_limit: is also set at the top level, as default_limit: keep one of them",
    );
    assert_error(
        "trusted_proxy_depth = 1\n[identity]\ntrusted_proxies = [\"::1\"]\ntrusted_proxy_depth = 1",
        "line 1: trusted_proxy_depth: is another name of identity.trusted_proxy_depth: keep one of them",
    );
    assert_error(
        "redis_url = \"redis://a\"\nredis_topology = \"single\"\nfailure_mode = \"open\"\nredis_socket_timeout = 1\n\
         [counters]\ntimeout = \"1ms\"\ntopology = \"single\"",
        "line 2: redis_topology: is another name of counters.topology: keep one of them\n\
         line 4: redis_socket_timeout: is another name of counters.timeout: keep one of them",
    );
}

#[test]
fn invalid_values_are_errors() {
    let errors = "line 2: trusted_proxy_depth: must be between 1 and 64\n\
                  line 3: redis_pool_size: must be between 1 and 65536\n\
                  line 4: redis_socket_timeout: must be a number of seconds from 0.001 to 3600\n\
                  line 5: default_window: must not be negative\n\
                  line 6: rate_limit.default_limt: unknown key (did you mean default_limit?)";
    let text = "[rate_limit]\ntrusted_proxy_depth = 0\nredis_pool_size = 0\nredis_socket_timeout = \"5s\"\n\
                default_window = -1\ndefault_limt = 5\ndefault_limit = 5";
    assert_error(text, errors);
    assert_error("rate_limit = 5", "line 1: rate_limit: must be a table, not an integer");
    for timeout in ["nan", "inf", "-1.0", "0.0", "1e300", "99999999999"] {
        let text = format!("redis_socket_timeout = {timeout}");
        assert_error(&text, "line 1: redis_socket_timeout: must be a number of seconds from 0.001 to 3600");
    }
}

#[test]
fn rules_are_read_from_the_table() {
    let rules = Settings::rules_from_toml(&in_table()).unwrap();
    assert_eq!(rules.rules().len(), 5);
}
