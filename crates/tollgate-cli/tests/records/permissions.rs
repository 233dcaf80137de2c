//! A database user without the right to create tables.

use tollgate_testkit::PostgresServer;

use crate::accounting::{assert_all_stored, config};
use crate::harness::{Service, wait_for};
use crate::load::checks;

#[test]
fn rows_wait_until_the_tables_can_be_created() {
    let server = PostgresServer::start();
    let admin_url = server.create_database();
    server.execute(
        "test_0",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE app LOGIN PASSWORD 'app'",
    );
    let (_, address) = admin_url.rsplit_once('@').unwrap();
    let service = Service::with_config(&config(&format!("postgres://app:app@{address}")));
    let mut answered = checks(&service, "before", 300);
    let error =
        wait_for("the cause", || service.get("/readyz").json()["records_error"].as_str().map(str::to_owned));
    assert!(
        error.starts_with("records wait in the spool: ") && error.contains("permission denied"),
        "{error}"
    );
    assert!(service.log().contains("permission denied"), "{}", service.log());
    let query = service.admin("GET", "/v1/admin/decisions", "");
    assert_eq!(query.status, 503, "{}", query.text);
    assert!(query.text.contains("the log has the reason"), "{}", query.text);
    assert_eq!(service.get("/readyz").status, 200, "decisions go on");

    server.execute("test_0", "GRANT CREATE ON SCHEMA public TO app");
    wait_for("the backlog to be stored", || {
        (service.metric("tollgate_record_rows_stored_total{spool=\"log\"}") == Some(300.0)).then_some(())
    });
    assert!(service.get("/readyz").json()["records_error"].is_null());
    answered.merge(checks(&service, "after", 10));
    service.signal("-TERM");
    assert!(service.ended().0.success());
    assert_all_stored(&admin_url, &answered);
}
