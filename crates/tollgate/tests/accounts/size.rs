//! Memory and check latency with a million users and keys. Run by hand:
//!
//! ```text
//! cargo test --release -p tollgate --test accounts -- --ignored --nocapture a_million
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use tollgate::accounts::{AccountLimits, Key};
use tollgate::{Accounts, Limiter, MemoryCounters, Request};

use crate::{NOW, at, id, known, limiter};

const MANY: u32 = 1_000_000;
const CHECKS: u32 = 20_000;
const RUNS: usize = 200;

fn user(number: u32) -> String {
    format!("user-{number:07}")
}

fn key(number: u32) -> String {
    format!("{number:016x}")
}

fn accounts(count: u32) -> Accounts {
    let mut editor = Accounts::default().edit();
    for number in 0..count {
        let limits = AccountLimits {
            requests_per_hour: Some(1_000_000 + number % 50),
            requests_per_day: Some(10_000_000),
            ..AccountLimits::default()
        };
        let tier = ["free", "pro", "vip"][number as usize % 3];
        editor.put_user(&user(number), Some(tier), limits).unwrap();
        let (id, user, tenant) = (key(number), user(number), format!("tenant-{:04}", number % 5_000));
        let mut verifier = [7; 32];
        verifier[..4].copy_from_slice(&number.to_le_bytes());
        editor
            .put_key(&Key {
                user: Some(&user),
                tenant: Some(&tenant),
                tier: Some(tier),
                limits: AccountLimits { requests_per_second: Some(1_000_000), ..AccountLimits::default() },
                expires_at: Some(NOW),
                ..Key::new(&id, verifier)
            })
            .unwrap();
    }
    editor.finish()
}

/// The resident memory in bytes, if the system reports it.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).and_then(|text| text.parse().ok());
    kilobytes.map_or(0, |kilobytes: usize| kilobytes * 1_024)
}

#[expect(clippy::disallowed_methods, reason = "a measurement needs a clock")]
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// A limiter with `count` accounts.
fn with(count: u32) -> Limiter<MemoryCounters> {
    let limiter = limiter("default_limit = 1000000000\ndefault_window = 1");
    limiter.update_accounts(|_| accounts(count));
    limiter
}

/// Nanoseconds per check in each of two limiters: the minimum of many alternating runs.
fn per_check(limiters: [&Limiter<MemoryCounters>; 2], requests: &[Request<'_>]) -> [f64; 2] {
    let mut least = [f64::INFINITY; 2];
    for _ in 0..RUNS {
        for (least, limiter) in least.iter_mut().zip(limiters) {
            let (time, ()) = timed(|| {
                for request in requests.iter().cycle().take(CHECKS as usize) {
                    black_box(limiter.check_now(request, NOW));
                }
            });
            *least = least.min(time.as_secs_f64() * 1e9 / f64::from(CHECKS));
        }
    }
    least
}

#[test]
#[ignore = "a measurement: see the head of the file"]
fn a_million_users_and_a_million_keys() {
    let before = resident();
    let (made_in, accounts) = timed(|| accounts(MANY));
    println!("made in {made_in:?}: {accounts:?}");
    println!("resident: {} MB more than before", (resident() - before) / 1_000_000);
    let (edited_in, edited) = timed(|| {
        let mut editor = accounts.edit();
        editor.put_user(&user(7), Some("vip"), AccountLimits::default()).unwrap();
        editor.put_key(&Key::new(&key(7), [1; 32])).unwrap();
        editor.finish()
    });
    println!("one user and one key changed in {edited_in:?}: {edited:?}");
    let mut bytes = Vec::new();
    let (written_in, ()) = timed(|| accounts.write_to(&mut bytes).unwrap());
    let (read_in, read) = timed(|| Accounts::read_from(bytes.as_slice()).unwrap());
    println!(
        "{} MB on disk, written in {written_in:?}, read in {read_in:?}: {read:?}",
        bytes.len() / 1_000_000
    );
}

#[test]
#[ignore = "a measurement: see the head of the file"]
fn a_million_accounts_against_ten() {
    let [few, many] = [10, MANY].map(with);
    let names = |count: u32, name: fn(u32) -> String| (0..count).map(name).collect::<Vec<_>>();
    let (users, strangers) = (names(10, user), names(10, |number| format!("stranger-{number:07}")));
    let keys = names(10, |number| format!("api_key:{}", key(number)));
    // Spread over memory, so that every lookup misses the cache.
    let crowd = names(10_000, |number| format!("stranger-{number:07}"));
    let by_user = |names: &'static str, list: &[String]| (names, list.to_vec(), false);
    for (who, names, is_key) in [
        by_user("ten users", &users),
        ("ten keys", keys, true),
        by_user("ten strangers", &strangers),
        by_user("ten thousand strangers", &crowd),
    ] {
        let request = |name| {
            let (user, api_key) = if is_key { (None, known(name)) } else { (id(name), None) };
            Request { user, api_key, ..at("/") }
        };
        let requests: Vec<Request<'_>> = names.iter().map(|name| request(name)).collect();
        let [few, many] = per_check([&few, &many], &requests);
        println!("{who}: {few:.0} ns with ten accounts, {many:.0} ns with a million, {:.2} ×", many / few);
    }
}
