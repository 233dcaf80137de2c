//! A million users and a million keys: how much memory, how long a check takes. By hand, because a figure is wanted:
//!
//! ```text
//! cargo test --release -p tollgate --test accounts -- --ignored --nocapture a_million
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use tollgate::accounts::{NewKey, Numbers};
use tollgate::{Accounts, Limiter, MemoryCounters, Request};

use crate::{NOW, at, id, known, limiter};

const MANY: u32 = 1_000_000;
const CHECKS: u32 = 1_000_000;

fn user(number: u32) -> String {
    format!("user-{number:07}")
}

fn key(number: u32) -> String {
    format!("{number:016x}")
}

fn accounts(count: u32) -> Accounts {
    let mut editor = Accounts::default().edit();
    for number in 0..count {
        let numbers = Numbers {
            per_hour: Some(1_000_000 + number % 50),
            per_day: Some(10_000_000),
            ..Numbers::default()
        };
        let tier = ["free", "pro", "vip"][number as usize % 3];
        editor.put_user(&user(number), Some(tier), numbers).unwrap();
        let (id, user, tenant) = (key(number), user(number), format!("tenant-{:04}", number % 5_000));
        let mut verifier = [7; 32];
        verifier[..4].copy_from_slice(&number.to_le_bytes());
        editor
            .put_key(&NewKey {
                user: Some(&user),
                tenant: Some(&tenant),
                tier: Some(tier),
                numbers: Numbers { per_second: Some(1_000_000), ..Numbers::default() },
                expires_at: Some(NOW),
                ..NewKey::new(&id, verifier)
            })
            .unwrap();
    }
    editor.finish()
}

/// What the process holds, in bytes, where the system tells.
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

/// The least of several runs of checks of everybody in turn, in nanoseconds each.
fn per_check(limiter: &Limiter<MemoryCounters>, requests: &[Request<'_>]) -> f64 {
    let run = || {
        let (time, ()) = timed(|| {
            for request in requests.iter().cycle().take(CHECKS as usize) {
                black_box(limiter.check_now(request, NOW));
            }
        });
        time.as_secs_f64() * 1e9 / f64::from(CHECKS)
    };
    (0..5).map(|_| run()).fold(f64::INFINITY, f64::min)
}

fn measure(count: u32, checked: u32) -> [f64; 3] {
    let limiter = limiter("default_limit = 1000000000\ndefault_window = 1");
    limiter.update_accounts(|_| accounts(count));
    // As many clients are checked either way, so that the counters cost the same. Far apart, as they come in life.
    let numbers = || (0..checked).map(|number| number.wrapping_mul(7_919) % count);
    let users: Vec<String> = numbers().map(user).collect();
    let keys: Vec<String> = numbers().map(|number| format!("api_key:{}", key(number))).collect();
    let strangers: Vec<String> = (0..checked).map(|number| format!("stranger-{number:07}")).collect();
    let by_user = |name| Request { user: id(name), ..at("/") };
    let by_key = |name| Request { api_key: known(name), ..at("/") };
    [
        per_check(&limiter, &users.iter().map(|name| by_user(name)).collect::<Vec<_>>()),
        per_check(&limiter, &keys.iter().map(|name| by_key(name)).collect::<Vec<_>>()),
        per_check(&limiter, &strangers.iter().map(|name| by_user(name)).collect::<Vec<_>>()),
    ]
}

#[test]
#[ignore = "a measurement: see the head of the file"]
fn a_million_users_and_a_million_keys() {
    let before = resident();
    let (made_in, accounts) = timed(|| accounts(MANY));
    println!("made in {made_in:?}: {accounts:?}");
    println!("heap_bytes: {} MB", accounts.heap_bytes() / 1_000_000);
    println!("resident: {} MB more than before", (resident() - before) / 1_000_000);
    let (edited_in, edited) = timed(|| {
        let mut editor = accounts.edit();
        editor.put_user(&user(7), Some("vip"), Numbers::default()).unwrap();
        editor.put_key(&NewKey::new(&key(7), [1; 32])).unwrap();
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
    for (what, checked) in [("the same ten", 10), ("ten thousand in turn", 10_000)] {
        let [few, many] = [10, MANY].map(|count| measure(count, checked));
        for (who, (few, many)) in ["users", "keys", "strangers"].iter().zip(few.iter().zip(&many)) {
            println!("{who}, {what}: {few:.0} ns with ten, {many:.0} ns with a million, {:.2} ×", many / few);
        }
    }
}
