//! The time that a query covers.

use tollgate_stores::sql::records::{Granularity, RecordFilter};

use crate::admin::audit::parse_time;
use crate::admin::view;
use crate::http::Call;
use crate::http::error::{ApiError, Code};

/// Periods in one response.
const COUNT_MAX: u64 = 3_000;

/// From `since` until `until`, in microseconds since 1970.
#[derive(Copy, Clone)]
pub(super) struct Period {
    since: u64,
    until: u64,
}

impl Period {
    /// From the query; by default the last `default` until now.
    pub(super) fn parse(
        call: &Call,
        since: Option<&str>,
        until: Option<&str>,
        default: Granularity,
    ) -> Result<Self, ApiError> {
        let now = call.app.now();
        let until = until.map(|text| parse_time("until", text, now)).transpose()?;
        let until = until.unwrap_or(now.as_micros());
        let since = since.map(|text| parse_time("since", text, now)).transpose()?;
        let since = since.unwrap_or(until.saturating_sub(default.micros()));
        if since >= until {
            return Err(ApiError::field(Code::InvalidInput, "since", "must be before until"));
        }
        Ok(Period { since, until })
    }

    /// Selects the records of this time.
    pub(super) fn apply(self, filter: &mut RecordFilter) {
        (filter.from_micros, filter.to_micros) = (Some(self.since), Some(self.until));
    }

    /// The granularity of the query; by default one with up to a few hundred points.
    pub(super) fn granularity(self, per: Option<&str>) -> Result<Granularity, ApiError> {
        let length = self.until - self.since;
        let Some(per) = per else {
            return Ok(match length / Granularity::Hour.micros() {
                0..=6 => Granularity::Minute,
                7..=240 => Granularity::Hour,
                _ => Granularity::Day,
            });
        };
        let per = Granularity::parse(per)
            .ok_or_else(|| ApiError::field(Code::InvalidInput, "per", "must be minute, hour or day"))?;
        if length / per.micros() > COUNT_MAX {
            let reason = format!("the time is too long: at most {COUNT_MAX} {}s", per.as_str());
            return Err(ApiError::field(Code::InvalidInput, "per", reason));
        }
        Ok(per)
    }

    /// Its start, RFC 3339.
    pub(super) fn since(self) -> String {
        view::timestamp(self.since)
    }

    /// Its end, RFC 3339.
    pub(super) fn until(self) -> String {
        view::timestamp(self.until)
    }
}
