//! The cost of enforcing limits on the way to an API: tollgate as reverse proxy and behind nginx, against proxies that enforce nothing.
//!
//! `gateway [--quick] [--tollgate BINARY]`, run by `bench/run`. Gateways run on core 0; wrk and the upstream, an nginx that answers 1 KB, on core 1.
//! The CPU time is that of all processes of the gateway, divided by the requests answered.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tollgate_bench::http::ask;
use tollgate_bench::process::{Server, ended_children_cpu, free_address, machine_cpu};
use tollgate_bench::report::{Table, Targets, median, median_ratio};
use tollgate_bench::side_by_side::{Comparison, Loaded};
use tollgate_bench::wrk::{self, Load};

const GATEWAY_CORE: usize = 0;
const LOAD_CORE: usize = 1;
const WARM_UP: Duration = Duration::from_secs(1);
const BODY_BYTES: usize = 1_024;
/// Measurements of a pair of gateways.
const TURNS: u32 = 3;
const RATIO_MAX: f64 = 1.2;

fn main() -> Result<()> {
    let plan = Plan::from_args()?;
    let mut samples: BTreeMap<Contender, Vec<Sample>> = BTreeMap::new();
    for round in 1..=plan.rounds {
        for contender in Contender::ALL {
            let sample = contender.measure(&plan).with_context(|| contender.name())?;
            eprintln!(
                "round {round}: {:<24} {:6.2} µs CPU per request, others used {:.2} cores",
                contender.name(),
                sample.cpu_us,
                sample.others_cores
            );
            samples.entry(contender).or_default().push(sample);
        }
    }
    print_table(&plan, &samples);
    let mut comparison = Comparison::default();
    for _ in 0..plan.rounds {
        compare(&plan, &mut comparison)?;
        eprintln!("tollgate and the bare proxy at the same time: {} so far", comparison.text());
    }
    println!(
        "Loaded at the same time, {} turns of {} s: tollgate uses {} × the CPU of the bare proxy\n",
        plan.rounds * TURNS,
        plan.duration.as_secs(),
        comparison.text()
    );
    let mut targets = Targets::default();
    targets.at_most("CPU per request ÷ bare proxy", comparison.ratio(), RATIO_MAX);
    println!("{targets}");
    Ok(())
}

/// Loads the bare proxy and tollgate at the same time.
fn compare(plan: &Plan, comparison: &mut Comparison) -> Result<()> {
    let dirs = [TempDir::new()?, TempDir::new()?, TempDir::new()?];
    let upstream = start_upstream(dirs[0].path())?;
    let bare = Contender::BareProxy.start(plan, upstream.address, dirs[1].path())?;
    let tollgate = Contender::Tollgate.start(plan, upstream.address, dirs[2].path())?;
    let [bare, tollgate] = [&bare[0], &tollgate[0]].map(|server| Loaded {
        server,
        url: format!("http://{}", server.address),
        shape: "get",
    });
    for server in [&bare, &tollgate] {
        wrk::run_url(&server.url, &[server.shape], LOAD_CORE, WARM_UP)?;
    }
    for _ in 0..TURNS {
        comparison.add_turn(&bare, &tollgate, LOAD_CORE, plan.duration)?;
    }
    Ok(())
}

struct Plan {
    rounds: u32,
    duration: Duration,
    tollgate: PathBuf,
}

impl Plan {
    fn from_args() -> Result<Self> {
        let tollgate = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/tollgate");
        let mut plan = Self { rounds: 5, duration: Duration::from_secs(4), tollgate: tollgate.into() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => (plan.rounds, plan.duration) = (3, Duration::from_secs(3)),
                "--tollgate" => plan.tollgate = args.next().context("--tollgate needs a path")?.into(),
                _ => bail!("usage: gateway [--quick] [--tollgate BINARY]"),
            }
        }
        Ok(plan)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Contender {
    BareProxy,
    Tollgate,
    Nginx,
    NginxLimitReq,
    NginxForwardAuth,
}

impl Contender {
    const ALL: [Self; 5] =
        [Self::BareProxy, Self::Tollgate, Self::Nginx, Self::NginxLimitReq, Self::NginxForwardAuth];

