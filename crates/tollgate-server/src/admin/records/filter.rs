//! The filters that the queries share.

use std::net::IpAddr;

use tollgate::identity::NormalForm;
use tollgate_stores::sql::records::{DecisionKind, RecordFilter, TenantFilter};

use crate::admin::list_query::check_text;
use crate::http::Call;
use crate::http::error::{ApiError, Code};
use crate::records::identifier::Identifier;

/// Filters of a query, as sent.
#[derive(Copy, Clone, Default)]
pub(super) struct Filters<'a> {
    pub(super) tenant: Option<&'a str>,
    pub(super) identifier: Option<&'a str>,
    pub(super) user_id: Option<&'a str>,
    /// The name of the field is `endpoint` or `route`.
    pub(super) route: Option<(&'static str, &'a str)>,
    pub(super) rule: Option<&'a str>,
    pub(super) decision: Option<&'a str>,
}

impl Filters<'_> {
    /// Checks and normalizes the filters. A caller that is bound to a tenant selects its own records.
    pub(super) fn parse(self, call: &Call) -> Result<RecordFilter, ApiError> {
        for (field, text) in [
            ("identifier", self.identifier),
            ("user_id", self.user_id),
            (self.route.map_or("route", |(field, _)| field), self.route.map(|(_, route)| route)),
            ("rule", self.rule),
        ] {
            check_text(field, text)?;
        }
        let unknown = || {
            let names = DecisionKind::ALL.map(DecisionKind::as_str).join(", ");
            ApiError::field(Code::InvalidInput, "decision", format!("must be one of {names}"))
        };
        let decision = self.decision.map(|text| DecisionKind::parse(text).ok_or_else(unknown)).transpose()?;
        let rules = call.app.limiter().rules();
        let user = self.user_id.map(|user| rules.normalization().ids.user.normalize(user).into_owned());
        Ok(RecordFilter {
            tenant: call.tenant(self.tenant)?.map_or(TenantFilter::Any, TenantFilter::Named),
            identifier: self.identifier.map(|identifier| normalize_identifier(call, identifier)),
            user,
            route: self.route.map(|(_, route)| route.to_owned()),
            rule: self.rule.map(str::to_owned),
            decision,
            ..RecordFilter::default()
        })
    }
}

/// The identifier as it is recorded: normalized like the id of a request.
pub(in crate::admin) fn normalize_identifier(call: &Call, identifier: &str) -> String {
    let rules = call.app.limiter().rules();
    let ids = rules.normalization().ids;
    let Some((kind, id)) = identifier.split_once(':') else { return identifier.to_owned() };
    let form = match kind {
        "user" => ids.user,
        "login" => ids.login,
        "tenant" => ids.tenant,
        "ip" => {
            let recorded = |ip| Identifier::of_ip(ip, rules.ip_prefixes()).to_string();
            return id.parse::<IpAddr>().map_or_else(|_| identifier.to_owned(), recorded);
        }
        _ => NormalForm::Exact,
    };
    format!("{kind}:{}", form.normalize(id))
}
