//! `/metrics` and its documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tollgate_testkit::{Certificates, RedisServer};

use crate::harness::{Service, wait_for};
use crate::{admitted, check, service, sharing};

/// Names in the docs with the prefix of a metric that are not metrics.
const NO_METRICS: [&str; 7] = [
    "tollgate_migrations",
    "tollgate_proxy_",
    "tollgate_records_migrations",
    "tollgate_server",
    "tollgate_store_",
    "tollgate_tls_",
    "tollgate_upstream_",
];

/// One metric family.
#[derive(Default)]
struct Family {
    help: String,
    kind: String,
    /// The names of its samples, without labels.
    samples: BTreeSet<String>,
    /// The names of the labels.
    labels: BTreeSet<String>,
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
            family.labels.extend(label_names(line));
        }
    }
    families
}

/// All metric families of a node on Redis, before and after an outage.
fn exported() -> BTreeMap<String, Family> {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    let service = service(3, &counters, "action = \"log_only\"\ncount = \"on_failure\"");
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
    all.extend(families(&metrics_over_tls()));
    all.extend(families(&Service::with_config(PROXY).get("/metrics").text));
    all.extend(families(&metrics_with_parquet_files()));
    all
}

/// The metrics of a node with `[records.parquet]`.
fn metrics_with_parquet_files() -> String {
    let folder = TempDir::new().unwrap();
    let service =
        Service::with_config(&format!("[records]\nparquet = \"file://{}\"", folder.path().display()));
    wait_for("the spools", || {
        let text = service.get("/metrics").text;
        text.contains("tollgate_record_parquet_up").then_some(text)
    })
}

/// A node with a reverse proxy.
const PROXY: &str =
    "[proxy]\nlisten = \"127.0.0.1:0\"\n[[proxy.routes]]\nupstreams = [\"http://127.0.0.1:9\"]\n";

/// The metrics of a node with `[server.tls]`.
fn metrics_over_tls() -> String {
    let folder = TempDir::new().unwrap();
    let Certificates { server, server_key, authority, .. } = Certificates::create_in(folder.path());
    let tls = format!(
        "[server.tls]\ncertificate_file = \"{}\"\nkey_file = \"{}\"",
        server.display(),
        server_key.display()
    );
    let service = Service::with_config(&tls);
    let url = format!("https://localhost:{}/metrics", service.address.port());
    let scraped = Command::new("curl").args(["-sS", &url, "--cacert"]).arg(authority).output().unwrap();
    String::from_utf8(scraped.stdout).unwrap()
}

#[test]
fn scraping_twice_counts_nothing_twice() {
    let redis = RedisServer::start();
    let service = sharing(3, &format!("url = \"{}\"\ntimeout = \"10s\"\nleases = false", redis.url()), "");
    assert_eq!(admitted(&service, "alice", 3), 3);
    let charges = |service: &Service| service.metric("tollgate_store_charges_total");
    assert_eq!([charges(&service), charges(&service), charges(&service)], [Some(3.0); 3]);
}

/// The label names of a sample. No value in these tests contains a comma.
fn label_names(line: &str) -> Vec<String> {
    let labels =
        line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
    let names = labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
    names.filter(|name| name != "le").collect()
}

/// Name, type and labels of each metric, as in the table of docs/operations.md.
type Described = BTreeMap<String, (String, BTreeSet<String>)>;

fn described(families: BTreeMap<String, Family>) -> Described {
    let describe = |(name, family): (String, Family)| {
        assert!(family.help.len() > 1, "{name} has no help");
        // OpenMetrics omits the suffix of counters in metadata lines.
        let (name, samples) = match &*family.kind {
            "counter" => (format!("{name}_total"), vec![format!("{name}_total")]),
            "histogram" => {
                (name.clone(), ["bucket", "count", "sum"].map(|end| format!("{name}_{end}")).to_vec())
            }
            _ => (name.clone(), vec![name]),
        };
        assert_eq!(family.samples, BTreeSet::from_iter(samples), "{name} is a {}", family.kind);
        (name, (family.kind, family.labels))
    };
    families.into_iter().map(describe).collect()
}

/// The table of metrics in docs/operations.md.
fn documented() -> Described {
    let text = read("docs/operations.md");
    let table = text.split("| metric | type | labels |").nth(1).expect("the table").lines().skip(2);
    let rows = table.take_while(|line| line.starts_with("| "));
    let unquoted = |cell: &str| cell.trim().trim_matches('`').to_owned();
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        assert_eq!(cells.len(), 5, "{row}");
        assert!(!cells[3].trim().is_empty() && !cells[4].trim().is_empty(), "{row}");
        let labels = cells[2].split(',').map(unquoted).filter(|label| !label.is_empty()).collect();
        (unquoted(cells[0]), (unquoted(cells[1]), labels))
    })
    .collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).unwrap()
}

#[test]
fn operations_table_equals_the_exported_metrics() {
    assert_eq!(described(exported()), documented());
}

#[test]
fn memory_node_exports_all_metrics_of_what_it_uses() {
    let service = Service::with_config(
        "[[rules]]\nname = \"trial\"\nper = \"user\"\naction = \"log_only\"\ncount = \"on_failure\"\n\
         limits = [{ requests = 1, window = \"1h\" }]",
    );
    service.check("alice", "/x");
    let is_absent = |name: &str| {
        let starts = [
            "tollgate_store_",
            "tollgate_tls_",
            "tollgate_record_parquet_",
            "tollgate_degraded_decisions_total",
        ];
        let is_of_proxy = name.starts_with("tollgate_upstream_")
            || (name.starts_with("tollgate_proxy_") && !name.starts_with("tollgate_proxy_headers_"));
        is_of_proxy || starts.iter().any(|start| name.starts_with(start))
    };
    let expected = documented().into_iter().filter(|(name, _)| !is_absent(name));
    assert_eq!(described(families(&service.get("/metrics").text)), expected.collect());
}

#[test]
fn docs_name_only_exported_metrics() {
    let documented = documented();
    let is_known = |name: &&str| {
        let ends = ["_bucket", "_count", "_sum"];
        let family = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        documented.contains_key(*name) || documented.contains_key(family) || NO_METRICS.contains(name)
    };
    for file in ["docs/operations.md", "docs/redis.md", "docs/database.md", "docs/api.md", "ARCHITECTURE.md"]
    {
        let text = read(file);
        let unknown: Vec<&str> = named(&text).into_iter().filter(|name| !is_known(name)).collect();
        assert_eq!(unknown, [""; 0], "{file}");
    }
}

/// Words with the prefix of a metric.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("tollgate_")).collect()
}
