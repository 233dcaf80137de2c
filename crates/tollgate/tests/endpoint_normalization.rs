//! Variants of a path share one limit.

use tollgate::endpoint::{Endpoint, EndpointError};
use tollgate::{Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};

/// One variant of `/api/v1/users` per line; headings start with `## `.
const VARIANTS: &str = include_str!("endpoint_variants.txt");

fn variants() -> impl Iterator<Item = &'static str> {
    VARIANTS.lines().filter(|line| !line.is_empty() && !line.starts_with("## "))
}

fn normal(raw: &str) -> String {
    Endpoint::parse(raw).unwrap_or_else(|error| panic!("{raw:?}: {error}")).to_string()
}

#[test]
fn two_hundred_variants_are_one_endpoint() {
    assert!(variants().count() >= 200);
    for raw in variants() {
        assert_eq!(normal(raw), "/api/v1/users", "{raw:?}");
    }
}

#[test]
fn distinct_paths_stay_distinct() {
    let others = [
        "/api%2Fv1/users",
        "/api%2fv1%2fusers",
        "/api/v1/users%2F",
        "/api/v1/users%3Fa",
        "/api/v1/users%23a",
        "/api/v1/users%3Bv=2",
        "/api/v1/users%20",
        "/api/v1/users.",
        "/api/v1/.users",
        "/api/v1/...",
        "/api/v1/users/...",
        "/api/v1/%2561",
        "/api/v1",
        "/x/..%2Fapi/v1/users",
        "/http://h/api/v1/users",
        "//h/api/v1/users",
    ];
    for raw in others {
        assert_ne!(normal(raw), "/api/v1/users", "{raw:?}");
    }
}

#[test]
fn escaped_plus_and_star_are_the_same_path() {
    let rules = "[[rules]]\nname = \"r\"\nper = [\"user\", \"endpoint\"]\nrequests_per_hour = 3";
    let limiter = Limiter::new(RuleSet::from_toml(rules).unwrap(), MemoryCounters::default());
    let admits = |path: &str| {
        let request =
            Request { user: Id::parse("alice").ok(), ..Request::new(Endpoint::parse(path).unwrap()) };
        limiter.check_now(&request, Timestamp::from_secs(1)).admits()
    };
    let forms = ["/a+b/*", "/a%2Bb/*", "/a%2bb/%2A", "/a+b/%2a"];
    assert_eq!(forms.iter().filter(|path| admits(path)).count(), 3);
}

#[test]
fn malformed_escapes_are_rejected() {
    for raw in
        ["/%zz", "/%", "/%2", "/a%/b", "/%%61", "/%6/1", "/%+1", "/% 1", "/%6é", "/;x=%zz", "/%zz/..", "%g0"]
    {
        let error = Endpoint::parse(raw).expect_err(raw);
        assert!(matches!(error, EndpointError::MalformedEscape(_)), "{raw:?}: {error}");
    }
}

#[test]
fn non_utf8_escapes_are_rejected() {
    let overlong_and_cut =
        ["/%C0%AE%C0%AE/", "/%c0%af", "/%E0%80%AE", "/%80", "/%A9", "/%FF", "/%C3", "/%C3/%A9"];
    let broken = ["/%C3%41", "/%C3a", "/é%A9", "/%C3é", "/%ED%A0%80", "/%F5%80%80%80", "/%F0%9F%98", "/;%C3"];
    for raw in overlong_and_cut.into_iter().chain(broken) {
        let error = Endpoint::parse(raw).expect_err(raw);
        assert!(matches!(error, EndpointError::NotUtf8(_)), "{raw:?}: {error}");
    }
}

#[test]
fn double_encoded_dots_are_rejected() {
    let twice = ["/%252e%252e/", "/a/%252E/b", "/a%252eb", "/.%252e", "/a/%252e%252e;x/b", "/a;%252e%252e/b"];
    let assembled = ["/%25%32%65", "/%25%32e", "/%252%45", "/%252%65"];
    let deeper = ["/%25252e", "/%2525252E", "/%25%32%35%32%65", "/x%252e/.."];
    for raw in twice.into_iter().chain(assembled).chain(deeper) {
        let error = Endpoint::parse(raw).expect_err(raw);
        assert!(matches!(error, EndpointError::DoubleEncodedDot(_)), "{raw:?}: {error}");
    }
}

#[test]
fn backslashes_are_rejected() {
    for raw in [
        "\\",
        "/a\\b",
        "/..\\..\\x",
        "/a%5Cb",
        "/a%5cb",
        "/a;x=\\",
        "http:\\\\h\\x",
        "http://h\\@g/x",
        "/\\/..",
    ] {
        let error = Endpoint::parse(raw).expect_err(raw);
        assert!(matches!(error, EndpointError::Backslash(_)), "{raw:?}: {error}");
    }
}

#[test]
fn control_characters_are_rejected() {
    for byte in (0..=0x1F_u8).chain([0x7F]) {
        for raw in
            [format!("/a{}b", char::from(byte)), format!("/a%{byte:02x}b"), format!("/a;x=%{byte:02X}")]
        {
            let error = Endpoint::parse(&raw).expect_err(&raw);
            assert!(matches!(error, EndpointError::ControlCharacter(_)), "{raw:?}: {error}");
        }
    }
    assert!(Endpoint::parse("http://h\r\nX: y/z").is_err());
}

#[test]
fn all_request_target_forms_are_endpoints() {
    let table = [
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        (".", "/"),
        ("?q", "/"),
        ("#f", "/"),
        (";p", "/"),
        ("/;p=1/", "/"),
        ("*", "/*"),
        ("/*", "/*"),
        ("search", "/search"),
        ("pkg.Service/Method", "/pkg.Service/Method"),
        ("host:443", "/host:443"),
        ("http://host", "/"),
        ("http://host?q", "/"),
        ("http://host:80/", "/"),
        ("http://host:80/a/", "/a"),
        ("urn:a:b", "/urn:a:b"),
        ("http:/a", "/http:/a"),
        ("1http://a", "/1http:/a"),
        ("/redirect/http://host/a", "/redirect/http:/host/a"),
        ("q?u=http://host/a", "/q"),
    ];
    for (raw, expected) in table {
        assert_eq!(normal(raw), expected, "{raw:?}");
    }
    assert_eq!(Endpoint::parse("http:///a"), Err(EndpointError::NoHost));
}

#[test]
fn path_is_case_sensitive_and_host_ignored() {
    assert_ne!(normal("/API"), normal("/api"));
    assert_ne!(normal("/%41pi"), normal("/api"));
    assert_eq!(normal("/%41pi"), "/Api");
    assert_eq!(normal("HTTP://Example.COM:80/a"), normal("http://example.com/a"));
}
