//! How soon a change on one node is in force on three nodes.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use tollgate_bench::http::ask;
use tollgate_bench::report::{Table, Targets};
use tollgate_testkit::{MariaDbServer, PostgresServer, RedisServer};

use crate::Plan;
use crate::node::{Node, Place, percentile, until};

const NODES: usize = 3;

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let (postgres, mariadb, redis) = (PostgresServer::start(), MariaDbServer::start(), RedisServer::start());
    let on_redis = format!("[counters]\nstore = \"redis\"\nurl = \"{}\"\n", redis.url());
    let cases = [
        ("PostgreSQL, NOTIFY", postgres.create_database(), "", 100, 1.0),
        ("MariaDB, Redis Pub/Sub", mariadb.create_database(), &*on_redis, 100, 1.0),
        // Each takes seconds.
        ("MariaDB, polling", mariadb.create_database(), "", 15, 5.0),
    ];
    let mut table = Table::new(["fleet of three", "change", "times", "p50 ms", "p99 ms", "most ms"]);
    for (name, url, more, changes, most) in cases {
        let changes = if plan.quick { 5 } else { changes };
        let places: Vec<Place> =
            (0..NODES).map(|_| Place::new(plan, Some(&url), more)).collect::<Result<_>>()?;
        let nodes: Vec<Node> = places.iter().map(Place::start).collect::<Result<_>>()?;
        until(Instant::now(), "the database", || Ok(nodes.iter().all(|node| node.new_key("probe").is_ok())))?;
        let mut rules = Vec::new();
        let mut revocations = Vec::new();
        for number in 0..changes {
            rules.push(change_rule(&nodes, number)?);
            revocations.push(revoke(&nodes)?);
        }
        for (what, took) in [("rule", &mut rules), ("revocation", &mut revocations)] {
            let high = percentile(took, 0.99)?;
            let ms = |took: Duration| format!("{:.1}", took.as_secs_f64() * 1e3);
            let largest = percentile(took, 1.0)?;
            let times = changes.to_string();
            table.row([
                name.to_owned(),
                what.into(),
                times,
                ms(percentile(took, 0.5)?),
                ms(high),
                ms(largest),
            ]);
            targets.at_most(format!("{what} on three nodes, p99 s: {name}"), high.as_secs_f64(), most);
        }
    }
    println!("\nFrom a change on one node until it is in force on all three\n\n{table}");
    Ok(())
}

/// From sending the change until the last node applies it.
fn change_rule(nodes: &[Node], number: u32) -> Result<Duration> {
    let limit = 1_000 + number;
    let rule = json!({
        "priority": 1, "per": ["user"], "limits": [{ "requests": limit, "window": "1h" }],
        "when": { "endpoints": ["/spread"] }
    });
    let begun = Instant::now();
    nodes[0].admin("PUT", "/v1/admin/rules/spread", &rule)?;
    let check = json!({ "user_id": "alice", "endpoint": "/spread", "cost": 0 }).to_string();
    let follows = |node: &Node| -> Result<bool> {
        let answer = ask(node.address(), "POST", "/v1/rate-limit/check", "", &check)?;
        let body: Value = serde_json::from_str(&answer.body)?;
        Ok(body["limit"] == limit)
    };
    until(begun, "the rule", || nodes.iter().try_fold(true, |all, node| Ok(all && follows(node)?)))
}

fn revoke(nodes: &[Node]) -> Result<Duration> {
    let (key, id) = nodes[0].new_key("alice")?;
    until(Instant::now(), "the key", || {
        nodes.iter().try_fold(true, |all, node| Ok(all && node.knows(&key)?))
    })?;
    let begun = Instant::now();
    nodes[0].admin("POST", &format!("/v1/admin/keys/{id}/revoke"), &json!({}))?;
    let refuses = |node: &Node| -> Result<bool> { Ok(node.check_key(&key)?.status == 403) };
    until(begun, "the revocation", || nodes.iter().try_fold(true, |all, node| Ok(all && refuses(node)?)))
}
