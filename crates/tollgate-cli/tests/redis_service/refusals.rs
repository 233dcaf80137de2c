//! Redis rejects the node: nothing is admitted until an operator acts.

use std::process::Command;

use tollgate_testkit::{RedisOptions, RedisServer};

use crate::harness::{Service, wait_for};
use crate::{check, config, service, sharing, wait_until_it_is};

fn protected() -> RedisServer {
    RedisServer::start_with(&RedisOptions {
        password: Some("right-secret".to_owned()),
        ..RedisOptions::default()
    })
}

fn refused(service: &Service) -> String {
    wait_until_it_is(service, "misconfigured");
    for _ in 0..5 {
        let answer = service.check("alice", "/x");
        assert_eq!(
            (answer.status, answer.error().1.as_str()),
            (503, "SERVICE_UNAVAILABLE"),
            "{}",
            answer.text
        );
        assert!(answer.text.contains("/readyz"), "{}", answer.text);
    }
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &"misconfigured".into()), "{}", ready.text);
    ready.json()["store_error"].as_str().unwrap().to_owned()
}

#[test]
fn wrong_or_missing_password_admits_nobody() {
    let redis = protected();
    for (url, code) in [
        (format!("redis://:canary@{}", redis.address()), "WRONGPASS"),
        (format!("redis://{}", redis.address()), "NOAUTH"),
    ] {
        // `open` applies to an unreachable store, not to a misconfigured one.
        let service = service(100, &format!("url = \"{url}\""), "on_store_failure = \"open\"");
        let reason = refused(&service);
        assert!(reason.contains(code), "{reason}");
        assert!(service.log().contains(code), "{}", service.log());
        // The mode is that of the rule; that the store rejects the node is counted as `unavailable`.
        let metrics = service.get("/metrics").text;
        for sample in [
            "tollgate_degraded_decisions_total{rule=\"by-user\",mode=\"open\"",
            "tollgate_decisions_total{rule=\"by-user\",decision=\"unavailable\"}",
        ] {
            assert!(metrics.contains(sample), "{sample}: {metrics}");
        }
        assert!(!metrics.contains("mode=\"closed\""), "{metrics}");
    }
    let right = sharing(100, &format!("url = \"{}\"\ntimeout = \"10s\"", redis.url()), "");
    assert_eq!(check(&right, "alice"), (200, false));
}

#[test]
fn redis_password_is_in_no_output() {
    let redis = protected();
    let counters = format!("url = \"redis://{}\"\npassword = \"canary\"", redis.address());
    let service = service(100, &counters, "");
    let reason = refused(&service);
    let output = [
        reason,
        service.log(),
        service.banner.clone(),
        service.get("/metrics").text,
        service.admin("GET", "/v1/admin/rules", "").text,
    ];
    for text in output {
        assert!(!text.contains("canary"), "{text}");
    }
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config(1, &counters, "")).unwrap();
    let mut show = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let shown = show.args(["config", "show", "--config"]).arg(&file).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("password = \"***\"") && !shown.contains("canary"), "{shown}");
}

#[test]
fn login_without_permissions_admits_nobody() {
    let users = vec!["gate on >secret ~* +@connection".to_owned()];
    let redis = RedisServer::start_with(&RedisOptions { users, ..RedisOptions::default() });
    let counters = format!("url = \"redis://gate:secret@{}\"", redis.address());
    let service = service(100, &counters, "");
    let reason = refused(&service);
    assert!(reason.contains("NOPERM"), "{reason}");
    redis.cli(&["ACL", "SETUSER", "gate", "+@all"]);
    wait_for("the login to be taken", || (check(&service, "alice") == (200, false)).then_some(()));
    wait_until_it_is(&service, "ready");

    // Revoked at run time: logged once, and once when restored.
    let log_lines = |words: &str| service.log().matches(words).count();
    wait_for("the recovery to be logged", || (log_lines("accepts this node again") == 1).then_some(()));
    let before = log_lines("no request is admitted");
    redis.cli(&["ACL", "SETUSER", "gate", "-evalsha"]);
    wait_for("the rejection to be logged", || {
        (check(&service, "alice").0 == 503 && log_lines("no request is admitted") == before + 1).then_some(())
    });
    redis.cli(&["ACL", "SETUSER", "gate", "+@all"]);
    wait_for("the recovery to be logged again", || {
        check(&service, "alice");
        (log_lines("accepts this node again") == 2).then_some(())
    });
    assert_eq!(log_lines("no request is admitted"), before + 1);
}
