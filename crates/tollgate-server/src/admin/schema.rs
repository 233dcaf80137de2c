//! OpenAPI schemas of rules and tiers. The parsers in `parse.rs` and of the settings file define what is accepted; these
//! types only describe it.

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// A rule, with the keys of `[[rules]]`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct RuleInput {
    /// 1 to 128 bytes; may be omitted where the path contains it.
    name: Option<String>,
    /// Rules with a lower number are evaluated first: 0 to 1,000,000, default 100.
    #[schema(maximum = 1_000_000)]
    priority: Option<u32>,
    /// Requests that the rule matches; all if omitted.
    when: Option<ConditionsInput>,
    /// What the rule counts by: `user`, `ip`, `tenant`, `endpoint` and others.
    per: Option<OneOrMore>,
    /// Whether users, keys, logins, addresses and descriptors are counted over all tenants together; default false.
    across_tenants: Option<bool>,
    /// Only the first matching rule of a layer applies.
    layer: Option<String>,
    /// `reject` (default), `throttle`, `block`, `allow` or `log_only`.
    action: Option<String>,
    #[serde(flatten)]
    limits: LimitsInput,
    /// What a request is charged: a factor of its cost (1 to 1,000,000, default 1), or `descriptor:<name>`.
    cost: Option<CostInput>,
    /// Which requests count: `always` (default), or `on_failure`: a request is refunded if its response has a status below
    /// 400. For surfaces that report the response.
    count: Option<String>,
    /// Statuses whose requests are refunded: numbers from 200 to 599 and classes such as `5xx`. Not with
    /// `count = "on_failure"`.
    refund_statuses: Option<Vec<StatusInput>>,
    /// Whether nodes may lease units of hot counters in advance. Rules that refund are never leased.
    leases: Option<bool>,
    /// Behaviour while the counters are unreachable: `local`, `open` or `closed`.
    on_store_failure: Option<String>,
    /// The share of requests admitted by this rule that the decision log records: 0 to 1, or `all`; default
    /// `records.sample_allowed`.
    sample_allowed: Option<SampleInput>,
    /// Response to refused requests.
    response: Option<RefusalInput>,
    /// Whether the rule is in force; default true.
    enabled: Option<bool>,
    #[serde(flatten)]
    flat: FlatNames,
}

/// Other names of the keys of a rule: one flat table, as in a relational schema.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct FlatNames {
    /// `name`.
    rule_name: Option<String>,
    /// `when.tiers`.
    user_tier: Option<OneOrMore>,
    /// `when.tiers`.
    plan_tiers: Option<OneOrMore>,
    /// `when.endpoints`.
    endpoint_pattern: Option<OneOrMore>,
    /// `when.endpoints`.
    endpoints: Option<OneOrMore>,
    /// `when.methods`.
    http_method: Option<OneOrMore>,
    /// `when.ips`.
    ip_range: Option<OneOrMore>,
    /// `per`: `global`, `tenant`, `user`, `ip` or `endpoint`.
    scope: Option<String>,
    /// `on_store_failure`.
    failure_mode: Option<String>,
    /// `response.status`.
    #[schema(minimum = 400, maximum = 599)]
    response_status: Option<u16>,
    /// `response.message`.
    response_message: Option<String>,
    /// `response.retry_after_floor`, in seconds.
    retry_after_seconds: Option<u32>,
}

/// A tier, with the keys of `[[tiers]]`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct TierInput {
    /// 1 to 256 bytes; may be omitted where the path contains it.
    name: Option<String>,
    /// At most 1024 bytes.
    description: Option<String>,
    #[serde(flatten)]
    limits: TierLimits,
    /// Other name of `on_store_failure`.
    failure_mode: Option<String>,
}

