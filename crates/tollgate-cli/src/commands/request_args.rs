//! The flags that describe a request, for `check`, `explain`, `status` and `reset`. They serialize to the request body.

use std::net::IpAddr;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::client::url::{query, segment};
use crate::client::without_nulls;
use crate::output::escape;
use crate::output::format::text_of;
use crate::secret::Secret;

/// The flags of `check`, `explain` and `status`.
#[derive(Args, Serialize)]
pub(crate) struct RequestArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) target: TargetArgs,
    /// Cost of the request; 0 counts nothing
    #[arg(long, value_name = "N")]
    cost: Option<u32>,
}

/// The client and endpoint of a request, and a limit that replaces the rule's. These are the flags of `reset`.
#[derive(Args, Serialize)]
#[command(group = ArgGroup::new("client").args(["user", "api_key", "ip", "tenant", "login"]).required(true).multiple(true))]
pub(crate) struct TargetArgs {
    /// User id of the client
    #[arg(long, alias = "user-id", value_parser = NonEmptyStringValueParser::new())]
    #[serde(rename = "user_id")]
    user: Option<String>,
    /// Endpoint of the request
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    endpoint: String,
    /// API key of the client
    #[arg(long, value_name = "KEY")]
    #[serde(serialize_with = "reveal")]
    pub(crate) api_key: Option<Secret>,
    /// IP address of the client
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<IpAddr>,
    /// Tenant (organization) of the client
    #[arg(long)]
    tenant: Option<String>,
    /// Name used in a login attempt
    #[arg(long, value_name = "NAME")]
    login: Option<String>,
    /// HTTP method of the request
    #[arg(long)]
    method: Option<String>,
    /// Custom descriptor; may be repeated
    #[arg(long = "descriptor", value_name = "NAME=VALUE", value_parser = parse_descriptor)]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    descriptors: Vec<(String, String)>,
    /// Tier of the client
    #[arg(long)]
    tier: Option<String>,
    /// Limit that replaces the rule's
    #[arg(long, value_name = "N", help_heading = "Overrides")]
    limit: Option<u32>,
    /// Window of that limit in seconds
    #[arg(long, value_name = "SECS", help_heading = "Overrides")]
    #[serde(rename = "window_seconds")]
    window: Option<u32>,
    /// Algorithm of that limit
    #[arg(long, alias = "strategy", value_name = "NAME", help_heading = "Overrides")]
    #[serde(rename = "strategy")]
    algorithm: Option<String>,
}

impl RequestArgs {
    /// The fields of the body as a query; a descriptor becomes `descriptor.NAME=VALUE`.
    pub(super) fn query(&self) -> String {
        // Serializing plain data does not fail.
        let body = without_nulls(self).unwrap_or_default();
        let mut pairs = Vec::new();
        for (key, value) in body.as_object().into_iter().flatten() {
            match value {
                Value::Object(descriptors) => pairs.extend(
                    descriptors
                        .iter()
                        .map(|(name, value)| (format!("descriptor.{}", segment(name)), text_of(value))),
                ),
                value => pairs.push((key.clone(), text_of(value))),
            }
        }
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (&**key, Some(&**value))).collect();
        query(&pairs)
    }
}

impl TargetArgs {
    /// `alice on /search`. A key is not shown.
    pub(super) fn describe(&self) -> String {
        let named = |kind: &str, name: Option<&str>| name.map(|name| format!("{kind} {}", escape(name)));
        let ip = self.ip.map(|ip| ip.to_string());
        let parts = [
            self.user.as_deref().map(escape),
            self.api_key.as_ref().map(|_| "the API key".to_owned()),
            named("address", ip.as_deref()),
            named("tenant", self.tenant.as_deref()),
            named("login", self.login.as_deref()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("{} on {}", parts.join(", "), escape(&self.endpoint))
    }
}

fn parse_descriptor(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE"),
    }
}

fn as_map<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// The key of the limited client is sent to the server.
#[allow(clippy::ref_option, reason = "the signature that serde expects")]
fn reveal<S: Serializer>(key: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    key.as_ref().map(Secret::reveal).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        request: RequestArgs,
    }

    fn body(flags: &[&str]) -> Value {
        let flags = Flags::try_parse_from([&["check"], flags].concat()).unwrap();
        without_nulls(&flags.request).unwrap()
    }

    #[test]
    fn absent_flags_are_not_sent() {
        let sent = body(&["--user", "alice", "--endpoint", "/a"]);
        assert_eq!(sent, serde_json::json!({"user_id": "alice", "endpoint": "/a"}));
    }

    #[test]
    fn flags_are_sent_under_their_api_names() {
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
            "--algorithm=gcra",
        ]);
        let expected = serde_json::json!({
            "user_id": "u", "endpoint": "/a", "api_key": "k", "ip": "::1", "tenant": "t", "tier": "free",
            "login": "l", "method": "GET", "cost": 0, "descriptors": {"a": "b=c", "d": ""},
            "limit": 5, "window_seconds": 60, "strategy": "gcra",
        });
        assert_eq!(sent, expected);
    }

    #[test]
    fn query_has_the_same_fields_as_the_body() {
        let flags = Flags::try_parse_from([
            "status",
            "--ip=::1",
            "--endpoint=/a",
            "--tier=free",
            "--cost=2",
            "--descriptor=a b=c&d",
            "--window=60",
        ]);
        let request = flags.unwrap().request;
        assert_eq!(
            request.query(),
            "?cost=2&descriptor.a%20b=c%26d&endpoint=%2Fa&ip=%3A%3A1&tier=free&window_seconds=60"
        );
        assert_eq!(request.target.describe(), "address ::1 on /a");
    }

    #[test]
    fn request_needs_a_client() {
        assert!(Flags::try_parse_from(["check", "--endpoint", "/a"]).is_err());
        assert!(Flags::try_parse_from(["check", "--endpoint", "/a", "--tier", "free"]).is_err());
        assert!(Flags::try_parse_from(["check", "--endpoint", "/a", "--ip", "10.0.0.1"]).is_ok());
    }
}
