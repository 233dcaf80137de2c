//! Tokens from arbitrary text: none is accepted without a signature.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::fuzzing::token;

fuzz_target!(|text: &str| {
    // As given, and with a valid signature.
    assert!(!token::is_accepted(text));
    let signed = token::sign(text);
    if token::is_accepted(&signed) {
        assert!(token::is_accepted(&signed), "the outcome depends on earlier calls");
    }
});
