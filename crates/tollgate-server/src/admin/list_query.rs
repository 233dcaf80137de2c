//! The query of a list: `limit`, `after` and the filters of its kind.

use tollgate::Timestamp;
use tollgate::identity::NormalForm;
use tollgate::rules::Action;
use tollgate_stores::sql::{BlockKind, ItemFilter};

use super::dry_run::parse_flag;
use super::parse;
use crate::http::error::{ApiError, Code};
use crate::http::{Call, json};

/// The longest text that a filter may be.
const FILTER_BYTES_MAX: usize = 2_304;

/// A query parameter that narrows a list.
#[derive(Copy, Clone)]
pub(crate) struct ListFilter {
    pub(crate) name: &'static str,
    /// The OpenAPI type.
    pub(crate) schema_type: &'static str,
    pub(crate) description: &'static str,
}

const fn text(name: &'static str, description: &'static str) -> ListFilter {
    ListFilter { name, schema_type: "string", description }
}

const fn flag(name: &'static str, description: &'static str) -> ListFilter {
    ListFilter { name, schema_type: "boolean", description }
}

pub(crate) const PREFIX: ListFilter = text("prefix", "Only items whose name or id starts with this.");
pub(crate) const ACTION: ListFilter = text("action", "Only rules with this action.");
pub(crate) const ENABLED: ListFilter = flag("enabled", "Only rules that are enabled, or disabled.");
pub(crate) const SOURCE: ListFilter = text("source", "`file`, `database` or `built-in`.");
pub(crate) const TIER: ListFilter = text("tier", "Only items of this tier.");
pub(crate) const USER_ID: ListFilter = text("user_id", "Only items of this user.");
pub(crate) const TENANT: ListFilter = text("tenant", "Only items of this tenant.");
pub(crate) const ACTIVE_KEYS: ListFilter =
    flag("active", "`true`: only keys that are neither revoked nor expired.");
pub(crate) const EXPIRES_BEFORE: ListFilter = text(
    "expires_before",
    "Only keys that expire before this time (RFC 3339), or within this duration (`30d`).",
);
pub(crate) const BLOCKED: ListFilter = flag("blocked", "Only users that are blocked, or not blocked.");
pub(crate) const LAST_REQUEST_AFTER: ListFilter = text(
    "last_request_after",
    "Only users with a request since this time (RFC 3339), or within this duration until now (`1h`).",
);
pub(crate) const LAST_REQUEST_BEFORE: ListFilter = text(
    "last_request_before",
    "Only users without a request since this time (RFC 3339), or within this duration until now (`30d`).",
);
pub(crate) const ACTIVE_BLOCKS: ListFilter = flag("active", "`true`: only blocks in force.");
pub(crate) const BLOCK_KIND: ListFilter = text("kind", "`user`, `api_key`, `tenant`, `login` or `ip`.");

/// The parameters of one request.
pub(crate) struct ListQuery(Vec<(String, String)>);

impl ListQuery {
    /// Rejects parameters that the kind does not have, and those given twice.
    pub(crate) fn parse(call: &Call, filters: &[ListFilter]) -> Result<Self, ApiError> {
        let query: Vec<(String, String)> = call.query()?;
        for (n, (name, _)) in query.iter().enumerate() {
            let is_known =
                matches!(&**name, "limit" | "after") || filters.iter().any(|filter| filter.name == *name);
            if !is_known {
                return Err(json::unknown(name.clone()));
            }
            if query[..n].iter().any(|(earlier, _)| earlier == name) {
                return Err(invalid(name, "is given twice"));
            }
        }
        Ok(ListQuery(query))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Whether items of this source are listed.
    pub(crate) fn includes_source(&self, source: &str) -> bool {
        self.get("source").is_none_or(|wanted| wanted == source)
    }

    /// What the database filters by.
    pub(crate) fn item_filter(&self, call: &Call) -> Result<ItemFilter, ApiError> {
        for name in ["prefix", "tier", "user_id", "tenant"] {
            check_text(name, self.get(name))?;
        }
        self.one_of("source", &["file", "database", "built-in"])?;
        self.one_of("action", &Action::ALL.map(Action::as_str))?;
        self.one_of("kind", &BlockKind::ALL.map(BlockKind::as_str))?;
        let enabled = self.get("enabled").map(|text| parse_flag("enabled", Some(text))).transpose()?;
        let active = parse_flag("active", self.get("active"))?;
        let expires_before = self.get("expires_before").map(|text| parse::end_of(text, call.app.now()));
        let expires_before =
            expires_before.transpose().map_err(|reason| invalid("expires_before", reason))?;
        let blocked = self.get("blocked").map(|text| parse_flag("blocked", Some(text))).transpose()?;
        let now = call.app.now();
        let owned = |name| self.get(name).map(str::to_owned);
        // A caller that is bound to a tenant lists its own items.
        call.tenant(self.get("tenant"))?;
        let tenant = self.get("tenant").or(call.caller.tenant.as_deref());
        let rules = call.app.limiter().rules();
        let ids = rules.normalization().ids;
        Ok(ItemFilter {
            prefix: owned("prefix"),
            tier: owned("tier"),
            users: id_forms(self.get("user_id"), ids.user),
            tenants: id_forms(tenant, ids.tenant),
            action: owned("action"),
            enabled,
            block_kind: self.get("kind").and_then(BlockKind::parse),
            active_at_micros: active.then(|| call.app.now().as_micros()),
            expires_before_micros: expires_before,
            blocked: blocked.map(|is_blocked| (is_blocked, now.as_micros())),
            requested_since_micros: self.start_of("last_request_after", now)?,
            idle_since_micros: self.start_of("last_request_before", now)?,
        })
    }

    /// A time, or the start of a duration until now.
    fn start_of(&self, name: &'static str, now: Timestamp) -> Result<Option<u64>, ApiError> {
        let start = self.get(name).map(|text| parse::start_of(text, now));
        start.transpose().map_err(|reason| invalid(name, reason))
    }

    fn one_of(&self, name: &'static str, known: &[&str]) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !known.contains(&value) => {
                Err(invalid(name, format!("must be one of {}", known.join(", "))))
            }
            _ => Ok(()),
        }
    }
}

/// Rejects text that no database column could hold.
pub(crate) fn check_text(field: &str, text: Option<&str>) -> Result<(), ApiError> {
    match text {
        Some("") => Err(invalid(field, "must not be empty")),
        Some(text) if text.len() > FILTER_BYTES_MAX => {
            Err(invalid(field, format!("must be at most {FILTER_BYTES_MAX} bytes")))
        }
        Some(text) if text.contains('\0') => Err(invalid(field, "must not contain a NUL character")),
        _ => Ok(()),
    }
}

fn invalid(field: &str, reason: impl Into<std::borrow::Cow<'static, str>>) -> ApiError {
    ApiError::field(Code::InvalidInput, field.to_owned(), reason)
}

/// The id as given, which keys stored under other `[identity]` settings may have, and normalized.
fn id_forms(id: Option<&str>, form: NormalForm) -> Vec<String> {
    let Some(id) = id else { return Vec::new() };
    let mut forms = vec![id.to_owned(), form.normalize(id).into_owned()];
    forms.dedup();
    forms
}
