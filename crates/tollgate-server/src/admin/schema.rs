//! What people write, as it is described. The readers of the configuration file read it (`read.rs`); these types only say
//! what they take, for the description of the API.

use std::collections::BTreeMap;

use utoipa::openapi::schema::{ArrayItems, Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{ArrayBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// One limit of a rule or a tier.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader of the configuration file takes")]
pub(crate) struct LimitWritten {
    /// Requests per window.
    requests: u32,
    /// The window; also `"day"`, `"week"` or `"month"` of the calendar.
    window: Length,
    /// What a bucket holds, if not `requests`.
    burst: Option<u32>,
    /// Where a week or a month of the calendar begins: `"monday"`, or the day of the month.
    anchor: Option<Anchor>,
    /// Where days of the calendar begin; UTC if absent.
    time_zone: Option<String>,
}

/// Which requests a rule is about. One value may stand without a list.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader of the configuration file takes")]
pub(crate) struct ConditionsWritten {
    /// Plans.
    tiers: Option<OneOrMore>,
    /// Patterns such as `/api/*`.
    endpoints: Option<OneOrMore>,
    /// HTTP methods.
    methods: Option<OneOrMore>,
    /// Addresses and networks.
    ips: Option<OneOrMore>,
    /// Users.
    users: Option<OneOrMore>,
    /// Organisations.
    tenants: Option<OneOrMore>,
    /// Further facts by name.
    descriptors: Option<BTreeMap<String, OneOrMore>>,
}

/// What a refused client is told.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader of the configuration file takes")]
pub(crate) struct ResponseWritten {
    /// The status a gateway answers with; 429 if absent.
    #[schema(minimum = 400, maximum = 599)]
    status: Option<u16>,
    /// The text for the client.
    #[schema(max_length = 1024)]
    message: Option<String>,
    /// Clients are never asked back sooner than this.
    retry_after_floor: Option<Length>,
}

/// A length of time: whole seconds, or a text such as `"90s"`, `"1h30m"` or `"7d"`.
pub(crate) struct Length;

/// A day: of the week by its name, of the month by its number.
pub(crate) struct Anchor;

/// One text, or a list of them.
#[expect(dead_code, reason = "it describes what the reader of the configuration file takes")]
pub(crate) struct OneOrMore(Vec<String>);

impl PartialSchema for Length {
    fn schema() -> RefOr<Schema> {
        let about = "A length of time: whole seconds, or a text such as `\"90s\"`, `\"1h30m\"` or `\"7d\"`.";
        number_or_text(about).minimum(Some(0)).into()
    }
}

impl PartialSchema for Anchor {
    fn schema() -> RefOr<Schema> {
        let about = "A day: of the week by its name, of the month by its number.";
        number_or_text(about).minimum(Some(1)).maximum(Some(31)).into()
    }
}

impl PartialSchema for OneOrMore {
    fn schema() -> RefOr<Schema> {
        let text = Object::with_type(Type::String);
        let both = SchemaType::from_iter([Type::String, Type::Array]);
        let either = ArrayBuilder::new().schema_type(both).items(ArrayItems::from(text));
        either.description(Some("One text, or a list of them.")).into()
    }
}

impl ToSchema for Length {}
impl ToSchema for Anchor {}
impl ToSchema for OneOrMore {}

fn number_or_text(about: &'static str) -> ObjectBuilder {
    let kinds = SchemaType::from_iter([Type::Integer, Type::String]);
    ObjectBuilder::new().schema_type(kinds).description(Some(about))
}
