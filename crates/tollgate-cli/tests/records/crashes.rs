//! `kill -9` under load: what was written is stored once, and what was lost is bounded.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tollgate_testkit::PostgresServer;

use crate::accounting::config;
use crate::harness::{Service, wait_for};
use crate::load::{Answered, Load};
use crate::stored;

/// A multiple of three, so that the database is up in the end. More in `./scripts/test --long`.
fn kills() -> usize {
    if std::env::var_os("LONG_TESTS").is_some() { 501 } else { 30 }
}

/// Longer than any interval between two writes, also on a busy machine.
const TAIL_MAX: Duration = Duration::from_secs(5);

/// What one killed process had answered, and when it was killed.
pub(crate) struct Killed {
    answered: Answered,
    at: Instant,
}

#[test]
fn kills_lose_only_the_last_moments() {
    let server = PostgresServer::start();
    let url = server.create_database();
    // Every third process finds the database down, and the next one up again with a backlog.
    let (killed, folder) = kill_under_load(&config(&url), kills(), |round| match round % 3 {
        1 => server.kill9(),
        2 => server.restart(),
        _ => {}
    });
    let last = start(Some(folder), "");
    let lost_max = wait_for("the crash to be noticed", || {
        last.metric("tollgate_records_lost_in_crash").filter(|rows| *rows > 0.0)
    });
    last.signal("-TERM");
    assert!(last.ended().0.success());
    account(&stored::request_ids(&url), stored::windows(&url).0, &killed, lost_max);
}

/// Starts a process, kills it under load, and so on. `prepare` is called before each start.
pub(crate) fn kill_under_load(
    config: &str,
    kills: usize,
    mut prepare: impl FnMut(usize),
) -> (Vec<Killed>, tempfile::TempDir) {
    let (mut killed, mut folder) = (Vec::new(), None);
    for round in 0..kills {
        prepare(round);
        let service = start(folder, config);
        let load = Load::start(&service, &format!("r{round}"));
        std::thread::sleep(Duration::from_millis(150 + 37 * (round as u64 % 11)));
        service.signal("-KILL");
        let at = Instant::now();
        killed.push(Killed { answered: load.answered(), at });
        folder = Some(service.ended().1);
    }
    (killed, folder.unwrap())
}

fn start(folder: Option<tempfile::TempDir>, new_config: &str) -> Service {
    match folder {
        Some(folder) => {
            let file = folder.path().join("tollgate.toml");
            Service::start(folder, Some(&file), &[])
        }
        None => Service::with_config(new_config),
    }
}

/// `ids` are those in the log, `requests` the sum of the window records.
pub(crate) fn account(ids: &[String], requests: i64, killed: &[Killed], lost_max: f64) {
    let stored: HashSet<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(ids.len(), stored.len(), "duplicates in the log");
    let known: HashSet<&str> = killed
        .iter()
        .flat_map(|one| one.answered.by_id.keys().chain(&one.answered.unanswered))
        .map(String::as_str)
        .collect();
    assert!(stored.is_subset(&known), "rows that nobody sent");
    let (mut answered, mut lost, mut longest) = (0, 0, Duration::ZERO);
    for one in killed {
        let missing = one.answered.by_id.iter().filter(|(id, _)| !stored.contains(id.as_str()));
        let tail: Vec<Duration> = missing.map(|(_, (at, _))| one.at.saturating_duration_since(*at)).collect();
        answered += one.answered.by_id.len();
        lost += tail.len();
        longest = longest.max(tail.iter().copied().max().unwrap_or_default());
        assert!(tail.len() as f64 <= lost_max, "{} lost, at most {lost_max} announced", tail.len());
        assert!(tail.iter().all(|age| *age <= TAIL_MAX), "a row was lost {longest:?} before the kill");
    }
    println!(
        "{} kills: {answered} answered, {lost} lost, the oldest {longest:?} before its kill",
        killed.len()
    );
    assert!(requests <= known.len() as i64, "window records count a request twice");
    assert!(answered > 100 * killed.len() / 10, "too little load to show anything: {answered}");
}
