//! Clients with tokens, behind a gateway that forwards `Authorization` (threats 25 and 26).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::harness::{Answer, Service, wait_for};
use crate::setup::settings;

const SECRET: &str = "shared secret of the issuer and tollgate";
const HOUR: Duration = Duration::from_hours(1);

/// A service that trusts an issuer, with more keys of `[identity]` and of the issuer.
fn service(limit: u32, identity: &str, issuer: &str) -> Service {
    let jwt = format!(
        "{identity}\n[[identity.jwt]]\nissuer = \"idp\"\naudience = \"api\"\nalgorithm = \"HS256\"\n\
         secret = {SECRET:?}\n{issuer}"
    );
    Service::with_config(&settings(limit, &jwt))
}

fn signed(claims: &Value, secret: &str) -> String {
    let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let header = encoded(br#"{"alg":"HS256","typ":"JWT"}"#);
    let signed = format!("{header}.{}", encoded(claims.to_string().as_bytes()));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(signed.as_bytes());
    format!("{signed}.{}", encoded(&mac.finalize().into_bytes()))
}

fn claims(user: &str) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    json!({"iss": "idp", "aud": "api", "sub": user, "exp": (now + HOUR).as_secs()})
}

fn token(user: &str) -> String {
    signed(&claims(user), SECRET)
}

fn token_of(user: &str, tenant: &str) -> String {
    let mut claims = claims(user);
    claims["org"] = tenant.into();
    signed(&claims, SECRET)
}

/// A token with a changed signature, one of another issuer's secret, an expired one and no token.
fn invalid_tokens() -> [String; 4] {
    let mut changed = token("alice");
    // The last letter has bits that are no part of the signature.
    let letter = changed.len() - 2;
    let other = if changed.as_bytes()[letter] == b'A' { "B" } else { "A" };
    changed.replace_range(letter..=letter, other);
    let mut expired = claims("alice");
    expired["exp"] = 1_000_000_000.into();
    let other_secret = "shared secret of the issuer and an attacker";
    [changed, signed(&claims("alice"), other_secret), signed(&expired, SECRET), "none".to_owned()]
}

/// Asks as Traefik does, for a client at this address.
fn ask(service: &Service, address: &str, token: Option<&str>) -> Answer {
    let bearer = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    let request = format!(
        "GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-forwarded-method: GET\r\n\
         x-forwarded-uri: /orders\r\nx-forwarded-for: {address}\r\n{bearer}\r\n"
    );
    service.raw(request.as_bytes())
}

fn remaining(service: &Service, address: &str, token: Option<&str>) -> Option<String> {
    ask(service, address, token).header("x-ratelimit-remaining").map(str::to_owned)
}

fn explain(service: &Service, client: &Value) -> Value {
    service.post("/v1/rate-limit/explain", &client.to_string()).json()
}

#[test]
fn verified_token_names_the_user() {
    let service = service(3, "", "");
    let alice = token("alice");
    let statuses = [1, 2, 3, 4].map(|n| ask(&service, &format!("203.0.113.{n}"), Some(&alice)).status);
    assert_eq!(statuses, [200, 200, 200, 429], "one user at four addresses");
    assert_eq!(ask(&service, "203.0.113.5", Some(&token("alice"))).status, 429);
    assert_eq!(remaining(&service, "203.0.113.1", Some(&token("bob"))).as_deref(), Some("2"));
    assert_eq!(remaining(&service, "203.0.113.1", None).as_deref(), Some("2"), "the address was not counted");
    let explained = explain(&service, &json!({"user_id": "alice", "endpoint": "/orders"}));
    assert_eq!((&explained["client"], &explained["remaining"]), (&"user:alice".into(), &0.into()));
}

#[test]
fn invalid_token_gets_401_and_a_challenge() {
    let service = service(3, "", "");
    for token in invalid_tokens() {
        let answer = ask(&service, "203.0.113.1", Some(&token));
        assert_eq!(answer.error().0, 401, "{}", answer.text);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
        assert!(!answer.text.contains(&token), "{}", answer.text);
    }
    for (reason, count) in [("invalid_signature", 2.0), ("expired", 1.0), ("malformed", 1.0)] {
        let metric = format!("tollgate_tokens_refused_total{{reason=\"{reason}\"}}");
        assert_eq!(service.metric(&metric), Some(count), "{reason}");
    }
    assert_eq!(remaining(&service, "203.0.113.1", Some(&token("alice"))).as_deref(), Some("2"));
    assert_eq!(
        remaining(&service, "203.0.113.1", None).as_deref(),
        Some("2"),
        "refused tokens count nothing"
    );
}

#[test]
fn invalid_token_can_be_anonymous() {
    let service = service(3, "invalid_token = \"treat_as_anonymous\"", "");
    let statuses = invalid_tokens().map(|token| ask(&service, "203.0.113.1", Some(&token)).status);
    assert_eq!(statuses, [200, 200, 200, 429], "counted by the address");
    assert_eq!(ask(&service, "203.0.113.1", None).status, 429);
    assert_eq!(remaining(&service, "203.0.113.1", Some(&token("alice"))).as_deref(), Some("2"));
}

