//! The load: wrk on its own core, 32 connections (or 16) in a closed loop, 10,000 clients (`check.lua`).

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub const CONNECTIONS: u32 = 32;

/// The result of wrk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub requests: f64,
    pub requests_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Loads `address` from `core` for a while; `shape` is passed to `check.lua`. Responses other than 2xx or 3xx are errors.
pub fn run(address: SocketAddr, shape: &[&str], core: usize, duration: Duration) -> Result<Load> {
    run_url(&format!("http://{address}"), shape, core, duration)
}

/// Like [`run`], with a scheme. Certificates are not verified.
pub fn run_url(url: &str, shape: &[&str], core: usize, duration: Duration) -> Result<Load> {
    run_with(url, shape, core, CONNECTIONS, duration)
}

/// Like [`run_url`], with a number of connections.
pub fn run_with(
    url: &str,
    shape: &[&str],
    core: usize,
    connections: u32,
    duration: Duration,
) -> Result<Load> {
    let output = Command::new("taskset")
        .args(["-c", &core.to_string(), "wrk", "-t1", &format!("-c{connections}")])
        .arg(format!("-d{}s", duration.as_secs()))
        .args(["-s", concat!(env!("CARGO_MANIFEST_DIR"), "/check.lua")])
        .args([url, "--"])
        .args(shape)
        .output()
        .context("cannot start wrk under taskset")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    parse(&text).with_context(|| format!("wrk said: {text}"))
}

fn parse(text: &str) -> Result<Load> {
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT ")).context("no result line")?;
    let field = |name: &str| -> Result<f64> {
        let value = line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        Ok(value.with_context(|| format!("no {name}"))?.parse()?)
    };
    let (requests, failed) = (field("requests")?, field("failed")?);
    ensure!(requests > 0.0, "no request was answered");
    ensure!(failed == 0.0, "{failed} of {requests} requests failed");
    Ok(Load {
        requests,
        requests_per_second: requests / (field("duration_us")? / 1e6),
        p50_us: field("p50_us")?,
        p99_us: field("p99_us")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_line_becomes_rates() {
        let load =
            parse("noise\nRESULT requests=100 duration_us=500000 p50_us=3 p99_us=9 failed=0\n").unwrap();
        assert_eq!(load, Load { requests: 100.0, requests_per_second: 200.0, p50_us: 3.0, p99_us: 9.0 });
    }

    #[test]
    fn refused_requests_are_not_a_measurement() {
        assert!(parse("RESULT requests=100 duration_us=500000 p50_us=3 p99_us=9 failed=1").is_err());
    }
}
