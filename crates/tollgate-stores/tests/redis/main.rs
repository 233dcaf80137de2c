//! The Redis store on real servers.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "tests may panic and print measurements"
)]

mod budget;
mod carry;
mod clocks;
mod concurrency;
mod cooldowns;
mod failover;
mod faults;
mod groups;
mod harness;
mod injection;
mod lease_stress;
mod lease_windows;
mod leases;
mod linearizability;
mod long_way;
mod misconfigured;
mod nodes;
mod records;
mod refusals;
mod resets;
mod single;
mod spanning;
mod topologies;
mod traces;
mod upgrade;
