//! The login name in the body of a login attempt.
//!
//! A body that tollgate reads differently from the server behind it would let an attacker choose what is counted. So everything
//! ambiguous is refused: compressed bodies, other content types, repeated fields.

use std::borrow::Cow;
use std::fmt;

use http::{HeaderMap, HeaderValue, header};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::identify::IdentityError;
use crate::config::settings::LoginEndpoint;
use crate::http::json;

/// Reads the login name. Every other outcome is an error: an attempt without a name would not be limited by it.
pub(crate) fn login_name(
    endpoint: &LoginEndpoint,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<String, IdentityError> {
    let unsupported = |reason| Err(IdentityError::UnsupportedLoginBody(reason));
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    if !codings.all(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")) {
        return unsupported("the body of a login request must not be compressed");
    }
    if body.len() > endpoint.body_bytes_max {
        return Err(IdentityError::LoginBodyTooLarge(endpoint.body_bytes_max));
    }
    if body.is_empty() {
        return invalid(endpoint, "is missing: the request has no body, or the gateway does not forward it");
    }
    let name = match media_type(headers).as_deref() {
        Some("application/json") => from_json(endpoint, body)?,
        Some("application/x-www-form-urlencoded") => from_form(endpoint, body)?,
        _ => {
            return unsupported(
                "the body of a login request must be application/json or application/x-www-form-urlencoded",
            );
        }
    };
    if name.is_empty() { invalid(endpoint, "must not be empty") } else { Ok(name) }
}

fn invalid<T>(endpoint: &LoginEndpoint, reason: impl Into<Cow<'static, str>>) -> Result<T, IdentityError> {
    Err(IdentityError::InvalidLogin { field: endpoint.field.clone(), reason: reason.into() })
}

/// The content type in lower case, without parameters. `None` unless there is exactly one.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter().map(HeaderValue::to_str);
    let (Some(Ok(value)), None) = (values.next(), values.next()) else { return None };
    Some(value.split(';').next()?.trim().to_ascii_lowercase())
}

fn from_json(endpoint: &LoginEndpoint, body: &[u8]) -> Result<String, IdentityError> {
    let not_json = |reason: String| IdentityError::InvalidLoginBody(reason.into());
    let text = json::object_text(body).map_err(|error| not_json(error.message().to_owned()))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let found = TextField(&endpoint.field).deserialize(&mut deserializer);
    let found = found.and_then(|found| deserializer.end().map(|()| found));
    match found.map_err(|error| not_json(format!("invalid JSON: {error}")))? {
        FieldValue::Text(name) => Ok(name),
        FieldValue::Missing => invalid(endpoint, "is missing"),
        FieldValue::Repeated => invalid(endpoint, "is given twice"),
        FieldValue::OtherType => invalid(endpoint, "must be a string"),
    }
}

fn from_form(endpoint: &LoginEndpoint, body: &[u8]) -> Result<String, IdentityError> {
    // The parser replaces invalid UTF-8, which could turn one name into another.
    let decoded = percent_encoding::percent_decode(body).decode_utf8();
    if decoded.is_err() {
        return Err(IdentityError::InvalidLoginBody("the form must be UTF-8".into()));
    }
    let pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = serde_urlencoded::from_bytes(body)
        .map_err(|error| IdentityError::InvalidLoginBody(format!("invalid form: {error}").into()))?;
    let mut names = pairs.into_iter().filter(|(name, _)| *name == *endpoint.field).map(|(_, value)| value);
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name.into_owned()),
        (None, _) => invalid(endpoint, "is missing"),
        (Some(_), Some(_)) => invalid(endpoint, "is given twice"),
    }
}

/// Reads one field of an object and skips the others.
struct TextField<'f>(&'f str);

enum FieldValue {
    Text(String),
    Missing,
    Repeated,
    OtherType,
}

