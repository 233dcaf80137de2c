//! `/metrics`: types of the series, and their documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use tollgate_testkit::RedisServer;

use crate::harness::{Service, wait_for};
use crate::{admitted, check, service, sharing};

/// All gauges. Everything else must be a counter.
const GAUGES: [&str; 23] = [
    "tollgate_config_blocks",
    "tollgate_config_database_up",
    "tollgate_config_from_snapshot",
    "tollgate_config_api_keys",
    "tollgate_config_rules_rejected",
    "tollgate_config_key_secret_differs",
    "tollgate_config_users",
    // Decreases when a backup of the database is restored.
    "tollgate_config_version",
    "tollgate_clock_offset_seconds",
    "tollgate_config_last_reload_success",
    "tollgate_connections",
    "tollgate_counter_bytes",
    "tollgate_counters",
    "tollgate_store_breaker_open",
    "tollgate_store_clock_offset_seconds",
    "tollgate_store_connected",
    "tollgate_store_leases",
    "tollgate_store_memory_bytes",
    "tollgate_store_memory_bytes_max",
    "tollgate_store_nodes",
    "tollgate_store_over_admission_bound",
    "tollgate_store_reconcile_pending",
    "tollgate_usage_waiting",
];

/// Names in the docs with the prefix of a metric that are not metrics.
const NO_METRICS: [&str; 2] = ["tollgate_migrations", "tollgate_store_"];

/// One metric family.
#[derive(Default)]
struct Family {
    help: String,
    kind: String,
    /// The names of its samples, without labels.
    samples: BTreeSet<String>,
}

/// All metric families by name.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    let mut latest = String::new();
    let lines = text.strip_suffix("# EOF\n").expect("the text is whole").lines();
    for line in lines {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} is described twice");
            name.clone_into(&mut latest);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            assert_eq!(name, latest, "a type without help");
            kind.clone_into(&mut families.get_mut(name).unwrap().kind);
        } else {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let family = families.get_mut(&latest).unwrap_or_else(|| panic!("{line} is not described"));
            family.samples.insert(name.to_owned());
        }
    }
    families
}

/// All metric families of a node on Redis, before and after an outage.
fn exported() -> BTreeMap<String, Family> {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    let service = service(3, &counters, "action = \"log_only\"");
    wait_for("what the server says of itself, and what the rule would refuse", || {
        check(&service, "alice");
        let text = service.get("/metrics").text;
        let is_exported = |start: &&str| text.contains(*start);
        ["tollgate_store_memory_bytes{", "tollgate_shadow_refusals_total{"]
            .iter()
            .all(is_exported)
            .then_some(())
    });
    let mut all = families(&service.get("/metrics").text);
    redis.kill9();
    wait_for("the outage to be noticed", || check(&service, "bob").1.then_some(()));
    all.extend(families(&service.get("/metrics").text));
    all
}

/// The names of the samples.
fn names(families: &BTreeMap<String, Family>) -> BTreeSet<&str> {
    families.values().flat_map(|family| &family.samples).map(String::as_str).collect()
}

#[test]
fn counters_and_gauges_have_the_right_type() {
    let families = exported();
    for (name, family) in &families {
        assert!(family.help.len() > 1, "{name} has no help");
        // OpenMetrics omits the suffix of counters in metadata lines.
        let sample = match &*family.kind {
            "counter" => format!("{name}_total"),
            "gauge" => name.clone(),
            other => panic!("{name} is a {other}"),
        };
        assert!(!name.ends_with("_total"), "{name}");
        assert_eq!(family.samples, BTreeSet::from([sample]), "{name} is a {}", family.kind);
    }
    let gauges = families.iter().filter(|(_, family)| family.kind == "gauge").map(|(name, _)| &**name);
    assert_eq!(gauges.collect::<BTreeSet<_>>(), BTreeSet::from(GAUGES));
}

#[test]
fn scraping_twice_counts_nothing_twice() {
    let redis = RedisServer::start();
    let service = sharing(3, &format!("url = \"{}\"\ntimeout = \"10s\"\nleases = false", redis.url()), "");
    assert_eq!(admitted(&service, "alice", 3), 3);
    let charges = |service: &Service| service.metric("tollgate_store_charges_total");
    assert_eq!([charges(&service), charges(&service), charges(&service)], [Some(3.0); 3]);
}

#[test]
fn docs_list_every_metric() {
    let families = exported();
    let exported = names(&families);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let operations = read("docs/operations.md");
    let undocumented: Vec<_> = exported.iter().filter(|name| !named(&operations).contains(**name)).collect();
    assert!(undocumented.is_empty(), "not in docs/operations.md: {undocumented:?}");
    for file in ["docs/operations.md", "docs/redis.md", "docs/database.md", "ARCHITECTURE.md"] {
        let text = read(file);
        // Exported only after a check with an invalid client key.
        let known = |name: &&str| exported.contains(name) || *name == "tollgate_keys_refused_total";
        let unknown = named(&text).into_iter().filter(|name| !known(name) && !NO_METRICS.contains(name));
        assert_eq!(unknown.collect::<Vec<_>>(), [""; 0], "{file}");
    }
}

/// Words with the prefix of a metric.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("tollgate_")).collect()
}
