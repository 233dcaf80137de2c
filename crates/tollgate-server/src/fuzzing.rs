//! Entry points for fuzz targets.

use std::sync::LazyLock;

use tollgate::identity::{DescriptorNormalization, HeadCounting, IdNormalization, NormalForm, Normalization};
use tollgate::{Limiter, MemoryCounters, RuleSet, Seed, Timestamp};

use crate::api::check::CheckBody;
use crate::auth::Caller;
use crate::check::{Checker, OverridePolicy};
use crate::counters::{Counters, ServiceLimiter};
use crate::http::json;
use crate::records::Records;

static LIMITER: LazyLock<ServiceLimiter> = LazyLock::new(|| {
    let rules = RuleSet::new(Vec::new(), None).unwrap_or_else(|error| unreachable!("{error:?}"));
    let rules = rules.with_normalization(normalization());
    let counters = Counters::Memory(MemoryCounters::default());
    let records = Records::new(&rules);
    Limiter::with_records(rules, counters, records, Seed([1; 16]))
});

/// Parses and resolves bytes as the body of a check. Returns whether they are one; must neither panic nor hang on any input.
pub fn check_body(body: &[u8]) -> bool {
    let Ok(check) = json::parse::<CheckBody<'_>>(body) else { return false };
    let checker = Checker {
        snapshot: LIMITER.snapshot(),
        metrics: &LIMITER.records().metrics,
        key_secret: None,
        caller: &Caller::anonymous(),
        overrides: OverridePolicy { is_open: true, requests_max: None },
        now: Timestamp::from_secs(0),
    };
    let check = check.request();
    let Ok(resolved) = checker.resolve(&check) else { return false };
    let request = resolved.request();
    request.client().is_some() && !request.endpoint.as_str().is_empty()
}

/// Every normalization at once.
fn normalization() -> Normalization {
    let form = NormalForm::NfcCasefold;
    Normalization {
        ids: IdNormalization { user: form, tenant: form, login: form },
        descriptors: DescriptorNormalization::All(form),
        ignore_path_case: true,
        head: HeadCounting::Separate,
    }
}
