//! Parses a test file and reports all errors with their lines.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tollgate::config::values::{boolean, integer, span, text, word};
use tollgate::config::{Document, Problems, TableReader, Value};
use tollgate::{Endpoint, Id, Method, Refusal, Request, Span, Timestamp};

use crate::input::rule_file::line;

/// The default start of a test's clock: 2026-01-01T00:00:00Z, the start of a minute, hour, day and month.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);
/// A larger number is most likely a typo, and would take long.
const REPEAT_MAX: u32 = 1_000_000;

/// One test.
pub(super) struct TestCase {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) start: Timestamp,
    pub(super) steps: Vec<TestStep>,
}

/// A request, its repetitions, and the expected decision.
pub(super) struct TestStep {
    pub(super) line: usize,
    /// Advances the clock before the step.
    pub(super) after: Span,
    pub(super) repeat: u32,
    /// Advances the clock between repetitions.
    pub(super) every: Span,
    pub(super) endpoint: Endpoint<'static>,
    pub(super) request: RequestFields,
    /// The expected keys and values, as they are printed.
    pub(super) expect: Vec<(&'static str, String)>,
}

/// The fields of a request that are given.
#[derive(Clone, Default)]
pub(super) struct RequestFields {
    endpoint: Option<Endpoint<'static>>,
    method: Option<Method>,
    ip: Option<IpAddr>,
    cost: Option<u32>,
    user: Option<String>,
    tenant: Option<String>,
    api_key: Option<String>,
    login: Option<String>,
    tier: Option<String>,
    descriptors: BTreeMap<String, String>,
}

/// Reads a test file.
pub(super) fn read(text: &str) -> Result<Vec<TestCase>, Problems> {
    let document = Document::from_toml(text)?;
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let tests = fields.list_of_tables("tests", read_test);
    if tests.is_empty() && !fields.has_problems() {
        fields.report("tests", "is empty: start a test with [[tests]]".to_owned());
    }
    fields.finish();
    problems.into_result(Some(tests))
}

fn read_test(fields: &mut TableReader<'_, '_>) -> Option<TestCase> {
    let (name, line) = (fields.require("name", text), line(fields));
    let start = fields.read("start", instant).unwrap_or(START);
    let base = RequestFields::default();
    let base = fields.table("request", |fields| read_request(fields, &base)).unwrap_or(base);
    // If the endpoint is invalid, do not also report it as missing.
    let complete = base.endpoint.is_some() || fields.has_problems();
    let steps = if fields.has("steps") {
        fields.list_of_tables("steps", |fields| {
            let request = fields.table("request", |fields| read_request(fields, &base));
            read_step(fields, request.unwrap_or_else(|| base.clone()), complete)
        })
    } else {
        read_step(fields, base, complete).into_iter().collect()
    };
    if steps.is_empty() && !fields.has_problems() {
        fields.report("steps", "is empty: start a step with [[tests.steps]]".to_owned());
    }
    Some(TestCase { name: name?, line, start, steps })
}

fn read_step(fields: &mut TableReader<'_, '_>, request: RequestFields, complete: bool) -> Option<TestStep> {
    let after = fields.read("after", span).unwrap_or_default();
    let repeat = fields.read("repeat", integer(1..=REPEAT_MAX)).unwrap_or(1);
    let every = fields.read("every", span).unwrap_or_default();
    let expect = fields.table("expect", read_expect);
    if expect.is_none() && !fields.has("expect") {
        fields.report("expect", "is required, for example { allowed = true }".to_owned());
    }
    if request.endpoint.is_none() && !complete && !fields.has_problems() {
        fields.report("request", "requires an endpoint".to_owned());
    }
    let no_client = request.ip.is_none()
        && [&request.user, &request.tenant, &request.api_key, &request.login].iter().all(|id| id.is_none());
    if no_client && !fields.has_problems() {
        // The service rejects such a request.
        fields.report("request", "requires one of user, api_key, ip, tenant, login".to_owned());
    }
    let endpoint = request.endpoint.clone()?;
    Some(TestStep { line: line(fields), after, repeat, every, endpoint, request, expect: expect? })
}

/// Reads a request; fields that are not given are those of `base`.
fn read_request(fields: &mut TableReader<'_, '_>, base: &RequestFields) -> RequestFields {
    let base = base.clone();
    let method = |value: &Value| Method::parse(&text(value)?).map_err(|error| error.to_string());
    RequestFields {
        endpoint: fields.read("endpoint", endpoint).or(base.endpoint),
        method: fields.read("method", method).or(base.method),
        ip: fields.read("ip", address).or(base.ip),
        cost: fields.read("cost", integer(0..=u32::MAX)).or(base.cost),
        user: fields.read("user", id).or(base.user),
        tenant: fields.read("tenant", id).or(base.tenant),
        api_key: fields.read("api_key", id).or(base.api_key),
        login: fields.read("login", id).or(base.login),
        tier: fields.read("tier", id).or(base.tier),
        descriptors: read_descriptors(fields, base.descriptors),
    }
}

fn read_descriptors(
    fields: &mut TableReader<'_, '_>,
    mut descriptors: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    for (name, value) in fields.entries("descriptors", id).unwrap_or_default() {
        match Id::parse(name) {
            Ok(_) => drop(descriptors.insert(name.to_owned(), value)),
            Err(reason) => fields.report("descriptors", format!("{name}: {reason}")),
        }
    }
    descriptors
}

fn read_expect(fields: &mut TableReader<'_, '_>) -> Vec<(&'static str, String)> {
    const DECISIONS: [(&str, &str); 3] =
        [("admitted", "admitted"), ("refused", "refused"), ("blocked", "blocked")];
    let refusals = [Refusal::OverLimit, Refusal::CostExceedsLimit, Refusal::Cooldown];
    let number = |value: &Value| integer(0..=u32::MAX)(value).map(|number| number.to_string());
    let expect: Vec<(&'static str, String)> = [
        ("allowed", fields.read("allowed", |value| boolean(value).map(|allowed| allowed.to_string()))),
        ("decision", fields.read("decision", word(&DECISIONS)).map(str::to_owned)),
        (
            "reason",
            fields.read("reason", word(&refusals.map(|r| (r.as_str(), r.as_str())))).map(str::to_owned),
        ),
        ("rule", fields.read("rule", |value| text(value).map(|rule| format!("{rule:?}")))),
        ("limit", fields.read("limit", number)),
        ("remaining", fields.read("remaining", number)),
        ("retry_after", fields.read("retry_after", retry_after)),
        ("delay", fields.read("delay", |value| span(value).map(|delay| delay.to_string()))),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect();
    if expect.is_empty() && !fields.has_problems() {
        fields.report("allowed", "is required, or another expectation".to_owned());
    }
    expect
}

fn retry_after(value: &Value) -> Result<String, String> {
    match value {
        Value::Text(word) if word == "never" => Ok(word.clone()),
        Value::Text(_) => Err("must be a number of seconds or \"never\"".to_owned()),
        other => integer(0..=i64::MAX)(other).map(|secs| secs.to_string()),
    }
}

fn endpoint(value: &Value) -> Result<Endpoint<'static>, String> {
    Endpoint::parse(&text(value)?).map(Endpoint::into_owned).map_err(|error| error.to_string())
}

fn address(value: &Value) -> Result<IpAddr, String> {
    let text = text(value)?;
    text.parse().map(|ip: IpAddr| ip.to_canonical()).map_err(|_| format!("{text:?} is not an address"))
}

fn id(value: &Value) -> Result<String, String> {
    let text = text(value)?;
    Id::parse(&text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn instant(value: &Value) -> Result<Timestamp, String> {
    let wrong = || "must be a time as a string, such as \"2026-03-29T00:30:00Z\"".to_owned();
    let Value::Text(text) = value else { return Err(wrong()) };
    let instant: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    u64::try_from(instant.as_microsecond())
        .map(Timestamp::from_micros)
        .map_err(|_| "must be after 1970".to_owned())
}

impl RequestFields {
    pub(super) fn descriptors(&self) -> Vec<(Id<'_>, Id<'_>)> {
        let pairs = self.descriptors.iter();
        pairs.filter_map(|(name, value)| Some((checked(name)?, checked(value)?))).collect()
    }

    pub(super) fn to_request<'a>(
        &'a self,
        endpoint: &'a Endpoint<'static>,
        descriptors: &'a [(Id<'a>, Id<'a>)],
    ) -> Request<'a> {
        Request {
            method: self.method,
            ip: self.ip,
            cost: self.cost.unwrap_or(1),
            user: self.user.as_deref().and_then(checked),
            tenant: self.tenant.as_deref().and_then(checked),
            api_key: self.api_key.as_deref().and_then(|key| tollgate::ApiKey::parse(key).ok()),
            login: self.login.as_deref().and_then(checked),
            tier: self.tier.as_deref().and_then(checked),
            descriptors,
            ..Request::new(endpoint.clone())
        }
    }
}

/// An identifier that was validated while reading the file.
fn checked(text: &str) -> Option<Id<'_>> {
    Id::parse(text).ok()
}
