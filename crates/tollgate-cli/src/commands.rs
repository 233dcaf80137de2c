//! One file per command: each asks, and renders the answer.

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod explain;
pub(crate) mod inspect;
mod item_file;
pub(crate) mod keys;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod quotas;
pub(crate) mod reset;
pub(crate) mod rules;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod tiers;
pub(crate) mod users;

use std::net::IpAddr;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use serde::{Serialize, Serializer};

use crate::output::escape;
use crate::secret::Secret;
use crate::url::{query, segment};

/// The facts of a request: the flags of `check`, `explain` and `status`, and as they are, the body that is sent.
#[derive(Args, Serialize)]
pub(crate) struct Facts {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) whose: Whose,
    /// The plan of the client
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    /// How much the request is worth; 0 only looks
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u32>,
    #[command(flatten)]
    #[serde(flatten)]
    numbers: CompiledLimits,
}

/// What says whose counters are meant, and which: the flags of `reset`, and as they are, the body that is sent.
#[derive(Args, Serialize)]
pub(crate) struct Counters {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) whose: Whose,
    /// The plan of the client, where a check's own numbers were completed by its rule
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    numbers: CompiledLimits,
}

/// Who asks for what.
#[derive(Args, Serialize)]
#[command(group = ArgGroup::new("client").args(["user", "api_key", "ip", "tenant", "login"]).required(true).multiple(true))]
pub(crate) struct Whose {
    /// Who asks: a user
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    #[serde(rename = "user_id", skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// What is asked for
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    endpoint: String,
    /// Who asks: the holder of an API key
    #[arg(long, value_name = "KEY")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "reveal")]
    api_key: Option<Secret>,
    /// Who asks: an address
    #[arg(long, value_name = "ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<IpAddr>,
    /// Who asks: an organisation
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Who asks: the name of a login attempt
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    login: Option<String>,
    /// The method of the request
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    /// A further fact; may be given several times
    #[arg(long = "descriptor", value_name = "NAME=VALUE", value_parser = descriptor)]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    descriptors: Vec<(String, String)>,
}

/// Numbers of a check's own.
#[derive(Args, Serialize)]
struct CompiledLimits {
    /// A limit for such checks alone, in place of the rule's
    #[arg(long, value_name = "N", help_heading = "Overrides")]
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    /// The window of that limit in seconds
    #[arg(long, value_name = "SECS", help_heading = "Overrides")]
    #[serde(rename = "window_seconds", skip_serializing_if = "Option::is_none")]
    window: Option<u32>,
    /// The algorithm of that limit
    #[arg(long, value_name = "NAME", help_heading = "Overrides")]
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<String>,
}

impl Facts {
    /// The same as a query.
    fn query(&self) -> String {
        let Facts { whose, tier, cost, numbers } = self;
        let text = |number: Option<u32>| number.map(|number| number.to_string());
        let ip = whose.ip.map(|ip| ip.to_string());
        let (cost, limit, window) = (text(*cost), text(numbers.limit), text(numbers.window));
        let mut pairs = vec![
            ("user_id", whose.user.as_deref()),
            ("endpoint", Some(&*whose.endpoint)),
            ("api_key", whose.api_key.as_ref().map(Secret::reveal)),
            ("ip", ip.as_deref()),
            ("tenant", whose.tenant.as_deref()),
            ("tier", tier.as_deref()),
            ("login", whose.login.as_deref()),
            ("method", whose.method.as_deref()),
            ("cost", cost.as_deref()),
            ("limit", limit.as_deref()),
            ("window_seconds", window.as_deref()),
            ("strategy", numbers.strategy.as_deref()),
        ];
        let names: Vec<String> =
            whose.descriptors.iter().map(|(name, _)| format!("descriptor.{}", segment(name))).collect();
        let values = whose.descriptors.iter().map(|(_, value)| Some(&**value));
        pairs.extend(names.iter().map(|name| &**name).zip(values));
        query(&pairs)
    }
}

impl Whose {
    /// Who, on what, for people: `alice on /search`. Of a key only that there is one.
    fn told(&self) -> String {
        let named = |kind: &str, name: Option<&str>| name.map(|name| format!("{kind} {}", escape(name)));
        let ip = self.ip.map(|ip| ip.to_string());
        let facts = [
            self.user.as_deref().map(escape),
            self.api_key.as_ref().map(|_| "the API key".to_owned()),
            named("address", ip.as_deref()),
            named("tenant", self.tenant.as_deref()),
            named("login", self.login.as_deref()),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        format!("{} on {}", facts.join(", "), escape(&self.endpoint))
    }
}

fn descriptor(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE"),
    }
}

fn as_map<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// The key of a limited client is part of the question; here it leaves for the server, and nowhere else.
#[allow(clippy::ref_option, reason = "the shape that serde asks for")]
fn reveal<S: Serializer>(key: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    key.as_ref().map(Secret::reveal).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        facts: Facts,
    }

    fn body(flags: &[&str]) -> serde_json::Value {
        let flags = Flags::try_parse_from([&["check"], flags].concat()).unwrap();
        serde_json::to_value(&flags.facts).unwrap()
    }

    #[test]
    fn what_is_not_given_is_not_sent() {
        let sent = body(&["--user", "alice", "--endpoint", "/a"]);
        assert_eq!(sent, serde_json::json!({"user_id": "alice", "endpoint": "/a"}));
    }

    #[test]
    fn every_flag_is_sent_under_the_name_the_server_knows() {
        let sent = body(&[
            "--user=u",
            "--endpoint=/a",
            "--api-key=k",
            "--ip=::1",
            "--tenant=t",
            "--tier=free",
            "--login=l",
            "--method=GET",
            "--cost=0",
            "--descriptor=a=b=c",
            "--descriptor=d=",
            "--limit=5",
            "--window=60",
            "--strategy=gcra",
        ]);
        let expected = serde_json::json!({
            "user_id": "u", "endpoint": "/a", "api_key": "k", "ip": "::1", "tenant": "t", "tier": "free",
            "login": "l", "method": "GET", "cost": 0, "descriptors": {"a": "b=c", "d": ""},
            "limit": 5, "window_seconds": 60, "strategy": "gcra",
        });
        assert_eq!(sent, expected);
    }

    #[test]
    fn the_same_facts_go_into_a_query() {
        let flags = Flags::try_parse_from([
            "status",
            "--ip=::1",
            "--endpoint=/a",
            "--tier=free",
            "--cost=2",
            "--descriptor=a b=c&d",
            "--window=60",
        ]);
        let facts = flags.unwrap().facts;
        assert_eq!(
            facts.query(),
            "?endpoint=%2Fa&ip=%3A%3A1&tier=free&cost=2&window_seconds=60&descriptor.a%20b=c%26d"
        );
        assert_eq!(facts.whose.told(), "address ::1 on /a");
    }

    #[test]
    fn a_request_by_nobody_is_not_sent() {
        assert!(Flags::try_parse_from(["check", "--endpoint", "/a"]).is_err());
        assert!(Flags::try_parse_from(["check", "--endpoint", "/a", "--tier", "free"]).is_err());
        assert!(Flags::try_parse_from(["check", "--endpoint", "/a", "--ip", "10.0.0.1"]).is_ok());
    }
}
