//! The Redis store on real servers.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "tests may panic and print measurements"
)]

mod clocks;
mod concurrency;
mod cooldowns;
mod failover;
mod faults;
mod fleet;
mod harness;
mod hashes;
mod high_latency;
mod histories;
mod injection;
mod latency_budget;
mod lease_returns;
mod lease_stress;
mod lease_windows;
mod leases;
mod linearizability;
mod misconfigured;
mod multi_shard;
mod penalty_list;
mod reconcile;
mod refunds;
mod refusal_cache;
mod resets;
mod single;
mod topologies;
mod traces;
mod upgrade;
mod utilization;
