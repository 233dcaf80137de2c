//! The keys of the sketches: clients, and names of rules and endpoints, each inside its tenant.

use std::fmt::Write as _;

use tollgate::Client;

use super::recent::overwrite;
use super::sketch::{KeyText, SketchKey};

/// Longer endpoints are cut; the identifiers are not longer.
const NAME_BYTES_MAX: usize = 256;

/// A client inside its tenant; the tenant is empty without one.
#[derive(Hash)]
pub(super) struct ClientKey<'a> {
    pub(super) tenant: &'a str,
    pub(super) client: Client<'a>,
}

/// A rule or an endpoint: of all requests with an empty tenant, else of one tenant.
#[derive(Hash)]
pub(super) struct NameKey<'a> {
    pub(super) tenant: &'a str,
    pub(super) name: &'a str,
}

impl SketchKey for ClientKey<'_> {
    fn is(&self, text: &KeyText) -> bool {
        let is = |kind: &str, id: &str| text.name.strip_prefix(kind).is_some_and(|rest| rest == id);
        let is_same = match self.client {
            Client::User(id) => is("user:", id.as_str()),
            Client::Login(id) => is("login:", id.as_str()),
            Client::Tenant(id) => is("tenant:", id.as_str()),
            Client::Ip(ip) => text.name.strip_prefix("ip:").is_some_and(|rest| rest.parse() == Ok(ip)),
            Client::ApiKey(key) => match key.known_id() {
                Some(id) => is("api_key:", id.as_str()),
                // The text has only a hash of it.
                None => text.name.starts_with("api_key:#"),
            },
        };
        is_same && is_equal(&text.tenant, self.tenant)
    }

    fn write(&self, text: &mut KeyText) {
        overwrite(&mut text.tenant, self.tenant);
        text.name.clear();
        match self.client {
            Client::User(id) => text.name.extend(["user:", id.as_str()]),
            // Writing to a string does not fail.
            _ => drop(write!(text.name, "{}", self.client)),
        }
    }
}

impl SketchKey for NameKey<'_> {
    fn is(&self, text: &KeyText) -> bool {
        is_equal(&text.name, self.name) && is_equal(&text.tenant, self.tenant)
    }

    fn write(&self, text: &mut KeyText) {
        overwrite(&mut text.tenant, self.tenant);
        overwrite(&mut text.name, self.name);
    }
}

/// Compares texts that are often both empty. Skipping `memcmp` for those made `offer` several times faster where it was measured.
fn is_equal(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// The start of a long endpoint.
pub(super) fn cut(endpoint: &str) -> &str {
    &endpoint[..endpoint.floor_char_boundary(NAME_BYTES_MAX)]
}
