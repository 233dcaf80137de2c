//! The doors of the service, for fuzzers: what a stranger's bytes meet first.

use tollgate::Timestamp;
use tollgate::identity::{DescriptorNormalization, HeadCounting, IdNormalization, NormalForm, Normalization};

use crate::auth::Caller;
use crate::auth::api_keys::KeyRing;
use crate::check::request::CheckBody;
use crate::http::json;

/// Reads bytes as the body of a check. Whether they are one; whatever they are, it neither panics nor hangs.
pub fn check_body(body: &[u8]) -> bool {
    let Ok(check) = json::parse::<CheckBody<'_>>(body) else { return false };
    let (keys, caller) = (KeyRing::new(None, Timestamp::from_secs(0)), Caller::anonymous());
    let Ok(facts) = check.facts(&folding(), &keys, &caller) else { return false };
    let request = facts.request(None);
    request.client().is_some() && !request.endpoint.as_str().is_empty()
}

/// Every fold there is: what it makes of hostile text is looked at too.
fn folding() -> Normalization {
    let fold = NormalForm::NfcCasefold;
    Normalization {
        ids: IdNormalization { user: fold, tenant: fold, login: fold },
        descriptors: DescriptorNormalization::All(fold),
        ignore_path_case: true,
        head: HeadCounting::Separate,
    }
}
