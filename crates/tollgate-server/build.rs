//! Records the compiler version and, if it is known, the revision of the source for `tollgate_build_info`.
#![allow(clippy::print_stdout, reason = "build scripts talk to cargo on standard output")]

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TOLLGATE_REVISION");
    let unknown = || "unknown".to_owned();
    let rust = rust_version().unwrap_or_else(unknown);
    println!("cargo::rustc-env=TOLLGATE_RUST_VERSION={rust}");
    let revision = env::var("TOLLGATE_REVISION").ok().or_else(git_revision).unwrap_or_else(unknown);
    println!("cargo::rustc-env=TOLLGATE_REVISION={revision}");
}

/// `1.95.0` of `rustc 1.95.0 (…)`.
fn rust_version() -> Option<String> {
    output(&env::var("RUSTC").ok()?, &["--version"])?.split(' ').nth(1).map(str::to_owned)
}

/// The commit, in release builds only: others would be built anew after every commit.
fn git_revision() -> Option<String> {
    if env::var("PROFILE").ok()? != "release" {
        return None;
    }
    let head = output("git", &["rev-parse", "--show-prefix", "--short=12", "HEAD"])?;
    // A copy of this crate inside another repository is not built from that repository's commit.
    let revision = head.strip_prefix("crates/tollgate-server/\n")?.to_owned();
    let log = output("git", &["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    Some(revision)
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
