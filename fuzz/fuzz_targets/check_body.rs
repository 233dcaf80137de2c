//! Check bodies from arbitrary bytes: rejected, or a JSON object with an endpoint.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::fuzzing::check_body;

fuzz_target!(|body: &[u8]| {
    let is_check = check_body(body);
    if is_check {
        let value: serde_json::Value = serde_json::from_slice(body).expect("a check is JSON");
        assert!(value.is_object());
        assert!(value["endpoint"].is_string());
    }
});
