//! `init`, `config schema` and `doctor`: commands for the setup of a node.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod support;

use std::os::unix::fs::PermissionsExt;

use support::{Files, finished, run, tollgate};
use tollgate_testkit::{Certificates, Leaf, RedisServer, free_port};

/// The template with every commented setting switched on: `# key = …` and `# [[rules]]`.
fn uncommented(template: &str) -> String {
    let uncomment = |line: &str| {
        let rest = line.strip_prefix("# ")?;
        let is_setting =
            rest.starts_with("[[") || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        is_setting.then(|| rest.to_owned())
    };
    template.lines().map(|line| uncomment(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn init_writes_a_valid_file_and_its_schema() {
    let files = Files::new(&[("keys.secret", "0123456789abcdef0123456789abcdef")]);
    let file = files.path("conf/tollgate.toml");
    let made = run(&["init", &file]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stdout.contains("tollgate serve --config"), "{}", made.stdout);
    let template = std::fs::read_to_string(files.file("conf/tollgate.toml")).unwrap();
    assert_eq!(run(&["rules", "lint", &file]).code, 0);
    let shown = run(&["config", "show", "--config", &file, "--json"]);
    assert_eq!(shown.json()["rules"].as_array().unwrap().len(), 2, "{}", shown.stderr);
    let schema: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(files.file("conf/tollgate.schema.json")).unwrap())
            .unwrap();
    assert_eq!(schema, run(&["config", "schema"]).json());
    let all = uncommented(&template).replace("/etc/tollgate/keys.secret", &files.path("keys.secret"));
    std::fs::write(files.file("all.toml"), &all).unwrap();
    let shown = run(&["config", "show", "--config", &files.path("all.toml"), "--json"]);
    assert_eq!(shown.code, 0, "{}\n{all}", shown.stderr);
    assert_eq!(shown.json()["rules"].as_array().unwrap().len(), 4);
    assert_eq!(shown.json()["counters"]["store"], "redis");
}

#[test]
fn init_keeps_an_existing_file() {
    let files = Files::new(&[("tollgate.toml", "default_limit = 7\n")]);
    let path = files.path("tollgate.toml");
    let refused = run(&["init", &path]);
    assert!(refused.code == 2 && refused.stderr.contains("--force"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "default_limit = 7\n");
    assert!(!files.file("tollgate.schema.json").exists(), "nothing is written");
    assert_eq!(run(&["init", &path, "--force"]).code, 0);
    assert_ne!(std::fs::read_to_string(&path).unwrap(), "default_limit = 7\n");
}

#[test]
fn doctor_of_a_new_node_is_content_and_changes_nothing() {
    let files = Files::new(&[]);
    let ran = run(&["doctor", "--data-dir", &files.path("data"), "--json"]);
    assert_eq!((ran.code, ran.json()["status"].as_str()), (0, Some("ok")), "{}{}", ran.stdout, ran.stderr);
    assert!(!files.file("data").exists());
}

#[test]
fn doctor_names_each_problem_and_its_remedy() {
    let redis = RedisServer::start();
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    redis.cli(&["ZADD", "rl:{fleet}:nodes:1", "99999999999", "0123456789abcdef 0.0.1"]);
    let settings = format!("redis_url = \"redis://127.0.0.1:{}\"\n", redis.port());
    let files = Files::new(&[("tollgate.toml", &settings)]);
    std::fs::create_dir(files.file("data")).unwrap();
    std::fs::set_permissions(files.file("data"), PermissionsExt::from_mode(0o755)).unwrap();
    let ran = run(&["doctor", "--config", &files.path("tollgate.toml"), "--data-dir", &files.path("data")]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    for expected in ["chmod 700", "0.0.1", "set maxmemory-policy to noeviction", "what to do: "] {
        assert!(ran.stdout.contains(expected), "{expected}: {}", ran.stdout);
    }
}

#[test]
fn doctor_fails_on_unreachable_servers() {
    let url = format!("postgres://me:hunter2@127.0.0.1:{}/tollgate", free_port());
    let redis = format!("redis://:hunter2@127.0.0.1:{}", free_port());
    let mut command = tollgate();
    command.args(["doctor", "--json"]).env("TOLLGATE_DATABASE__URL", &url).env("TOLLGATE_REDIS_URL", &redis);
    let ran = finished(command.env("TOLLGATE_DATABASE__CONNECT_TIMEOUT", "2s").output().unwrap());
    assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
    let json = ran.json();
    let failed = json["checks"].as_array().unwrap().iter().filter(|check| check["status"] == "fail").count();
    assert_eq!(failed, 2, "{json:#}");
    assert!(!ran.stdout.contains("hunter2") && !ran.stderr.contains("hunter2"));
}

#[test]
fn doctor_reports_certificates_that_expire() {
    let files = Files::new(&[]);
    let folder = files.file("");
    let certificates = Certificates::create_in(&folder);
    let until = |end| Leaf { validity: Some(("20200101000000Z", end)), ..Leaf::default() };
    let expired = certificates.issue("expired", &until("20200102000000Z"));
    let valid = certificates.issue("valid", &until("20491231000000Z"));
    let soon = certificates.issue("soon", &Leaf::default());
    for ((certificate, key), status, found) in
        [(&expired, "fail", "has expired"), (&soon, "warn", "expires in "), (&valid, "ok", "is valid for ")]
    {
        let settings = format!(
            "[server.tls]\ncertificate_file = \"{}\"\nkey_file = \"{}\"\n",
            certificate.display(),
            key.display()
        );
        std::fs::write(files.file("tollgate.toml"), settings).unwrap();
        let settings = files.path("tollgate.toml");
        let ran = run(&["doctor", "--config", &settings, "--data-dir", &files.path("data"), "--json"]);
        let json = ran.json();
        let mut checks = json["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check.to_string().contains("certificate ")).expect("a check");
        assert_eq!(check["status"], status, "{json:#}");
        assert!(check.to_string().contains(found), "{json:#}");
    }
}
