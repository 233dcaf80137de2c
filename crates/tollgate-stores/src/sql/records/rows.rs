//! What is recorded, before it has a place in a table.

use super::latency::LatencyHistogram;

/// One start of one node: the rows that it wrote to one spool are numbered from 0.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(pub [u8; 16]);

impl SourceId {
    /// 32 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// The source that [`to_hex`](Self::to_hex) wrote.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let source = SourceId(u128::from_str_radix(hex, 16).ok()?.to_be_bytes());
        (source.to_hex() == hex).then_some(source)
    }
}

/// Rows `first..end` of a source. They are stored together or not at all, and at most once.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RowRange {
    /// The source.
    pub source: SourceId,
    /// The number of the first row.
    pub first: u64,
    /// The number after the last row.
    pub end: u64,
}

/// The outcome of a check.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum DecisionKind {
    /// Admitted.
    Allowed,
    /// Refused by a limit, or in cooldown.
    Throttled,
    /// Refused by a block.
    Blocked,
    /// Refused because the counters were unreachable.
    Unavailable,
}

impl DecisionKind {
    /// All of them.
    pub const ALL: [DecisionKind; 4] =
        [DecisionKind::Allowed, DecisionKind::Throttled, DecisionKind::Blocked, DecisionKind::Unavailable];

    /// Its name in tables and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            DecisionKind::Allowed => "allowed",
            DecisionKind::Throttled => "throttled",
            DecisionKind::Blocked => "blocked",
            DecisionKind::Unavailable => "unavailable",
        }
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// One decision, for `rate_limit_audit_logs`. Texts may be longer than their columns: they are truncated when stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRow {
    /// When it was made, in microseconds since 1970.
    pub at_micros: u64,
    /// The client: `user:alice`, `login:alice`, `api_key:ID` or `ip:192.0.2.1`; `tenant:acme` if nothing else is known.
    pub identifier: String,
    /// The tenant, if any.
    pub tenant: Option<String>,
    /// The user, if known.
    pub user_id: Option<String>,
    /// The id of the API key, if any. Never the key itself.
    pub api_key_id: Option<String>,
    /// The address of the client, if known.
    pub ip_address: Option<String>,
    /// The normalized path.
    pub endpoint: String,
    /// The method, if known.
    pub http_method: Option<String>,
    /// The name of the deciding rule, if any.
    pub rule: Option<String>,
    /// The outcome.
    pub decision: DecisionKind,
    /// What the deciding limit had counted after the request.
    pub current_count: Option<u64>,
    /// Requests per window of the deciding limit.
    pub limit_value: Option<u64>,
    /// What the deciding limit had left.
    pub remaining: Option<u64>,
    /// The cost of the request.
    pub cost: u32,
    /// The status for the client.
    pub response_status: u16,
    /// Whole seconds until a retry can succeed, rounded up.
    pub retry_after_seconds: Option<u64>,
    /// Microseconds from the parsed check to the decision.
    pub latency_micros: u64,
    /// The id of the API request.
    pub request_id: Option<String>,
    /// Whether shared counters were unreachable.
    pub degraded: bool,
    /// `server.region` of the node.
    pub region: String,
    /// `server.id` of the node.
    pub server_id: String,
}

/// Requests of one client on one route in one minute, for `rate_limit_records`. A delta: it is added to what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRow {
    /// The start of the minute, in microseconds since 1970.
    pub start_micros: u64,
    /// As in [`DecisionRow`].
    pub identifier: String,
    /// The tenant, if any.
    pub tenant: Option<String>,
    /// The endpoint pattern of a rule that matches the path, or else the path, or `(other)`.
    pub route: String,
    /// Requests admitted.
    pub allowed: u64,
    /// Requests refused or blocked.
    pub refused: u64,
    /// Requests per window of the limit that decided last, if any.
    pub limit_value: Option<u64>,
}

/// Requests on one route, decided by one rule in one minute, for `rate_limit_metrics`. A delta, like [`WindowRow`].
#[derive(Clone, Debug, PartialEq)]
pub struct RollupRow {
    /// The start of the minute, in microseconds since 1970.
    pub start_micros: u64,
    /// The tenant, if any.
    pub tenant: Option<String>,
    /// The user if it is one of the busiest, otherwise `None`: all others together.
    pub user_id: Option<String>,
    /// As [`WindowRow::route`].
    pub endpoint: String,
    /// The name of the deciding rule, if any.
    pub rule: Option<String>,
    /// `server.region` of the node.
    pub region: String,
    /// `server.id` of the node.
    pub server_id: String,
    /// Requests admitted.
    pub allowed: u64,
    /// Requests refused by a limit, in cooldown, or while the counters were unreachable.
    pub throttled: u64,
    /// Requests refused by a block.
    pub blocked: u64,
    /// Decisions that needed no call to the shared counters: from a lease or a cached refusal.
    pub cache_hits: u64,
    /// Decisions that called the shared counters.
    pub cache_misses: u64,
    /// How long the decisions took.
    pub latency: LatencyHistogram,
}
