//! OpenAPI schemas of request bodies. The parsers in `parse.rs` and of the settings file define what is accepted; these
//! types only describe it.

use std::collections::BTreeMap;

use utoipa::openapi::schema::{ArrayItems, Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{ArrayBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

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
    /// Only the first matching rule of a layer applies.
    layer: Option<String>,
    /// `reject` (default), `throttle`, `block`, `allow` or `log_only`.
    action: Option<String>,
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
    /// Longest delay of a throttled request.
    max_delay: Option<Length>,
    /// Whether nodes may lease units of hot counters in advance.
    leases: Option<bool>,
    /// Behaviour while the counters are unreachable: `local`, `open` or `closed`.
    on_store_failure: Option<String>,
    /// Response to refused requests.
    response: Option<RefusalInput>,
    /// Whether the rule is in force; default true.
    enabled: Option<bool>,
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
    /// Algorithm of the limits; default `token_bucket`.
    algorithm: Option<String>,
    /// Several limits, as in a rule.
    #[schema(max_items = 8)]
    limits: Option<Vec<LimitInput>>,
    /// Requests per second.
    requests_per_second: Option<u32>,
    /// Requests per minute.
    requests_per_minute: Option<u32>,
    /// Requests per hour.
    requests_per_hour: Option<u32>,
    /// Requests per day.
    requests_per_day: Option<u32>,
    /// Bucket capacity for `requests_per_…`.
    #[schema(minimum = 1)]
    burst_size: Option<u32>,
    /// Longest delay of a request, with `leaky_bucket` and `limits` or `requests_per_…`.
    max_delay: Option<Length>,
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

/// Limits and tier of a user.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct QuotaInput {
    /// The user; may be omitted where the path contains it.
    user_id: Option<String>,
    /// Tier of the user.
    tier: Option<String>,
    /// Requests per hour; overrides the rules.
    requests_per_hour: Option<u32>,
    /// Requests per day; overrides the rules.
    requests_per_day: Option<u32>,
    /// Bucket capacity of these limits.
    burst: Option<u32>,
}

/// An API key.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct KeyInput {
    /// A display name.
    name: String,
    /// User that the holder counts as.
    user_id: Option<String>,
    /// Tenant of the key. A caller with this key can act for this tenant only.
    tenant: Option<String>,
    /// Tier of the holder.
    tier: Option<String>,
    /// What the holder may do in this API: `check`, `read`, `config`, `reset`, `override`, `admin`.
    scopes: Option<Vec<String>>,
    /// Requests per second; overrides the rules.
    requests_per_second: Option<u32>,
    /// Requests per hour; overrides the rules.
    requests_per_hour: Option<u32>,
    /// Requests per day; overrides the rules.
    requests_per_day: Option<u32>,
    /// Bucket capacity of these limits.
    burst: Option<u32>,
    /// Expiry, RFC 3339.
    expires_at: Option<String>,
    /// Expiry from now: `"90d"`.
    expires_in: Option<String>,
}

/// A blocked client.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct BlockInput {
    /// `user:alice`, `api_key:<id>`, `tenant:acme`, `login:bob` or `ip:192.0.2.0/24`; may be omitted where the path contains it.
    client: Option<String>,
    /// Reason, shown to the client; at most 1024 bytes.
    reason: Option<String>,
    /// End of the block, RFC 3339; permanent if neither this nor `for` is given.
    until: Option<String>,
    /// Duration of the block: `"1h"`.
    r#for: Option<String>,
}

/// A blocked client in an import.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct BlockImport {
    /// `user:alice`, `api_key:<id>`, `tenant:acme`, `login:bob` or `ip:192.0.2.0/24`.
    client: String,
    /// Reason, shown to the client; at most 1024 bytes.
    reason: Option<String>,
    /// End of the block, RFC 3339; permanent if omitted. `for` is not allowed: it would start over with each import.
    until: Option<String>,
}

/// A duration: whole seconds, or a text such as `"90s"`, `"1h30m"` or `"7d"`.
pub(crate) struct Length;

/// First day of a week (name) or month (number).
pub(crate) struct Anchor;

/// A string, or a list of strings.
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct OneOrMore(Vec<String>);

impl PartialSchema for Length {
    fn schema() -> RefOr<Schema> {
        let about = "A duration: whole seconds, or a text such as `\"90s\"`, `\"1h30m\"` or `\"7d\"`.";
        number_or_text(about).minimum(Some(0)).into()
    }
}

impl PartialSchema for Anchor {
    fn schema() -> RefOr<Schema> {
        let about = "First day of a week (name) or month (number).";
        number_or_text(about).minimum(Some(1)).maximum(Some(31)).into()
    }
}

impl PartialSchema for OneOrMore {
    fn schema() -> RefOr<Schema> {
        let text = Object::with_type(Type::String);
        let both = SchemaType::from_iter([Type::String, Type::Array]);
        let either = ArrayBuilder::new().schema_type(both).items(ArrayItems::from(text));
        either.description(Some("A string, or a list of strings.")).into()
    }
}

impl ToSchema for Length {}
impl ToSchema for Anchor {}
impl ToSchema for OneOrMore {}

fn number_or_text(about: &'static str) -> ObjectBuilder {
    let kinds = SchemaType::from_iter([Type::Integer, Type::String]);
    ObjectBuilder::new().schema_type(kinds).description(Some(about))
}
