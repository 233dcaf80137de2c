//! Every decision is recorded once.

use std::time::Duration;

use tempfile::TempDir;
use tollgate_testkit::{SharedMariaDb, SharedPostgres};

use crate::harness::{Service, wait_for};
use crate::load::{Answered, Load, checks};
use crate::stored;

/// A node that records every decision in this database. A few of its users exceed their limits.
pub(crate) fn config(url: &str) -> String {
    format!(
        "default_limit = 200\ndefault_window = 3600\n[records]\nsample_allowed = \"all\"\nurl = \"{url}\""
    )
}

/// Everything that was answered is in the log, in window records and in rollups.
pub(crate) fn assert_all_stored(url: &str, answered: &Answered) {
    let mut ids = stored::request_ids(url);
    ids.sort();
    let distinct = {
        let mut ids = ids.clone();
        ids.dedup();
        ids.len()
    };
    assert_eq!(ids.len(), distinct, "duplicates in the log");
    let answered_only = answered.by_id.keys().filter(|id| ids.binary_search(id).is_err()).count();
    assert_eq!(answered_only, 0, "answered but not in the log");
    let decided = ids.len() as i64;
    let (requests, allowed, refused) = stored::windows(url);
    assert_eq!((requests, allowed + refused), (decided, decided));
    assert_eq!(stored::rollups(url), decided);
    let decisions = stored::decisions(url);
    for (status, decision) in [(200, "allowed"), (429, "throttled")] {
        let of = |(id, _): &(&String, &String)| {
            answered.by_id.get(*id).is_some_and(|(_, answered)| *answered == status)
        };
        assert!(decisions.iter().filter(of).all(|(_, stored)| stored == decision));
    }
}

/// Stops the service under load, and checks that nothing is missing.
fn stop_under_load(url: &str) {
    let service = Service::with_config(&config(url));
    let load = Load::start(&service, "a");
    std::thread::sleep(Duration::from_secs(2));
    service.signal("-TERM");
    let answered = load.answered();
    let (status, _folder) = service.ended();
    assert!(status.success());
    assert!(answered.count(200) > 100 && answered.count(429) > 100, "a mix of decisions");
    assert_all_stored(url, &answered);
}

fn sqlite(folder: &TempDir) -> String {
    format!("sqlite://{}", folder.path().join("r.db").display())
}

#[test]
fn sigterm_under_load_loses_nothing_on_sqlite() {
    let folder = TempDir::new().unwrap();
    stop_under_load(&sqlite(&folder));
}

#[test]
fn sigterm_under_load_loses_nothing_on_postgres() {
    stop_under_load(&SharedPostgres::get().create_database());
}

#[test]
fn sigterm_under_load_loses_nothing_on_mariadb() {
    stop_under_load(&SharedMariaDb::get().create_database());
}

#[test]
fn two_nodes_add_up() {
    let url = SharedMariaDb::get().create_database();
    let nodes = [(); 2].map(|()| Service::with_config(&config(&url)));
    let loads = [Load::start(&nodes[0], "a"), Load::start(&nodes[1], "b")];
    std::thread::sleep(Duration::from_secs(3));
    let mut answered = Answered::default();
    loads.map(Load::stop).into_iter().for_each(|one| answered.merge(one));
    for node in nodes {
        node.signal("-TERM");
        assert!(node.ended().0.success());
    }
    assert_all_stored(&url, &answered);
}

#[test]
fn running_service_stores_within_seconds() {
    let folder = TempDir::new().unwrap();
    let url = sqlite(&folder);
    let service = Service::with_config(&config(&url));
    let answered = checks(&service, "a", 300);
    wait_for("the log", || (folder.path().join("r.db").exists() && stored_rows(&url) == 300).then_some(()));
    wait_for("the windows", || (stored::windows(&url).0 == 300).then_some(()));
    assert_all_stored(&url, &answered);
    let metric = |name: &str| service.metric(name).unwrap();
    assert!(metric("tollgate_record_rows_stored_total{spool=\"log\"}") - 300.0 < 0.5);
    assert!(metric("tollgate_record_database_up") > 0.5);
    assert!(metric("tollgate_records_lost_in_crash") < 0.5);
}

fn stored_rows(url: &str) -> usize {
    // The table may not exist yet.
    std::panic::catch_unwind(|| stored::request_ids(url).len()).unwrap_or(0)
}

#[test]
fn switched_off_records_write_nothing() {
    let service = Service::with_config("[records]\nenabled = false");
    checks(&service, "a", 10);
    service.signal("-TERM");
    let (status, folder) = service.ended();
    assert!(status.success());
    assert!(!folder.path().join("data/records.db").exists() && !folder.path().join("data/records").exists());
}
