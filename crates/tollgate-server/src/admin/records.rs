//! Queries on the records: `/v1/admin/decisions`, `/v1/admin/windows`, `/v1/admin/rollups`, `/v1/admin/usage` and
//! `/v1/admin/records`.

mod csv;
pub(crate) mod decisions;
mod filter;
mod list;
mod period;
pub(crate) mod ranking;
pub(crate) mod rollups;
mod stream;
pub(crate) mod trend;
pub(crate) mod usage;
pub(crate) mod windows;

use tollgate_stores::sql::DatabaseError;
use tollgate_stores::sql::records::RecordReader;

pub(super) use self::filter::normalize_identifier;
use crate::http::Call;
use crate::http::error::{ApiError, Code};
use crate::records::queries::RecordsUnavailable;

/// The reader of the records database.
async fn reader(call: &Call) -> Result<RecordReader, ApiError> {
    Ok(call.app.record_queries().reader().await?)
}

impl From<RecordsUnavailable> for ApiError {
    fn from(error: RecordsUnavailable) -> Self {
        match error {
            RecordsUnavailable::NoDatabase(_) => ApiError::new(Code::Conflict, error.to_string()),
            RecordsUnavailable::Database(error) => query_error(&error),
        }
    }
}

/// The error of a query.
fn query_error(error: &DatabaseError) -> ApiError {
    let message = match error {
        DatabaseError::Value { field, reason } => {
            return ApiError::field(Code::InvalidInput, field.to_string(), reason.to_string());
        }
        error if error.is_unreachable() || error.is_timeout() => {
            "the records database is unreachable, or the query took too long; retry, or choose a shorter period"
        }
        error => {
            tracing::warn!(%error, "the records database rejected a query");
            "the records database rejected the query; the log has the reason"
        }
    };
    ApiError::new(Code::ServiceUnavailable, message)
}