    fn name(self) -> &'static str {
        match self {
            Self::BareProxy => "bare hyper-util proxy",
            Self::Tollgate => "tollgate gateway",
            Self::Nginx => "nginx",
            Self::NginxLimitReq => "nginx limit_req",
            Self::NginxForwardAuth => "nginx + forward-auth",
        }
    }

    /// The servers of the gateway, the one that clients connect to first.
    fn start(self, plan: &Plan, upstream: SocketAddr, dir: &Path) -> Result<Vec<Server>> {
        let address = free_address()?;
        let nginx = |server: &str| -> Result<Vec<OsString>> { nginx_command(dir, "gateway", server) };
        let proxied = "proxy_pass http://api;";
        let mut servers = Vec::new();
        let command = match self {
            Self::BareProxy => {
                let binary = std::env::current_exe()?.with_file_name("bare_proxy");
                vec![binary.into(), address.port().to_string().into(), upstream.port().to_string().into()]
            }
            Self::Tollgate => {
                let rest = free_address()?;
                tollgate_command(
                    plan,
                    dir,
                    rest,
                    &format!(
                        "[proxy]\nlisten = \"{address}\"\n[[proxy.routes]]\nupstreams = [\"http://{upstream}\"]\n"
                    ),
                )?
            }
            Self::Nginx => nginx(&nginx_server(address, upstream, "", proxied))?,
            Self::NginxLimitReq => {
                let zone = "limit_req_zone $binary_remote_addr zone=clients:16m rate=1000000r/s;";
                nginx(&nginx_server(
                    address,
                    upstream,
                    zone,
                    &format!("limit_req zone=clients burst=1000000 nodelay; {proxied}"),
                ))?
            }
            Self::NginxForwardAuth => {
                let rest = free_address()?;
                let settings = "[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n";
                let command = tollgate_command(plan, dir, rest, settings)?;
                servers.push(Server::start(&command, GATEWAY_CORE, rest, dir)?);
                nginx(&forward_auth_server(address, upstream, rest))?
            }
        };
        servers.insert(0, Server::start(&command, GATEWAY_CORE, address, dir)?);
        Ok(servers)
    }

    fn measure(self, plan: &Plan) -> Result<Sample> {
        let dir = TempDir::new()?;
        let upstream_dir = TempDir::new()?;
        let upstream = start_upstream(upstream_dir.path())?;
        let servers = self.start(plan, upstream.address, dir.path())?;
        let address = servers[0].address;
        let answer = ask(address, "GET", "/items", "", "")?;
        ensure!(answer.status == 200 && answer.body.len() == BODY_BYTES, "not forwarded: {answer:?}");
        let all: Vec<&Server> = servers.iter().collect();
        wrk::run(address, &["get"], LOAD_CORE, WARM_UP)?;
        let before = Clocks::read(&all, &upstream)?;
        let load = wrk::run(address, &["get"], LOAD_CORE, plan.duration)?;
        let after = Clocks::read(&all, &upstream)?;
        Ok(Sample {
            cpu_us: (after.gateway - before.gateway) * 1e6 / load.requests,
            others_cores: (after.others() - before.others()).max(0.0) / plan.duration.as_secs_f64(),
            load,
        })
    }
}

fn tollgate_command(plan: &Plan, dir: &Path, listen: SocketAddr, settings: &str) -> Result<Vec<OsString>> {
    let config = dir.join("tollgate.toml");
    let limits = "default_limit = 100000000\ndefault_window = 60\n";
    fs::write(&config, format!("{limits}[server]\nlisten = \"{listen}\"\n{settings}"))?;
    let data = dir.join("data");
    Ok(vec![
        plan.tollgate.clone().into(),
        "serve".into(),
        "--config".into(),
        config.into(),
        "--data-dir".into(),
        data.into(),
    ])
}

fn start_upstream(dir: &Path) -> Result<Server> {
    let address = free_address()?;
    let body = "x".repeat(BODY_BYTES);
    let server = format!("server {{ listen {address}; location / {{ return 200 \"{body}\"; }} }}");
    let command = nginx_command(dir, "upstream", &server)?;
    Server::start(&command, LOAD_CORE, address, dir)
}

