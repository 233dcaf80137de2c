//! Metrics of this process under the names that every Prometheus client uses. Linux only: they are read from `/proc`.

use std::fs;
use std::sync::OnceLock;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::collector::Collector;

pub(super) fn collect(collector: &mut Collector) {
    if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse) {
        let help = "CPU time used in user and system mode, in seconds";
        collector.counter("process_cpu_seconds", help, stat.cpu_seconds);
        collector.gauge("process_resident_memory_bytes", "Resident memory in bytes", stat.resident_bytes);
        collector.gauge("process_virtual_memory_bytes", "Virtual memory in bytes", stat.virtual_bytes);
        collector.gauge("process_threads", "Threads", stat.threads);
        if let Some(booted) = boot_time() {
            let help = "Start of the process, in seconds since 1970";
            collector.gauge("process_start_time_seconds", help, booted + stat.started_after_boot);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // The listing itself has one open.
        collector.gauge("process_open_fds", "Open file descriptors", open.count().saturating_sub(1));
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        collector.gauge("process_max_fds", "Limit of open file descriptors", most);
    }
}

/// Fields of `/proc/self/stat`.
struct Stat {
    cpu_seconds: f64,
    threads: u64,
    started_after_boot: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name of the program, in parentheses, may contain anything. The third field follows it.
        let fields: Vec<&str> = text.rsplit(')').next()?.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_seconds: ticks_to_seconds(field(14)? + field(15)?),
            threads: field(20)?,
            started_after_boot: ticks_to_seconds(field(22)?),
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * u64::try_from(page_size()).ok()?,
        })
    }
}

#[allow(clippy::cast_precision_loss, reason = "ticks since boot are below 2^53")]
fn ticks_to_seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// When the machine started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    static BOOTED: OnceLock<Option<f64>> = OnceLock::new();
    *BOOTED.get_or_init(|| {
        let text = fs::read_to_string("/proc/stat").ok()?;
        text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_name_may_contain_parentheses_and_spaces() {
        let text =
            "7 (a) b (c) R 1 1 1 0 -1 4194304 99 0 0 0 150 50 0 0 20 0 3 0 1000 8192 2 18446744073709551615";
        let stat = Stat::parse(text).unwrap();
        assert!((stat.cpu_seconds - ticks_to_seconds(200)).abs() < 1e-9);
        assert!((stat.started_after_boot - ticks_to_seconds(1_000)).abs() < 1e-9);
        assert_eq!((stat.threads, stat.virtual_bytes), (3, 8192));
        assert_eq!(stat.resident_bytes, 2 * page_size() as u64);
    }
}
