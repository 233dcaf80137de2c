//! `tollgate decisions search --archive`: decisions that are no longer in the database.

use serde_json::{Value, json};
use tollgate_stores::sql::records::{DecisionKind, RecordFilter, StoredDecision, TenantFilter};

use super::{COLUMNS, Search};
use crate::commands::archive::{ArchiveArgs, block_on, micros_of, now_micros};
use crate::{CliError, Exit, Output};

impl Search {
    /// Reads the archive of the settings file instead of asking a server.
    pub(super) fn run_archived(&self, archive: &ArchiveArgs, output: &Output) -> Result<Exit, CliError> {
        let opened = archive.open()?;
        let (filter, limit) = (self.filter(), usize::try_from(self.limit).unwrap_or(usize::MAX));
        // One more shows whether there are more.
        let found = block_on(async { Ok(opened.archive.search(&filter, limit.saturating_add(1)).await?) })?;
        let next = (found.decisions.len() > limit).then_some("archive");
        let decisions: Vec<Value> = found.decisions.iter().take(limit).map(decision_json).collect();
        Ok(COLUMNS.print("decisions", &decisions, next, output)?)
    }

    fn filter(&self) -> RecordFilter {
        let now = now_micros();
        let micros = |when: &Option<String>| when.as_deref().and_then(|when| micros_of(when, now));
        let filters = &self.filters;
        RecordFilter {
            from_micros: micros(&self.since),
            to_micros: micros(&self.until),
            tenant: filters.tenant.clone().map_or(TenantFilter::Any, TenantFilter::Named),
            identifier: filters.client(),
            user: None,
            route: filters.endpoint.clone(),
            rule: filters.rule.clone(),
            decision: filters.decision.as_deref().and_then(DecisionKind::parse),
        }
    }
}

/// A decision as the server returns it.
fn decision_json(stored: &StoredDecision) -> Value {
    let row = &stored.row;
    let at = jiff::Timestamp::from_microsecond(i64::try_from(row.at_micros).unwrap_or(0));
    json!({
        "id": stored.id,
        "at": at.map(|at| at.to_string()).unwrap_or_default(),
        "decision": row.decision.as_str(),
        "identifier": row.identifier,
        "tenant": row.tenant,
        "user_id": row.user_id,
        "api_key_id": row.api_key_id,
        "ip": row.ip_address,
        "endpoint": row.endpoint,
        "method": row.http_method,
        "rule": row.rule,
        "limit": row.limit_value,
        "current_count": row.current_count,
        "remaining": row.remaining,
        "cost": row.cost,
        "status": row.response_status,
        "retry_after": row.retry_after_seconds,
        "latency_us": row.latency_micros,
        "region": row.region,
        "server_id": row.server_id,
        "request_id": row.request_id,
        "degraded": row.degraded,
        "truncated": stored.truncated,
    })
}