/// Limits of a tier: `limit` and `window`, or `limits`, or `requests_per_…`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct TierLimits {
    /// Requests per window.
    limit: Option<u32>,
    /// The window.
    window: Option<Length>,
    /// Bucket capacity, if not `limit`.
    #[schema(minimum = 1)]
    burst: Option<u32>,
    #[serde(flatten)]
    limits: LimitsInput,
    /// Behaviour while the counters are unreachable: `local`, `open` or `closed`.
    on_store_failure: Option<String>,
}

/// The limits of a rule or a tier: `limits`, or the short forms `requests_per_…`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct LimitsInput {
    /// Algorithm of the limits; default `token_bucket`.
    algorithm: Option<String>,
    /// `{"requests": 100, "window": "1m", "burst": 20}`, at most eight.
    #[schema(max_items = 8)]
    limits: Option<Vec<LimitInput>>,
    /// Short form of `limits`: requests per second.
    requests_per_second: Option<u32>,
    /// Short form of `limits`: requests per minute.
    requests_per_minute: Option<u32>,
    /// Short form of `limits`: requests per hour.
    requests_per_hour: Option<u32>,
    /// Short form of `limits`: requests per day.
    requests_per_day: Option<u32>,
    /// Bucket capacity for the short forms.
    #[schema(minimum = 1)]
    burst_size: Option<u32>,
    /// Longest delay of a throttled request; with `leaky_bucket`.
    max_delay: Option<Length>,
    /// Flat form of one limit: requests per `window_seconds`.
    limit_count: Option<u32>,
    /// The window of `limit_count`.
    #[schema(minimum = 1)]
    window_seconds: Option<u32>,
    /// The burst of `limit_count`.
    #[schema(minimum = 1)]
    burst_limit: Option<u32>,
    /// Requests restored per second: must equal `limit_count` / `window_seconds`.
    refill_rate: Option<RefillRate>,
}

/// A number, or a number as text.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) enum RefillRate {
    Number(f64),
    Text(String),
}

/// One limit of a rule or a tier.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct LimitInput {
    /// Requests per window.
    requests: u32,
    /// The window: a duration, or the calendar units `"day"`, `"week"`, `"month"`.
    window: Length,
    /// Bucket capacity, if not `requests`.
    burst: Option<u32>,
    /// First day of a calendar week (`"monday"`) or month (1 to 31).
    anchor: Option<Anchor>,
    /// Time zone of calendar windows; default UTC.
    time_zone: Option<String>,
}

/// Requests that a rule matches. A single value needs no list.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct ConditionsInput {
    /// Tiers.
    tiers: Option<OneOrMore>,
    /// Endpoint patterns such as `/api/*`.
    endpoints: Option<OneOrMore>,
    /// HTTP methods.
    methods: Option<OneOrMore>,
    /// IP addresses and networks.
    ips: Option<OneOrMore>,
    /// User ids.
    users: Option<OneOrMore>,
    /// Tenants.
    tenants: Option<OneOrMore>,
    /// Descriptors by name.
    descriptors: Option<BTreeMap<String, OneOrMore>>,
}

/// Response to refused requests.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct RefusalInput {
    /// HTTP status for the client; default 429.
    #[schema(minimum = 400, maximum = 599)]
    status: Option<u16>,
    /// Message for the client.
    #[schema(max_length = 1024)]
    message: Option<String>,
    /// Minimum of `Retry-After`.
    retry_after_floor: Option<Length>,
}

/// A duration: whole seconds, or a text such as `"90s"`, `"1h30m"` or `"7d"`.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) enum Length {
    Seconds(u64),
    Text(String),
}

/// A factor, or `descriptor:<name>` to take it from a descriptor.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) enum CostInput {
    Factor(u32),
    Descriptor(String),
}

/// A status, or a class of statuses.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) enum StatusInput {
    Status(u16),
    Class(String),
}

/// A share from 0 to 1, or `all`.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) enum SampleInput {
    Share(f64),
    All(String),
}

/// First day of a week (name) or month (number).
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) enum Anchor {
    Day(u8),
    Weekday(String),
}

/// A string, or a list of strings.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) enum OneOrMore {
    One(String),
    More(Vec<String>),
}
