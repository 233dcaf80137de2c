//! The cost of TLS: REST checks over keep-alive connections, encrypted and plain, and new connections.
//!
//! `tls [--quick] [--tollgate BINARY]`, run by `bench/run`. tollgate runs on core 0, the load on core 1. Needs the `openssl` command, which creates
//! the certificate (ECDSA, P-256).

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tollgate_bench::process::{Server, free_address};
use tollgate_bench::report::{Table, Targets, median};
use tollgate_bench::side_by_side::{Comparison, Loaded};
use tollgate_bench::wrk;

const SERVER_CORE: usize = 0;
const LOAD_CORE: usize = 1;
const WARM_UP: Duration = Duration::from_secs(1);
/// Measurements of a pair of servers.
const TURNS: u32 = 3;
const RATIO_MAX: f64 = 1.15;

fn main() -> Result<()> {
    let plan = Plan::from_args()?;
    let dir = TempDir::new()?;
    create_certificate(dir.path())?;
    let (mut checks, mut handshakes) = (Comparison::default(), Vec::new());
    for round in 1..=plan.rounds {
        compare(&plan, dir.path(), &mut checks)?;
        handshakes.push(measure_handshakes(&plan, dir.path())?);
        eprintln!("after round {round}: {}", checks.text());
    }
    let [plain, encrypted] = checks.cpu_us();
    println!(
        "\nREST checks over keep-alive connections, both servers loaded at the same time; median of {} turns of {} s\n",
        plan.rounds * TURNS,
        plan.turn.as_secs()
    );
    let mut table = Table::new(["", "CPU µs/check", "÷ plain"]);
    table.row(["plain HTTP".to_owned(), format!("{plain:.2}"), "1.00".to_owned()]);
    table.row(["TLS 1.3".to_owned(), format!("{encrypted:.2}"), checks.text()]);
    println!("{table}");
    let mut targets = Targets::default();
    targets.at_most("CPU per check over TLS ÷ plain", checks.ratio(), RATIO_MAX);
    println!("{targets}");
    let cpu = median(handshakes.iter().map(|(cpu, _)| *cpu));
    let rate = median(handshakes.iter().map(|(_, rate)| *rate));
    println!(
        "New connections with a full handshake: {cpu:.0} µs of server CPU each, {rate:.0}/s from one client on the other core\n"
    );
    Ok(())
}

struct Plan {
    /// The servers are started anew in each.
    rounds: u32,
    turn: Duration,
    tollgate: PathBuf,
}

impl Plan {
    fn from_args() -> Result<Self> {
        let tollgate = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/tollgate");
        let mut plan = Self { rounds: 6, turn: Duration::from_secs(4), tollgate: tollgate.into() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => (plan.rounds, plan.turn) = (2, Duration::from_secs(3)),
                "--tollgate" => plan.tollgate = args.next().context("--tollgate needs a path")?.into(),
                _ => bail!("usage: tls [--quick] [--tollgate BINARY]"),
            }
        }
        Ok(plan)
    }
}

fn create_certificate(dir: &Path) -> Result<()> {
    let (key, certificate) = (dir.join("key.pem"), dir.join("cert.pem"));
    let created = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout"])
        .arg(key)
        .arg("-out")
        .arg(certificate)
        .output()
        .context("cannot start openssl")?;
    ensure!(created.status.success(), "openssl failed: {}", String::from_utf8_lossy(&created.stderr));
    Ok(())
}

fn start(plan: &Plan, dir: &Path, is_tls: bool) -> Result<(Server, TempDir)> {
    let (address, own) = (free_address()?, TempDir::new()?);
    let config = own.path().join("tollgate.toml");
    let files = dir.display();
    let tls =
        format!("[server.tls]\ncertificate_file = \"{files}/cert.pem\"\nkey_file = \"{files}/key.pem\"\n");
    let tls = if is_tls { tls.as_str() } else { "" };
    fs::write(&config, format!("default_limit = 1000000\ndefault_window = 60\n{tls}"))?;
    let command =
        ["serve".into(), "--listen".into(), address.to_string().into(), "--config".into(), config.into()];
    let data = ["--data-dir".into(), own.path().join("data").into()];
    let command: Vec<_> = std::iter::once(plan.tollgate.clone().into()).chain(command).chain(data).collect();
    Ok((Server::start(&command, SERVER_CORE, address, own.path())?, own))
}

fn url(address: SocketAddr, is_tls: bool) -> String {
    format!("{}://{address}", if is_tls { "https" } else { "http" })
}

/// Loads a plain and an encrypted server at the same time.
fn compare(plan: &Plan, dir: &Path, checks: &mut Comparison) -> Result<()> {
    let ((plain, _plain_dir), (encrypted, _encrypted_dir)) =
        (start(plan, dir, false)?, start(plan, dir, true)?);
    let loaded = |server, is_tls| Loaded { server, url: url(server.address, is_tls), shape: "tollgate" };
    let (plain, encrypted) = (loaded(&plain, false), loaded(&encrypted, true));
    for server in [&plain, &encrypted] {
        wrk::run_url(&server.url, &[server.shape], LOAD_CORE, WARM_UP)?;
    }
    for _ in 0..TURNS {
        checks.add_turn(&plain, &encrypted, LOAD_CORE, plan.turn)?;
    }
    Ok(())
}

/// CPU µs per connection with a full handshake, and connections per second. `openssl s_time -new` does nothing else.
fn measure_handshakes(plan: &Plan, dir: &Path) -> Result<(f64, f64)> {
    let (server, _own) = start(plan, dir, true)?;
    let (before, started) = (server.cpu()?, Instant::now());
    let seconds = plan.turn.as_secs().to_string();
    let output = Command::new("taskset")
        .args(["-c", &LOAD_CORE.to_string(), "openssl", "s_time", "-new", "-time", &seconds, "-connect"])
        .arg(server.address.to_string())
        .output()
        .context("cannot start openssl s_time")?;
    let (used, took) = ((server.cpu()? - before).as_secs_f64(), started.elapsed().as_secs_f64());
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("connections in") && line.contains("real seconds"));
    let count: f64 =
        line.and_then(|line| line.split_whitespace().next()).context("no count of connections")?.parse()?;
    Ok((used * 1e6 / count, count / took))
}
