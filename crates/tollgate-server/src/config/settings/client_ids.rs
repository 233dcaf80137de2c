//! `identity.api_key_headers` and `[[identity.login_endpoints]]`: where gateways find the ids of a client in its request.

use http::HeaderName;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST};
use tollgate::config::values::{integer, text};
use tollgate::config::{TableReader, Value, method, pattern};
use tollgate::rules::pattern::Pattern;
use tollgate::{Endpoint, Method};

use super::read::duplicate;

const HEADERS_MAX: usize = 8;
const ENDPOINTS_MAX: usize = 64;
const FIELD_BYTES_MAX: usize = 64;
const BODY_BYTES_DEFAULT: usize = 64 << 10;
const BODY_BYTES_MAX: usize = 1 << 20;
/// Prefixes of headers that describe the request, and are written by proxies.
const PROXY_PREFIXES: [&str; 3] = ["x-forwarded-", "x-original-", "x-ratelimit-"];

/// Where gateways find the ids of a client in its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdSettings {
    /// The headers with the API key of a client, in lower case.
    pub api_key_headers: Vec<HeaderName>,
    /// The endpoints where clients log in.
    pub login_endpoints: Vec<LoginEndpoint>,
    /// Whether endpoints are compared without case (`identity.ignore_path_case`).
    pub ignore_path_case: bool,
}

impl Default for ClientIdSettings {
    fn default() -> Self {
        ClientIdSettings {
            api_key_headers: vec![HeaderName::from_static("x-api-key")],
            login_endpoints: Vec::new(),
            ignore_path_case: false,
        }
    }
}

impl ClientIdSettings {
    /// The login endpoint that a request is sent to, if any.
    pub fn login_endpoint(&self, method: Option<Method>, endpoint: &Endpoint<'_>) -> Option<&LoginEndpoint> {
        let method = method?;
        let folded =
            (self.ignore_path_case && !self.login_endpoints.is_empty()).then(|| endpoint.clone().casefold());
        let matches = |one: &&LoginEndpoint| match &folded {
            Some(folded) => one.endpoint.casefold().matches(folded),
            None => one.endpoint.matches(endpoint),
        };
        self.login_endpoints.iter().filter(|one| one.methods.contains(&method)).find(matches)
    }
}

/// An endpoint where clients log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginEndpoint {
    /// The endpoints.
    pub endpoint: Pattern,
    /// The methods of login attempts.
    pub methods: Vec<Method>,
    /// The field of the body with the login name.
    pub field: Box<str>,
    /// The largest body that is read.
    pub body_bytes_max: usize,
}

/// Reads both keys of `[identity]`.
pub(super) fn read(fields: &mut TableReader<'_, '_>, ignore_path_case: bool) -> ClientIdSettings {
    let api_key_headers = fields.items("api_key_headers", header);
    if api_key_headers.as_ref().is_some_and(|headers| headers.len() > HEADERS_MAX) {
        fields.report("api_key_headers", format!("must have at most {HEADERS_MAX} headers"));
    }
    if let Some(header) = api_key_headers.as_deref().and_then(duplicate) {
        fields.report("api_key_headers", format!("\"{header}\" is listed twice"));
    }
    let login_endpoints = fields.list_of_tables("login_endpoints", read_login_endpoint);
    if login_endpoints.len() > ENDPOINTS_MAX {
        fields.report("login_endpoints", format!("must have at most {ENDPOINTS_MAX} entries"));
    }
    let default = ClientIdSettings::default();
    ClientIdSettings {
        api_key_headers: api_key_headers.unwrap_or(default.api_key_headers),
        login_endpoints,
        ignore_path_case,
    }
}

fn header(value: &Value) -> Result<HeaderName, String> {
    let text = text(value)?;
    let name: HeaderName =
        text.parse().map_err(|_| format!("{text:?} is not a header name such as \"X-API-Key\""))?;
    let is_taken = [AUTHORIZATION, COOKIE, HOST, CONTENT_LENGTH, CONTENT_TYPE].contains(&name)
        || PROXY_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix));
    if is_taken {
        return Err(format!("{text:?} has another meaning; use a header of its own such as \"X-API-Key\""));
    }
    Ok(name)
}

fn read_login_endpoint(fields: &mut TableReader<'_, '_>) -> Option<LoginEndpoint> {
    let endpoint = fields.require("endpoint", pattern);
    let methods = fields.items("methods", method);
    if fields.has_empty_list("methods") {
        fields.report("methods", "must not be empty; leave it out for POST".to_owned());
    }
    let field = fields.read("field", field_name);
    let body_bytes_max = fields.read("body_bytes_max", integer(1..=BODY_BYTES_MAX));
    Some(LoginEndpoint {
        endpoint: endpoint?,
        methods: methods.unwrap_or_else(|| vec![Method::Post]),
        field: field.unwrap_or_else(|| "username".into()),
        body_bytes_max: body_bytes_max.unwrap_or(BODY_BYTES_DEFAULT),
    })
}

fn field_name(value: &Value) -> Result<Box<str>, String> {
    let name = text(value)?;
    if name.is_empty() || name.len() > FIELD_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(format!("must be the name of a field, 1 to {FIELD_BYTES_MAX} printable bytes"));
    }
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn read(identity: &str) -> ClientIdSettings {
        Settings::from_toml(&format!("[identity]\n{identity}")).unwrap().client_ids
    }

    fn is_login(settings: &ClientIdSettings, method: Method, path: &str) -> bool {
        settings.login_endpoint(Some(method), &Endpoint::parse(path).unwrap()).is_some()
    }

    #[test]
    fn login_endpoints_match_every_spelling_of_their_path() {
        let settings = read("[[identity.login_endpoints]]\nendpoint = \"/auth/{realm}/login\"");
        for path in ["/auth/a/login", "//auth/%61/./login/?x=1", "/auth/b/login;v=2"] {
            assert!(is_login(&settings, Method::Post, path), "{path}");
        }
        assert!(!is_login(&settings, Method::Get, "/auth/a/login"));
        assert!(!is_login(&settings, Method::Post, "/AUTH/a/login"));
        let settings = read("ignore_path_case = true\n[[identity.login_endpoints]]\nendpoint = \"/Login\"");
        assert!(is_login(&settings, Method::Post, "/lOGIN"));
    }

    #[test]
    fn client_ids_survive_a_round_trip() {
        for identity in [
            "",
            "api_key_headers = []",
            "api_key_headers = [\"X-Key\", \"x-api-key\"]\n[[identity.login_endpoints]]\nendpoint = \"/login\"\n\
             methods = [\"POST\", \"PUT\"]\nfield = \"email\"\nbody_bytes_max = 1000",
        ] {
            let settings = Settings::from_toml(&format!("[identity]\n{identity}")).unwrap();
            let again = Settings::from_toml(&settings.to_toml()).unwrap();
            assert_eq!(again.client_ids, settings.client_ids, "{identity}");
        }
    }
}