fn nginx_command(dir: &Path, name: &str, http: &str) -> Result<Vec<OsString>> {
    let config = dir.join(format!("{name}.conf"));
    let dir = dir.display();
    let text = format!(
        "worker_processes 1;
         daemon off;
         pid {dir}/{name}.pid;
         events {{ worker_connections 1024; }}
         http {{
             access_log off;
             client_body_temp_path {dir}/{name}-body;
             proxy_temp_path {dir}/{name}-proxy;
             fastcgi_temp_path {dir}/{name}-fastcgi;
             uwsgi_temp_path {dir}/{name}-uwsgi;
             scgi_temp_path {dir}/{name}-scgi;
             keepalive_requests 1000000000;
             {http}
         }}"
    );
    fs::write(&config, text)?;
    Ok(vec!["nginx".into(), "-e".into(), "stderr".into(), "-c".into(), config.into()])
}

fn nginx_server(address: SocketAddr, upstream: SocketAddr, http: &str, location: &str) -> String {
    format!(
        "upstream api {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}
         {http}
         server {{
             listen {address};
             proxy_http_version 1.1;
             proxy_set_header Connection \"\";
             location / {{ {location} }}
         }}"
    )
}

/// As in docs/gateways.md.
fn forward_auth_server(address: SocketAddr, upstream: SocketAddr, tollgate: SocketAddr) -> String {
    let http =
        format!("upstream tollgate {{ server {tollgate}; keepalive 64; keepalive_requests 1000000000; }}");
    let location = "auth_request /_tollgate; proxy_pass http://api; }
             location = /_tollgate {
                 internal;
                 proxy_pass http://tollgate/v1/forward-auth?mode=nginx;
                 proxy_pass_request_body off;
                 proxy_set_header Content-Length \"\";
                 proxy_http_version 1.1;
                 proxy_set_header Connection \"\";
                 proxy_set_header X-Original-URI $request_uri;
                 proxy_set_header X-Original-Method $request_method;
                 proxy_set_header X-Forwarded-For $remote_addr;";
    nginx_server(address, upstream, &http, location)
}

/// CPU seconds used so far.
struct Clocks {
    machine: f64,
    gateway: f64,
    rest: f64,
}

impl Clocks {
    fn read(gateway: &[&Server], upstream: &Server) -> Result<Self> {
        let mut used = 0.0;
        for server in gateway {
            used += server.cpu()?.as_secs_f64();
        }
        let rest = upstream.cpu()?.as_secs_f64() + ended_children_cpu()?.as_secs_f64();
        Ok(Self { machine: machine_cpu()?.as_secs_f64(), gateway: used, rest })
    }

    fn others(&self) -> f64 {
        self.machine - self.gateway - self.rest
    }
}

struct Sample {
    cpu_us: f64,
    others_cores: f64,
    load: Load,
}

fn print_table(plan: &Plan, samples: &BTreeMap<Contender, Vec<Sample>>) {
    println!(
        "\nOne request through a gateway: {} connections, 1 KB responses; median of {} round(s) of {} s\n",
        wrk::CONNECTIONS,
        plan.rounds,
        plan.duration.as_secs()
    );
    let mut table = Table::new([
        "",
        "CPU µs/request",
        "÷ bare proxy",
        "÷ nginx limit_req",
        "requests/s",
        "p50 µs",
        "p99 µs",
    ]);
    for (contender, rounds) in samples {
        let middle = |figure: fn(&Sample) -> f64| median(rounds.iter().map(figure));
        let ratio_to = |other: Contender| {
            let others = samples.get(&other).map_or(&[][..], Vec::as_slice);
            median_ratio(rounds.iter().map(|s| s.cpu_us), others.iter().map(|s| s.cpu_us))
        };
        table.row([
            contender.name().to_owned(),
            format!("{:.2}", middle(|s| s.cpu_us)),
            format!("{:.2}", ratio_to(Contender::BareProxy)),
            format!("{:.2}", ratio_to(Contender::NginxLimitReq)),
            format!("{:.0}", middle(|s| s.load.requests_per_second)),
            format!("{:.0}", middle(|s| s.load.p50_us)),
            format!("{:.0}", middle(|s| s.load.p99_us)),
        ]);
    }
    println!("{table}");
}
