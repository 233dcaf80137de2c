//! The request that a gateway asks about, from the headers that gateways send.
//!
//! Traefik, Caddy and APISIX send `X-Forwarded-Method` and `X-Forwarded-Uri`; nginx, by convention, `X-Original-Method` and
//! `X-Original-URI`; ingress-nginx `X-Original-URL`. Clients can send all of them too, and a gateway overwrites only its own. So
//! if both families are present they must agree: otherwise the client has sent one of them.

use http::HeaderMap;
use http::request::Parts;

use crate::http::error::{ApiError, Code};

const PAGE: &str = "see docs/gateways.md for the configuration of each gateway";

/// The names of one family of headers.
struct Family {
    method: &'static str,
    uris: &'static [&'static str],
}

const FORWARDED: Family = Family { method: "x-forwarded-method", uris: &["x-forwarded-uri"] };
const ORIGINAL: Family = Family { method: "x-original-method", uris: &["x-original-uri", "x-original-url"] };

/// The request that a gateway asks about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OriginalRequest<'h> {
    /// That of the request to tollgate if no header names it: Traefik can send it so.
    pub(super) method: &'h str,
    /// The path, without the query: it is not counted, and may be longer than any path.
    pub(super) path: &'h str,
    /// The header that has the path, for errors.
    pub(super) path_header: &'static str,
}

impl<'h> OriginalRequest<'h> {
    pub(super) fn read(parts: &'h Parts) -> Result<Self, ApiError> {
        let headers = &parts.headers;
        let (forwarded, original) = (FORWARDED.read(headers)?, ORIGINAL.read(headers)?);
        let found = match (forwarded, original) {
            (Some(forwarded), Some(original)) if !forwarded.agrees_with(&original) => {
                let reason = "differs from the X-Original- headers: the gateway must remove those that it does not set, \
                              which clients can send; ";
                return Err(invalid(FORWARDED.uris[0], format!("{reason}{PAGE}")));
            }
            (Some(found), _) | (None, Some(found)) => found,
            (None, None) => FamilyValues { method: None, uri: None },
        };
        let Some((path_header, uri)) = found.uri else {
            let reason = format!("is missing, and so is X-Original-URI; {PAGE}");
            return Err(invalid(FORWARDED.uris[0], reason));
        };
        Ok(OriginalRequest {
            method: found.method.unwrap_or(parts.method.as_str()),
            path: uri.split('?').next().unwrap_or_default(),
            path_header,
        })
    }
}

/// What one family of headers says.
struct FamilyValues<'h> {
    method: Option<&'h str>,
    uri: Option<(&'static str, &'h str)>,
}

impl FamilyValues<'_> {
    fn agrees_with(&self, other: &Self) -> bool {
        let uri = |values: &Self| values.uri.map(|(_, uri)| path_and_query(uri).to_owned());
        self.method == other.method && uri(self) == uri(other)
    }
}

impl Family {
    /// `None` if no header of the family is present.
    fn read<'h>(&self, headers: &'h HeaderMap) -> Result<Option<FamilyValues<'h>>, ApiError> {
        let method = single(headers, self.method)?;
        let mut uri = None;
        for name in self.uris {
            let Some(value) = single(headers, name)? else { continue };
            if uri.replace((*name, value)).is_some() {
                return Err(invalid(name, format!("cannot be combined with {}; {PAGE}", self.uris[0])));
            }
        }
        Ok((method.is_some() || uri.is_some()).then_some(FamilyValues { method, uri }))
    }
}

/// The value of a header that may be present once. An empty one is absent.
fn single<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid(name, format!("is present twice: the gateway must overwrite it; {PAGE}")));
    }
    let text = std::str::from_utf8(value.as_bytes());
    let text = text.map_err(|_| invalid(name, "must be UTF-8".to_owned()))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// A URI without scheme and host.
fn path_and_query(uri: &str) -> &str {
    match uri.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            rest.find('/').map_or("/", |start| &rest[start..])
        }
        _ => uri,
    }
}

fn invalid(header: &'static str, reason: String) -> ApiError {
    ApiError::field(Code::InvalidInput, header, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn read(headers: &[(&str, &str)]) -> Result<(String, String), String> {
        let parts = parts("HEAD", headers);
        let found = OriginalRequest::read(&parts).map_err(|error| error.message().to_owned())?;
        Ok((found.method.to_owned(), found.path.to_owned()))
    }

    #[test]
    fn every_gateway_is_understood() {
        let traefik =
            [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/a/b?c=d"), ("x-forwarded-host", "h")];
        assert_eq!(read(&traefik), Ok(("POST".into(), "/a/b".into())));
        let nginx = [("x-original-method", "PUT"), ("x-original-uri", "/a//b?c")];
        assert_eq!(read(&nginx), Ok(("PUT".into(), "/a//b".into())));
        let ingress = [("x-original-method", "GET"), ("x-original-url", "https://api.example/a?b")];
        assert_eq!(read(&ingress), Ok(("GET".into(), "https://api.example/a".into())));
        assert_eq!(read(&[("x-forwarded-uri", "/")]), Ok(("HEAD".into(), "/".into())));
    }

    #[test]
    fn headers_of_the_other_family_must_agree() {
        let own = [("x-original-method", "POST"), ("x-original-uri", "/login")];
        for spoofed in [
            &[("x-forwarded-uri", "/free")][..],
            &[("x-forwarded-uri", "/login")],
            &[("x-forwarded-method", "GET")],
            &[("x-forwarded-uri", "/login"), ("x-forwarded-method", "GET")],
            &[("x-forwarded-uri", "/login?x"), ("x-forwarded-method", "POST")],
        ] {
            let message = read(&[&own[..], spoofed].concat()).unwrap_err();
            assert!(message.starts_with("x-forwarded-uri: differs"), "{spoofed:?}: {message}");
        }
        let same = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "http://h/login")];
        assert!(read(&[&own[..], &same].concat()).is_ok());
        // Without X-Original-Method the client could add the method.
        assert!(
            read(&[("x-original-uri", "/a"), ("x-forwarded-uri", "/a"), ("x-forwarded-method", "GET")])
                .is_err()
        );
    }

    #[test]
    fn missing_and_repeated_headers_are_named() {
        for (headers, start) in [
            (&[][..], "x-forwarded-uri: is missing, and so is X-Original-URI; see docs/gateways.md"),
            (&[("x-forwarded-uri", "")], "x-forwarded-uri: is missing"),
            (&[("x-forwarded-method", "GET")], "x-forwarded-uri: is missing"),
            (&[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/a")], "x-forwarded-uri: is present twice"),
            (
                &[("x-original-method", "GET"), ("x-original-method", "PUT")],
                "x-original-method: is present twice",
            ),
            (
                &[("x-original-uri", "/a"), ("x-original-url", "http://h/a")],
                "x-original-url: cannot be combined",
            ),
            (&[("x-original-uri", "/\u{ff}")], "x-original-uri: must be UTF-8"),
        ] {
            // The bytes of a header are Latin-1 here.
            let mut parts = parts("GET", &[]);
            for (name, value) in headers {
                let bytes: Vec<u8> =
                    value.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap()).collect();
                let name: http::HeaderName = name.parse().unwrap();
                parts.headers.append(name, http::HeaderValue::from_bytes(&bytes).unwrap());
            }
            let message = OriginalRequest::read(&parts).unwrap_err().message().to_owned();
            assert!(message.starts_with(start), "{headers:?}: {message}");
        }
    }
}
