//! A limiter embedded in a process, without a server or runtime: `cargo run -p tollgate --example embedded`.
use std::time::SystemTime;

use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};

#[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "an example prints and reads the clock")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules = RuleSet::from_toml("default_limit = 3\ndefault_window = \"1m\"")?;
    let limiter = Limiter::new(rules, MemoryCounters::default());
    let request = Request { user: Some(Id::parse("alice")?), ..Request::new(Endpoint::parse("/search")?) };
    for _ in 0..5 {
        let decision = limiter.check_now(&request, Timestamp::from(SystemTime::now()));
        match decision.retry_after() {
            None => println!("admitted"),
            Some(wait) => println!("refused, retry after {} s", wait.as_secs_ceil()),
        }
    }
    Ok(())
}
