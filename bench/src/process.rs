//! A server pinned to one core, and the CPU time it has used.
//!
//! CPU time per request is reliable on a shared machine; requests per second depend on other load. It is read from
//! `/proc`, for the process and its children (nginx serves requests in a child).

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

const START_DEADLINE: Duration = Duration::from_secs(10);
const STOP_DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A running server. It is stopped when this value is dropped, or when this process ends.
pub struct Server {
    child: Child,
    errors: PathBuf,
    pub address: SocketAddr,
}

impl Server {
    /// Starts `command` on `core` and waits until it listens on `address`. Its standard error goes to a file in `dir`.
    pub fn start(command: &[OsString], core: usize, address: SocketAddr, dir: &Path) -> Result<Self> {
        let errors = dir.join("stderr");
        let child = Command::new("taskset")
            .args(["-c", &core.to_string(), "setpriv", "--pdeathsig", "TERM"])
            .args(command)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&errors)?)
            .spawn()
            .context("cannot start taskset")?;
        let mut server = Self { child, errors, address };
        server.wait_until_it_listens()?;
        Ok(server)
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("ended before it listened ({status}): {}", self.said());
            }
            if started.elapsed() > START_DEADLINE {
                bail!("did not listen within {START_DEADLINE:?}: {}", self.said());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn said(&self) -> String {
        let text = fs::read_to_string(&self.errors).unwrap_or_default();
        if text.trim().is_empty() { "it said nothing".into() } else { text.trim().into() }
    }

    /// User and system time so far, of the process and its children.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(self.child.id())
    }

    /// The resident memory now, and its maximum.
    pub fn resident_bytes(&self) -> Result<(usize, usize)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let field = |name: &str| -> Result<usize> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
            Ok(kilobytes.with_context(|| format!("no {name} in /proc"))?.trim().parse::<usize>()? << 10)
        };
        Ok((field("VmRSS")?, field("VmHWM")?))
    }

    /// Sends SIGTERM, so that nginx can stop its worker, then SIGKILL.
    pub fn stop(&mut self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > STOP_DEADLINE {
                self.child.kill()?;
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && let Err(error) = self.stop()
        {
            eprintln!("cannot stop process {}: {error:#}", self.child.id());
        }
    }
}

/// User and system time so far, of a process and its children, also of those that have ended.
pub fn cpu_of(pid: u32) -> Result<Duration> {
    let mut ticks = 0;
    for entry in fs::read_dir("/proc")? {
        let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process that has just ended is counted as an ended child.
        let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
        let stat = Stat::parse(&stat).with_context(|| format!("cannot read /proc/{id}/stat"))?;
        if id == pid {
            ticks += stat.ticks + stat.children_ticks;
        } else if stat.parent == pid {
            ticks += stat.ticks;
        }
    }
    from_ticks(ticks)
}

/// CPU time used on the whole machine so far.
pub fn machine_cpu() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let fields = stat.lines().next().context("/proc/stat is empty")?.split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    let [user, nice, system, _idle, _waiting, irq, softirq, ..] = ticks[..] else {
        bail!("/proc/stat is short")
    };
    from_ticks(user + nice + system + irq + softirq)
}

/// CPU time used so far by children of this process that have ended, such as wrk.
pub fn ended_children_cpu() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    from_ticks(Stat::parse(&stat).context("cannot read /proc/self/stat")?.children_ticks)
}

fn from_ticks(ticks: u64) -> Result<Duration> {
    Ok(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second())?)
}

/// The fields of `/proc/<pid>/stat` that count here: user and system time, its own and that of ended children.
struct Stat {
    parent: u32,
    ticks: u64,
    children_ticks: u64,
}

impl Stat {
    fn parse(line: &str) -> Option<Self> {
        // The name, the second field, may contain spaces and parentheses; the last parenthesis closes it.
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)?,
            children_ticks: number(13)? + number(14)?,
        })
    }
}

/// A free local address.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_a_name_with_parentheses() {
        let line = "42 (a) b) S 7 42 42 0 -1 4194304 1 0 0 0 250 50 6 4 20 0 1 0 100 1 1";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.parent, stat.ticks, stat.children_ticks), (7, 300, 10));
    }
}
