//! The cost of one check over HTTP: tollgate against a bare handler, throttlecrab and nginx.
//!
//! `rest [--quick] [--tollgate BINARY]`, run by `bench/run`. The servers alternate on core 0, wrk runs on core 1. Each
//! measurement starts a fresh server, warms it up for a second, then divides the server's CPU time by the
//! requests answered. This is repeated for several rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tollgate_bench::http::{Answer, ask};
use tollgate_bench::process::{Server, ended_children_cpu, free_address, machine_cpu};
use tollgate_bench::report::{Table, median, median_ratio};
use tollgate_bench::wrk::{self, Load};

const SERVER_CORE: usize = 0;
const LOAD_CORE: usize = 1;
const OTHERS_CORES_MAX: f64 = 0.1;
const WARM_UP: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let plan = Plan::from_args()?;
    let mut contenders = Contender::ALL.to_vec();
    let mut answers = BTreeMap::new();
    contenders.retain(|contender| match contender.answer(&plan) {
        Ok(answer) => answers.insert(*contender, answer).is_none(),
        Err(error) => {
            eprintln!("{} is left out: {error:#}", contender.name());
            false
        }
    });
    warn_if_answers_differ(&answers);

    let mut samples: BTreeMap<Contender, Vec<Sample>> = BTreeMap::new();
    for round in 1..=plan.rounds {
        for contender in &contenders {
            let sample = contender.measure(&plan).with_context(|| contender.name())?;
            let Sample { cpu_us, others_cores, .. } = sample;
            eprintln!(
                "round {round}: {:<16} {cpu_us:6.2} µs CPU per request, others used {others_cores:.2} cores",
                contender.name()
            );
            samples.entry(*contender).or_default().push(sample);
        }
    }
    print_table(&plan, &samples);
    let others = median(samples.values().flatten().map(|sample| sample.others_cores));
    if others > OTHERS_CORES_MAX {
        println!(
            "The machine was not quiet: other processes used {others:.2} cores. Ratios are more reliable than figures.\n"
        );
    }
    Ok(())
}

/// Duration, rounds, and the tollgate binary, which this package does not build.
struct Plan {
    rounds: u32,
    duration: Duration,
    tollgate: PathBuf,
}

impl Plan {
    fn from_args() -> Result<Self> {
        let tollgate = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/tollgate");
        let mut plan = Self { rounds: 3, duration: Duration::from_secs(8), tollgate: tollgate.into() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => (plan.rounds, plan.duration) = (1, Duration::from_secs(2)),
                "--tollgate" => plan.tollgate = args.next().context("--tollgate needs a path")?.into(),
                _ => bail!("usage: rest [--quick] [--tollgate BINARY]"),
            }
        }
        Ok(plan)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Contender {
    BareAxum,
    Tollgate,
    Throttlecrab,
    Nginx,
}

impl Contender {
    const ALL: [Self; 4] = [Self::BareAxum, Self::Tollgate, Self::Throttlecrab, Self::Nginx];

    fn name(self) -> &'static str {
        match self {
            Self::BareAxum => "bare axum",
            Self::Tollgate => "tollgate",
            Self::Throttlecrab => "throttlecrab",
            Self::Nginx => "nginx limit_req",
        }
    }

    /// The protocol, as `check.lua` names it.
    fn shape(self) -> &'static str {
        match self {
            Self::BareAxum | Self::Tollgate => "tollgate",
            Self::Throttlecrab => "throttlecrab",
            Self::Nginx => "nginx",
        }
    }

    fn binary(self, plan: &Plan) -> Result<PathBuf> {
        let path = match self {
            Self::BareAxum => std::env::current_exe()?.with_file_name("bare_axum"),
            Self::Tollgate => plan.tollgate.clone(),
            Self::Throttlecrab => {
                concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bin/throttlecrab-server").into()
            }
            Self::Nginx => return Ok("nginx".into()), // found in PATH
        };
        ensure!(path.is_file(), "there is no binary at {}", path.display());
        Ok(path)
    }

    /// Writes its configuration into `dir`. Limits are so high that every check is admitted.
    fn arguments(self, address: SocketAddr, dir: &Path) -> Result<Vec<OsString>> {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        Ok(match self {
            Self::BareAxum => vec![port.into()],
            Self::Tollgate => {
                let config = dir.join("tollgate.toml");
                fs::write(&config, "default_limit = 1000000\ndefault_window = 60\n")?;
                let data = dir.join("data");
                let listen = address.to_string();
                ["serve".into(), "--config".into(), config.into(), "--listen".into(), listen.into()]
                    .into_iter()
                    .chain(["--data-dir".into(), data.into()])
                    .collect()
            }
            Self::Throttlecrab => {
                ["--http", "--http-host", &host, "--http-port", &port, "--log-level", "error"]
                    .map(OsString::from)
                    .to_vec()
            }
            Self::Nginx => {
                let config = dir.join("nginx.conf");
                fs::write(&config, nginx_config(address, dir))?;
                vec!["-e".into(), "stderr".into(), "-c".into(), config.into()]
            }
        })
    }

    fn start(self, plan: &Plan) -> Result<(Server, TempDir)> {
        let dir = TempDir::new()?;
        let address = free_address()?;
        let mut command = vec![self.binary(plan)?.into()];
        command.extend(self.arguments(address, dir.path())?);
        Ok((Server::start(&command, SERVER_CORE, address, dir.path())?, dir))
    }

    fn measure(self, plan: &Plan) -> Result<Sample> {
        let (server, _dir) = self.start(plan)?;
        wrk::run(server.address, &[self.shape()], LOAD_CORE, WARM_UP)?;
        let before = Clocks::read(&server)?;
        let load = wrk::run(server.address, &[self.shape()], LOAD_CORE, plan.duration)?;
        let after = Clocks::read(&server)?;
        Ok(Sample {
            cpu_us: (after.server - before.server) * 1e6 / load.requests,
            others_cores: (after.others() - before.others()).max(0.0) / plan.duration.as_secs_f64(),
            load,
        })
    }

    /// One check, to verify that the server is up and admits.
    fn answer(self, plan: &Plan) -> Result<Answer> {
        let (server, _dir) = self.start(plan)?;
        let (path, body) = match self {
            Self::Throttlecrab => (
                "/throttle",
                r#"{"key":"a","max_burst":1000000,"count_per_period":1000000,"period":60,"quantity":1}"#,
            ),
            _ => ("/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/api/v1/items"}"#),
        };
        let answer = ask(server.address, "POST", path, "", body)?;
        let admitted = if self == Self::Nginx {
            answer.status == 204
        } else {
            answer.status == 200 && answer.body.contains(r#""allowed":true"#)
        };
        ensure!(admitted, "a check was not admitted: {answer:?}");
        Ok(answer)
    }
}

