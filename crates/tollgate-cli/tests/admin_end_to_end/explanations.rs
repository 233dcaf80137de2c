//! What commands say about decisions, clients and rules of a running service.

use std::fs;

use crate::cli_runner::CliRunner;
use crate::harness::{Service, wait_for};
use crate::support::{Files, run};

const CONFIG: &str = "\
[[rules]]
name = \"bots\"
priority = 1
action = \"block\"
when = { ips = [\"192.0.2.0/24\"] }
response = { message = \"no bots here\" }

[[exemptions]]
type = \"user_id\"
value = \"root\"

[[rules]]
name = \"hourly\"
per = [\"user\"]
limits = [{ requests = 100, window = \"1h\" }]
";

#[test]
fn message_of_a_block_rule_is_printed_once() {
    let service = Service::with_config(CONFIG);
    let cli = CliRunner::of(&service);
    for command in ["check", "explain"] {
        let ran = cli.run(&[command, "--ip", "192.0.2.7", "--endpoint", "/x"]);
        assert_eq!(ran.stdout.matches("no bots here").count(), 1, "{}", ran.stdout);
    }
}

#[test]
fn client_without_traffic_has_no_counters_in_use() {
    let service = Service::with_config(CONFIG);
    let cli = CliRunner::of(&service);
    let shown = cli.done(&["inspect", "nosuch"]);
    assert!(
        shown.starts_with("user:nosuch: no counters in use in memory; limits that would apply:\n"),
        "{shown}"
    );
    cli.done(&["check", "--user", "alice", "--endpoint", "/x"]);
    let shown = cli.done(&["inspect", "alice"]);
    assert!(shown.starts_with("user:alice: 1 of 1 counter in use, in memory\n"), "{shown}");
}

#[test]
fn inspect_names_inactive_and_unknown_keys() {
    let service = Service::with_config("default_limit = 5");
    let cli = CliRunner::of(&service);
    let create = |more: &[&str]| cli.json(&[&["keys", "create", "k", "--scope", "check"], more].concat());
    let id = |key: &serde_json::Value| format!("api_key:{}", key["id"].as_str().unwrap());
    let (active, revoked, expired) = (create(&[]), create(&[]), create(&["--expires", "1s"]));
    cli.done(&["keys", "revoke", revoked["id"].as_str().unwrap(), "--yes"]);
    let status = |client: &str| cli.json(&["inspect", client])["key_status"].clone();
    assert_eq!((status(&id(&active)), status("alice")), ("active".into(), serde_json::Value::Null));
    assert_eq!((status(&id(&revoked)), status("api_key:made-up")), ("revoked".into(), "unknown".into()));
    wait_for("the key to expire", || (status(&id(&expired)) == "expired").then_some(()));
    for (client, words) in [
        (id(&revoked), "this API key is revoked: checks with it are refused"),
        (id(&expired), "this API key has expired: checks with it are refused"),
        ("api_key:made-up".to_owned(), "unknown API key: this server did not issue it"),
    ] {
        let shown = cli.done(&["inspect", &client]);
        assert!(shown.contains(words), "{shown}");
    }
    assert!(!cli.done(&["inspect", &id(&active)]).contains("API key"));
}

#[test]
fn explain_says_that_a_cost_can_never_pass() {
    let service = Service::with_config(CONFIG);
    let cli = CliRunner::of(&service);
    let explain = ["explain", "--user", "alice", "--endpoint", "/x", "--cost"];
    let shown = cli.done(&[&explain[..], &["200"]].concat());
    let reason =
        "refuses: the cost 200 exceeds the 100 that 100 per 1h admits, so the request can never pass";
    assert!(shown.replace('\n', " ").contains(reason), "{shown}");
    let passing = cli.json(&[&explain[..], &["100"]].concat());
    assert_eq!(passing["rules"][0]["reason"], "matches: its limits apply");
}

#[test]
fn rules_that_allow_or_block_have_no_layer_anywhere() {
    let service = Service::with_config(CONFIG);
    let cli = CliRunner::of(&service);
    let files = Files::new(&[(
        "db.toml",
        "[[rules]]\nname = \"net\"\naction = \"allow\"\nwhen = { ips = [\"10.0.0.0/8\"] }\n",
    )]);
    cli.done(&["rules", "put", &files.path("db.toml")]);
    let layers = |body: &serde_json::Value| -> Vec<(String, serde_json::Value)> {
        let rules = body["rules"].as_array().unwrap().iter();
        let mut layers: Vec<_> =
            rules.map(|rule| (rule["name"].as_str().unwrap().to_owned(), rule["layer"].clone())).collect();
        layers.sort_by(|a, b| a.0.cmp(&b.0));
        layers
    };
    let named = |name: &str, layer: &str| (name.to_owned(), layer.into());
    let expected =
        [named("bots", ""), named("exempt:user_id:root", ""), named("hourly", "user"), named("net", "")];
    assert_eq!(layers(&cli.json(&["rules", "list"])), expected);
    assert_eq!(layers(&cli.json(&["explain", "--ip", "203.0.113.9", "--endpoint", "/", "--all"])), expected);
    let offline = run(&["rules", "list", service.config_file().to_str().unwrap(), "--json"]).json();
    assert_eq!(layers(&offline), expected[..3]);
}

#[test]
fn reload_logs_rules_of_the_file_and_in_force() {
    let service = Service::with_config(CONFIG);
    let cli = CliRunner::of(&service);
    let files = Files::new(&[(
        "db.toml",
        "[[rules]]\nname = \"net\"\naction = \"allow\"\nwhen = { ips = [\"10.0.0.0/8\"] }\n",
    )]);
    cli.done(&["rules", "put", &files.path("db.toml")]);
    let with_another = format!("{CONFIG}\n[[tiers]]\nname = \"pro\"\nlimit = 5\nwindow = 60\n");
    fs::write(service.config_file(), with_another).unwrap();
    let reloaded = service.admin("POST", "/v1/admin/reload", "");
    assert_eq!((&reloaded.json()["rules"], &reloaded.json()["file_rules"]), (&5.into(), &4.into()));
    let log = service.log();
    let line = log.lines().find(|line| line.contains("settings reloaded")).unwrap();
    assert!(line.contains("\"file_rules\":4") && line.contains("\"rules_in_force\":5"), "{line}");
}