impl<'de> DeserializeSeed<'de> for TextField<'_> {
    type Value = FieldValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<FieldValue, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TextField<'_> {
    type Value = FieldValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldValue, A::Error> {
        let mut found = FieldValue::Missing;
        while let Some(json::Text(name)) = map.next_key()? {
            if name != self.0 {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: serde_json::Value = map.next_value()?;
            found = match (found, value) {
                (FieldValue::Missing, serde_json::Value::String(text)) => FieldValue::Text(text),
                (FieldValue::Missing, _) => FieldValue::OtherType,
                _ => FieldValue::Repeated,
            };
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;

    const JSON: &str = "application/json; charset=utf-8";
    const FORM: &str = "Application/X-WWW-Form-Urlencoded";

    fn read(content_type: &str, body: &[u8]) -> Result<String, String> {
        let toml =
            "[[identity.login_endpoints]]\nendpoint = \"/login\"\nfield = \"email\"\nbody_bytes_max = 100";
        let settings = Settings::from_toml(toml).unwrap();
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, content_type.parse().unwrap())]);
        login_name(&settings.client_ids.login_endpoints[0], &headers, body).map_err(|error| error.to_string())
    }

    #[test]
    fn login_name_is_read_from_json_and_forms() {
        for (kind, body) in [
            (JSON, r#"{"password":{"email":"no"},"email":"ann@example.com","n":[1,{"email":2}]}"#),
            (JSON, r#" {"e\u006dail":"ann\u0040example.com"} "#),
            (FORM, "password=a%26email=b&email=ann%40example.com"),
            (FORM, "%65mail=ann@example.com&x"),
        ] {
            assert_eq!(read(kind, body.as_bytes()).as_deref(), Ok("ann@example.com"), "{body}");
        }
    }

    #[test]
    fn ambiguous_bodies_are_refused() {
        for (kind, body, reason) in [
            (JSON, &b"{\"email\":\"a\",\"email\":\"b\"}"[..], "email: is given twice"),
            (JSON, b"{\"email\":\"a\",\"emai\\u006c\":null}", "email: is given twice"),
            (JSON, b"{\"email\":1}", "email: must be a string"),
            (JSON, b"{\"email\":null}", "email: must be a string"),
            (JSON, b"{\"Email\":\"a\"}", "email: is missing"),
            (JSON, b"{\"email\":\"\"}", "email: must not be empty"),
            (JSON, b"{\"email\":\"a\"}{}", "trailing characters"),
            (JSON, b"{\"email\":\"a\"", "EOF"),
            (JSON, b"{\"email\":\"\xff\"}", "invalid utf-8"),
            (JSON, b"[\"a\"]", "must be a JSON object"),
            (JSON, b"\xef\xbb\xbf{\"email\":\"a\"}", "must be a JSON object"),
            (JSON, b"", "email: is missing: the request has no body"),
            (FORM, b"email=a&email=b", "email: is given twice"),
            (FORM, b"email=a&%65mail=a", "email: is given twice"),
            (FORM, b"email", "email: must not be empty"),
            (FORM, b"mail=a", "email: is missing"),
            (FORM, b"email=%ff", "must be UTF-8"),
            ("text/plain", b"email=a", "must be application/json or"),
            ("multipart/form-data; boundary=x", b"email=a", "must be application/json or"),
        ] {
            let error = read(kind, body).unwrap_err();
            assert!(error.contains(reason), "{}: {error}", String::from_utf8_lossy(body));
        }
        let large = format!("{{\"email\":\"{}\"}}", "a".repeat(100));
        assert!(read(JSON, large.as_bytes()).unwrap_err().contains("at most 100 bytes"));
    }

    #[test]
    fn compressed_and_repeated_types_are_refused() {
        let endpoint = &Settings::from_toml("[[identity.login_endpoints]]\nendpoint = \"/login\"").unwrap();
        let endpoint = &endpoint.client_ids.login_endpoints[0];
        let read = |headers: &[(header::HeaderName, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(name, value.parse().unwrap());
            }
            login_name(endpoint, &map, br#"{"username":"ann"}"#).is_ok()
        };
        let json = (header::CONTENT_TYPE, "application/json");
        assert!(
            read(std::slice::from_ref(&json))
                && read(&[json.clone(), (header::CONTENT_ENCODING, "identity")])
        );
        assert!(!read(&[json.clone(), (header::CONTENT_ENCODING, "gzip")]));
        assert!(!read(&[json.clone(), json]) && !read(&[]));
    }
}
