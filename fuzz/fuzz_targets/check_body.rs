//! The body of a check: whatever bytes a stranger sends, they are a check or they are refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::fuzzing::check_body;

fuzz_target!(|body: &[u8]| {
    let is_check = check_body(body);
    // What is read as a check is JSON, and an object: never more than a strict parser takes.
    if is_check {
        let value: serde_json::Value = serde_json::from_slice(body).expect("a check is JSON");
        assert!(value.is_object());
        assert!(value["endpoint"].is_string());
    }
});