/// Tokens of an attacker, each with another signature.
fn guess(number: usize) -> String {
    signed(&claims("alice"), &format!("secret of an attacker, number {number}"))
}

/// Sends guesses until the backoff of their address outlasts the rest of the test; returns the last answer.
fn guess_until_backoff(service: &Service, address: &str) -> Answer {
    for number in 0..200 {
        let answer = ask(service, address, Some(&guess(number)));
        assert!([401, 429].contains(&answer.status), "{}", answer.text);
    }
    wait_for("a backoff that outlasts this test", || {
        let answer = ask(service, address, Some(&guess(0)));
        let wait = answer.header("retry-after")?.parse::<u64>().unwrap();
        (wait >= 8).then_some(answer)
    })
}

#[test]
fn guessed_tokens_are_refused_unread() {
    let service = service(1_000, "", "");
    let (neighbour, newcomer) = (token("neighbour"), token("newcomer"));
    assert_eq!(ask(&service, "203.0.113.1", Some(&neighbour)).status, 200);
    let refused = guess_until_backoff(&service, "203.0.113.1");
    assert_eq!((refused.status, &*refused.error().1), (429, "TOO_MANY_ATTEMPTS"));
    let message = "too many invalid bearer tokens from this address; retry after Retry-After";
    assert_eq!(refused.json()["error"]["message"], message);

    let count = |reason: &str| {
        service.metric(&format!("tollgate_tokens_refused_total{{reason=\"{reason}\"}}")).unwrap_or(0.0)
    };
    let (verified, unread) = (count("invalid_signature"), count("throttled"));
    assert!(verified <= 80.0 && unread >= 100.0, "{verified} were verified, {unread} were not");
    assert_eq!(service.metric("tollgate_token_throttle_activations_total"), Some(1.0));
    assert!(service.log().contains("repeated invalid tokens: backing off"), "{}", service.log());

    assert_eq!(ask(&service, "203.0.113.1", Some(&newcomer)).status, 429, "same address, never seen");
    assert_eq!(ask(&service, "203.0.113.1", Some(&neighbour)).status, 200, "verified before");
    assert_eq!(ask(&service, "203.0.113.1", None).status, 200, "without a token");
    assert_eq!(ask(&service, "203.0.113.2", Some(&newcomer)).status, 200, "another address");
    assert_eq!(ask(&service, "203.0.113.1", Some(&newcomer)).status, 200, "now it is verified");
    let key = service.admin_key();
    assert_eq!(service.with_key(&key, "GET", "/v1/admin/penalties", "").status, 200, "keys of callers");
    wait_for("the alert in the audit trail", || {
        let trail = service.admin("GET", "/v1/admin/audit?kind=token_attempts", "").json();
        let entry = &trail["entries"][0];
        (entry["subject"] == "203.0.113.1" && entry["after"]["invalid_tokens"] == 65).then_some(())
    });
}

#[test]
fn expired_tokens_are_no_guesses() {
    let service = service(1_000, "", "");
    let mut expired = claims("alice");
    expired["exp"] = 1_000_000_000.into();
    let expired = signed(&expired, SECRET);
    for _ in 0..200 {
        assert_eq!(ask(&service, "203.0.113.1", Some(&expired)).status, 401);
    }
    assert_eq!(ask(&service, "203.0.113.1", Some(&token("alice"))).status, 200);
}

#[test]
fn guesses_count_as_anonymous_while_unread() {
    let service = service(1_000, "invalid_token = \"treat_as_anonymous\"", "");
    for number in 0..100 {
        assert_eq!(ask(&service, "203.0.113.1", Some(&guess(number))).status, 200);
    }
    let unread = service.metric("tollgate_tokens_refused_total{reason=\"throttled\"}").unwrap();
    assert!(unread >= 1.0, "{unread}");
    assert_eq!(remaining(&service, "203.0.113.1", None).as_deref(), Some("899"), "counted by the address");
}

#[test]
fn tenant_claim_qualifies_the_user() {
    let service = service(1, "", "tenant_claim = \"org\"");
    let ask_as = |tenant: &str| ask(&service, "203.0.113.1", Some(&token_of("alice", tenant))).status;
    assert_eq!([ask_as("acme"), ask_as("globex"), ask_as("acme"), ask_as("globex")], [200, 200, 429, 429]);
    let remaining_of = |tenant: &str| {
        let client = json!({"user_id": "alice", "tenant": tenant, "endpoint": "/orders"});
        explain(&service, &client)["remaining"].clone()
    };
    assert_eq!([remaining_of("acme"), remaining_of("initech")], [json!(0), json!(1)]);
    assert_eq!(ask(&service, "203.0.113.1", Some(&token("alice"))).status, 401, "without its tenant");
}
