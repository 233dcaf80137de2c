//! Bodies of login requests from arbitrary bytes: refused, or the name that every other reader finds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::fuzzing::login;

fuzz_target!(|body: &[u8]| {
    if let Some(name) = login::from_json(body) {
        let value: serde_json::Value = serde_json::from_slice(body).expect("a login is JSON");
        assert_eq!(value["name"].as_str(), Some(&*name));
    }
    if let Some(name) = login::from_form(body) {
        assert!(!name.is_empty());
        assert_eq!(login::from_form(&[body, b"&x=1"].concat()), Some(name));
        assert_eq!(login::from_form(&[body, b"&name=other"].concat()), None, "two names");
    }
});
