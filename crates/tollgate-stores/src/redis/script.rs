//! The decision script `charge_all.lua`: its source, the arguments of a call and its reply.
//!
//! Arguments are one packed string: parsing a dozen decimal numbers would cost the server more than the decision.

pub(crate) mod call;
pub(crate) mod keys;
pub(crate) mod reply;

use std::sync::LazyLock;

use redis::{Cmd, Script};
use tollgate::Span;

/// How long a lease is valid unless its window ends earlier. The script has the same constant.
pub(crate) const LEASE_TTL: Span = Span::from_secs(2);

const SOURCE: &str = include_str!("script/charge_all.lua");

static SHA: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// `SCRIPT LOAD`.
pub(crate) fn load() -> Cmd {
    let mut command = redis::cmd("SCRIPT");
    command.arg("LOAD").arg(SOURCE);
    command
}

/// Replaces the value of `key` if it is still `expected`.
pub(crate) fn compare_and_set(key: &str, expected: u64, value: u64) -> Cmd {
    let mut command = evalsha(1);
    command.arg(key).arg([call::flag::COMPARE_AND_SET].as_slice()).arg(expected).arg(value);
    command
}

fn evalsha(keys: usize) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(SHA.as_str()).arg(keys);
    command
}

/// The commands that a line of the script calls, for error messages. Lines count from one.
pub(crate) fn commands_at(line: usize) -> Vec<&'static str> {
    let line = line.checked_sub(1).and_then(|line| SOURCE.lines().nth(line)).unwrap_or_default();
    let calls = line.split("call('").skip(1);
    calls.filter_map(|call| call.split('\'').next()).collect()
}