/// `return 204` would answer in the rewrite phase, before `limit_req`; `try_files` answers after it. The body is read
/// and dropped: nginx does not parse JSON, so the client's name is sent in a header.
fn nginx_config(address: SocketAddr, dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "worker_processes 1;
         daemon off;
         pid {dir}/nginx.pid;
         events {{ worker_connections 256; }}
         http {{
             access_log off;
             client_body_temp_path {dir}/body;
             proxy_temp_path {dir}/proxy;
             fastcgi_temp_path {dir}/fastcgi;
             uwsgi_temp_path {dir}/uwsgi;
             scgi_temp_path {dir}/scgi;
             keepalive_requests 1000000000;
             open_file_cache max=16;
             open_file_cache_valid 1h;
             open_file_cache_errors on;
             limit_req_zone $http_x_user_id zone=clients:16m rate=1000000r/m;
             server {{
                 listen {address};
                 location /v1/rate-limit/check {{
                     limit_req zone=clients burst=10000 nodelay;
                     root {dir};
                     try_files /none =204;
                 }}
             }}
         }}"
    )
}

/// The bare handler is a lower bound only if it writes what tollgate writes.
fn warn_if_answers_differ(answers: &BTreeMap<Contender, Answer>) {
    let (Some(bare), Some(ours)) = (answers.get(&Contender::BareAxum), answers.get(&Contender::Tollgate))
    else {
        return;
    };
    let names = |answer: &Answer| answer.header_names().collect::<BTreeSet<_>>();
    let (bare_names, our_names) = (names(bare), names(ours));
    let differing: Vec<_> = bare_names.symmetric_difference(&our_names).collect();
    if !differing.is_empty() || bare.body.len().abs_diff(ours.body.len()) > 16 {
        eprintln!("bare axum and tollgate answer differently; make src/bin/bare_axum.rs follow.");
        eprintln!("headers in one only: {differing:?}\nbodies: {}\n        {}", bare.body, ours.body);
    }
}

/// CPU seconds used so far.
struct Clocks {
    machine: f64,
    server: f64,
    wrk: f64,
}

impl Clocks {
    fn read(server: &Server) -> Result<Self> {
        let [machine, server, wrk] = [machine_cpu()?, server.cpu()?, ended_children_cpu()?];
        Ok(Self { machine: machine.as_secs_f64(), server: server.as_secs_f64(), wrk: wrk.as_secs_f64() })
    }

    fn others(&self) -> f64 {
        self.machine - self.server - self.wrk
    }
}

/// One measurement of one server. `others_cores` is the number of cores used by other processes meanwhile.
struct Sample {
    cpu_us: f64,
    others_cores: f64,
    load: Load,
}

fn print_table(plan: &Plan, samples: &BTreeMap<Contender, Vec<Sample>>) {
    println!(
        "\nOne REST check: {} connections, 10,000 clients, server on one core; median of {} round(s) of {} s\n",
        wrk::CONNECTIONS,
        plan.rounds,
        plan.duration.as_secs()
    );
    let header =
        ["", "CPU µs/request", "min–max", "÷ bare axum", "÷ throttlecrab", "requests/s", "p50 µs", "p99 µs"];
    let mut table = Table::new(header);
    for (contender, rounds) in samples {
        let middle = |figure: fn(&Sample) -> f64| median(rounds.iter().map(figure));
        let ratio_to = |other: Contender| {
            let others = samples.get(&other).map_or(&[][..], Vec::as_slice);
            median_ratio(rounds.iter().map(|s| s.cpu_us), others.iter().map(|s| s.cpu_us))
        };
        let least = rounds.iter().map(|s| s.cpu_us).fold(f64::INFINITY, f64::min);
        let most = rounds.iter().map(|s| s.cpu_us).fold(0.0, f64::max);
        table.row([
            contender.name().to_owned(),
            format!("{:.2}", middle(|s| s.cpu_us)),
            format!("{least:.1}–{most:.1}"),
            format!("{:.2}", ratio_to(Contender::BareAxum)),
            format!("{:.2}", ratio_to(Contender::Throttlecrab)),
            format!("{:.0}", middle(|s| s.load.requests_per_second)),
            format!("{:.0}", middle(|s| s.load.p50_us)),
            format!("{:.0}", middle(|s| s.load.p99_us)),
        ]);
    }
    println!("{table}");
}
