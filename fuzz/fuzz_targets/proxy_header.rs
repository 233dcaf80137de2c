//! PROXY headers from arbitrary bytes: what is read does not depend on how the bytes arrive, nor on those after the header.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::fuzzing::proxy_header;

// The first byte is the number of bytes that arrive at a time.
fuzz_target!(|data: &[u8]| {
    let [part, bytes @ ..] = data else { return };
    let read = proxy_header::read(bytes, usize::MAX);
    assert_eq!(proxy_header::read(bytes, usize::from(*part).max(1)), read);
    if let Some((client, length)) = read {
        assert!(length <= bytes.len());
        assert!(bytes.starts_with(b"PROXY ") || bytes.starts_with(b"\r\n\r\n\0\r\nQUIT\n"));
        assert_eq!(proxy_header::read(&bytes[..length], usize::MAX), Some((client, length)));
    }
});
