//! CPU time, memory, cores and disk of this process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

/// Pins the thread to a core. Threads on the same core do not contend and would look faster than they are.
pub fn pin_to(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("cannot run on core {core}"))
}

pub fn thread_cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// CPU time of this process so far, all threads.
pub fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

pub fn resident_bytes() -> Result<usize> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).context("/proc/self/statm is short")?.parse()?;
    Ok(pages * rustix::param::page_size())
}

/// A folder on the disk of the build, because `/tmp` may be in memory.
pub fn disk_folder() -> Result<TempDir> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    fs::create_dir_all(&target)?;
    TempDir::new_in(target).context("cannot create a folder")
}

/// A random permutation of the numbers below `count`.
pub fn shuffled(count: usize, seed: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15_usize ^ (seed + 1);
    for last in (1..count).rev() {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(last, random % (last + 1));
    }
    order
}
