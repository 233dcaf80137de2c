//! What a query selects.

use crate::sql::error::DatabaseError;
use crate::sql::items::table::check_text;
use crate::sql::records::DecisionKind;

use super::statement::Statement;

/// Longer than every column.
pub(super) const TEXT_BYTES_MAX: usize = 4_096;

/// Selects records. `None` matches everything; fields that a table does not have are ignored.
#[derive(Clone, Debug, Default)]
pub struct RecordFilter {
    /// Records at this time or later, in microseconds since 1970.
    pub from_micros: Option<u64>,
    /// Records before this time.
    pub to_micros: Option<u64>,
    /// Records of this tenant.
    pub tenant: TenantFilter,
    /// Records of this client: `user:alice`.
    pub identifier: Option<String>,
    /// Rollups of this user.
    pub user: Option<String>,
    /// Records of this route. In the decision log: of this path.
    pub route: Option<String>,
    /// Records of requests that this rule decided.
    pub rule: Option<String>,
    /// Decisions with this outcome.
    pub decision: Option<DecisionKind>,
}

/// Whose records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TenantFilter {
    /// Those of all tenants, and those without one.
    #[default]
    Any,
    /// Those without a tenant.
    Without,
    /// Those of one tenant.
    Named(String),
}

/// The order of a list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// By time.
    OldestFirst,
    /// By time, backwards.
    NewestFirst,
}

/// The columns of a table that filters compare.
#[derive(Default)]
pub(super) struct FilteredColumns {
    pub(super) time: &'static str,
    pub(super) identifier: Option<&'static str>,
    pub(super) user: Option<&'static str>,
    pub(super) route: Option<&'static str>,
    pub(super) rule: Option<&'static str>,
    pub(super) decision: Option<&'static str>,
}

impl Order {
    /// The comparison with the row before.
    pub(super) const fn after(self) -> &'static str {
        match self {
            Order::OldestFirst => " > ",
            Order::NewestFirst => " < ",
        }
    }

    pub(super) const fn direction(self) -> &'static str {
        match self {
            Order::OldestFirst => "",
            Order::NewestFirst => " DESC",
        }
    }
}

impl RecordFilter {
    /// Appends the conditions, each after ` AND `.
    pub(super) fn push<'a>(
        &'a self,
        statement: &mut Statement<'a>,
        columns: &FilteredColumns,
    ) -> Result<(), DatabaseError> {
        if let Some(from) = self.from_micros {
            statement.push(" AND ").push(columns.time).push(" >= ").bind_time(from)?;
        }
        if let Some(to) = self.to_micros {
            statement.push(" AND ").push(columns.time).push(" < ").bind_time(to)?;
        }
        let decision = self.decision.map(DecisionKind::as_str);
        let texts = [
            (columns.identifier, "identifier", self.identifier.as_deref()),
            (columns.user, "user", self.user.as_deref()),
            (columns.route, "route", self.route.as_deref()),
            (columns.rule, "rule", self.rule.as_deref()),
            (columns.decision, "decision", decision),
        ];
        for (column, field, text) in texts {
            let (Some(column), Some(text)) = (column, text) else { continue };
            check_text(field, text, TEXT_BYTES_MAX)?;
            statement.push(" AND ").push(column).push(" = ").bind_text(text);
        }
        match &self.tenant {
            TenantFilter::Any => {}
            TenantFilter::Without => {
                statement.push(" AND COALESCE(r.tenant, '') = ''");
            }
            TenantFilter::Named(tenant) => {
                check_text("tenant", tenant, TEXT_BYTES_MAX)?;
                statement.push(" AND r.tenant = ").bind_text(tenant);
            }
        }
        Ok(())
    }
}
