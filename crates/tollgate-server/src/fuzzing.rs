//! Entry points for fuzz targets: the code that reads untrusted input.

use tollgate::Timestamp;
use tollgate::identity::{DescriptorNormalization, HeadCounting, IdNormalization, NormalForm, Normalization};

use crate::auth::Caller;
use crate::auth::api_keys::KeyRing;
use crate::check::request::CheckBody;
use crate::http::json;

/// Parses bytes as the body of a check; returns whether they are one. Must not panic for any input.
pub fn check_body(body: &[u8]) -> bool {
    let Ok(check) = json::parse::<CheckBody<'_>>(body) else { return false };
    let (keys, caller) = (KeyRing::new(None, Timestamp::from_secs(0)), Caller::anonymous());
    let Ok(facts) = check.facts(&folding(), &keys, &caller) else { return false };
    let request = facts.request(None);
    request.client().is_some() && !request.endpoint.as_str().is_empty()
}

/// Every normalization, so that hostile text passes through all of them.
fn folding() -> Normalization {
    let fold = NormalForm::NfcCasefold;
    Normalization {
        ids: IdNormalization { user: fold, tenant: fold, login: fold },
        descriptors: DescriptorNormalization::All(fold),
        ignore_path_case: true,
        head: HeadCounting::Separate,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::check_body;

    const BODY: &str = r#"{"user_id":"u","endpoint":"/a/%C3%89","method":"GET","ip":"::1","cost":2,"descriptors":{"k":"v"}}"#;

    fn is_object_with_endpoint(body: &[u8]) -> bool {
        let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        value.is_object() && value["endpoint"].is_string()
    }

    #[test]
    fn unchanged_body_is_a_check() {
        assert!(check_body(BODY.as_bytes()));
    }

    proptest! {
        #[test]
        fn mutated_body_is_rejected_or_a_json_object(edits in prop::collection::vec(any::<(Index, u8)>(), 1..6)) {
            let mut body = BODY.as_bytes().to_vec();
            for (at, byte) in edits {
                *at.get_mut(&mut body) = byte;
            }
            prop_assert!(!check_body(&body) || is_object_with_endpoint(&body));
        }

        #[test]
        fn nested_values_are_rejected_or_a_json_object(depth in 0..2_000_usize, byte in any::<u8>()) {
            let body = [b"{\"endpoint\":\"/\",\"descriptors\":".as_slice(), &vec![b'['; depth], &[byte]].concat();
            prop_assert!(!check_body(&body) || is_object_with_endpoint(&body));
        }
    }
}
