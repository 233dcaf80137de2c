//! Rules of the file and of the database together.

use tollgate_stores::sql::ItemId;

use crate::database::{alone, block, node_again, rule, stop, wait_for_version};
use crate::harness::wait_for;

#[test]
fn database_rules_apply_beside_file_rules() {
    let (service, store) = alone(
        "[[rules]]\nname = \"from-file\"\nper = [\"ip\"]\nlimits = [{ requests = 9, window = \"1h\" }]",
    );
    assert_eq!(service.check("alice", "/x").json()["limit"], serde_json::Value::Null);
    let version = store.put(rule("by-user", 4));
    wait_for_version(&service, version);
    assert_eq!(service.check("alice", "/x").json()["rule"], "by-user");
    let version = store.put(rule("by-user", 6));
    wait_for_version(&service, version);
    let answer = service.check("alice", "/x").json();
    assert_eq!(
        (&answer["limit"], &answer["remaining"]),
        (&6.into(), &4.into()),
        "what was used carries over"
    );
    let version = store.delete(ItemId::Rule("by-user".to_owned()));
    wait_for_version(&service, version);
    assert_eq!(service.check("alice", "/x").json()["rule"], serde_json::Value::Null);
}

#[test]
fn name_clash_keeps_the_last_valid_rules() {
    let (service, store) =
        alone("[[rules]]\nname = \"mine\"\nper = [\"user\"]\nlimits = [{ requests = 9, window = \"1h\" }]");
    let version = store.put(rule("mine", 4));
    wait_for_version(&service, version);
    assert_eq!(service.check("alice", "/x").json()["limit"], 9, "the file's");
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (200, &"degraded".into()));
    let output = ready.json()["database_error"].as_str().unwrap().to_owned();
    assert!(
        output.contains("\"mine\"") && output.contains("tollgate.toml") && output.contains("database"),
        "{output}"
    );
    assert!(service.log().contains("tollgate.toml define the rule"), "{}", service.log());
    assert_eq!(service.metric("tollgate_config_rules_rejected"), Some(1.0));

    let version = store.put(block("mallory"));
    wait_for_version(&service, version);
    assert_eq!(
        service.check("mallory", "/x").status,
        403,
        "who is blocked does not wait for a rule to be renamed"
    );

    store.delete(ItemId::Rule("mine".to_owned()));
    wait_for("readiness", || (service.get("/readyz").json()["status"] == "ready").then_some(()));
    assert_eq!(service.check("alice", "/x").json()["limit"], 9);
}

#[test]
fn file_that_clashes_with_the_database_is_not_reloaded() {
    let (service, store) = alone("");
    let version = store.put(rule("mine", 4));
    wait_for_version(&service, version);
    let good = std::fs::read_to_string(service.config_file()).unwrap();
    let clash = format!("{good}\n[[rules]]\nname = \"mine\"\naction = \"block\"");
    std::fs::write(service.config_file(), clash).unwrap();
    let refused = service.admin("POST", "/v1/admin/reload", "");
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("mine") && refused.text.contains("database"), "{}", refused.text);
    assert_eq!(service.check("alice", "/x").json()["limit"], 4);

    // Removing the rule from the database, as advised, is enough: the file is applied without another change.
    let removed = service.admin("DELETE", "/v1/admin/rules/mine", "");
    assert_eq!(removed.status, 204, "{}", removed.text);
    wait_for("the rule of the file", || (service.check("alice", "/x").status == 403).then_some(()));
    assert_eq!(service.get("/readyz").json()["status"], "ready");
}

#[test]
fn start_with_a_name_clash_serves_everything_else() {
    let (service, store) = alone("");
    store.put(rule("mine", 4));
    let version = store.put(rule("other", 5));
    wait_for_version(&service, version);
    let folder = stop(service);
    let service = node_again(folder);
    let serving = service.log().lines().rfind(|line| line.contains("\"serving\"")).map(str::to_owned);
    assert!(serving.is_some_and(|line| line.contains("\"rules\":2")), "{}", service.log());
    let folder = stop(service);
    // Without a snapshot it applies what does not clash.
    std::fs::remove_file(folder.path().join("data/config.snap")).unwrap();
    let file = folder.path().join("tollgate.toml");
    let clash = "[[rules]]\nname = \"mine\"\nper = [\"ip\"]\nlimits = [{ requests = 9, window = \"1h\" }]";
    let written = format!("{}\n{clash}", std::fs::read_to_string(&file).unwrap());
    std::fs::write(&file, written).unwrap();
    let service = node_again(folder);
    assert_eq!(service.check("alice", "/x").json()["rule"], "other");
    assert_eq!(service.get("/readyz").json()["status"], "degraded");

    let body = r#"{"per": ["user"], "limits": [{"requests": 1, "window": "1s"}]}"#;
    let refused = service.admin("PUT", "/v1/admin/rules/mine", body);
    assert!(refused.status == 400 && refused.text.contains("tollgate.toml"), "{}", refused.text);
    assert_eq!(service.admin("DELETE", "/v1/admin/rules/mine", "").status, 204);
    assert_eq!(service.get("/readyz").json()["status"], "ready");
    let refused = service.admin("DELETE", "/v1/admin/rules/mine", "");
    assert_eq!(refused.status, 409, "what is left is the file's: {}", refused.text);
}
