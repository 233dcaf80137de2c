//! `[identity]`: client addresses, normalization and tiers.

use std::num::NonZeroU8;

use tollgate::RuleSet;
use tollgate::config::values::{boolean, integer, word};
use tollgate::config::{TableReader, id, network, read_normalization};
use tollgate::identity::{AddressSource, ClientAddressPolicy, IpPrefixes, Normalization};
use tollgate::rules::RuleSettings;

use super::{ClientIdSettings, client_ids};

/// Each hop of a header is compared with all of them.
const TRUSTED_PROXIES_MAX: usize = 1_024;
pub(super) const DEPTH_MAX: u8 = 64;

/// `[identity]`.
pub(super) struct Identity {
    pub(super) client_address: ClientAddressPolicy,
    prefixes: IpPrefixes,
    nat64: bool,
    pub(super) normalization: Normalization,
    default_tier: Option<Box<str>>,
    pub(super) rejects_unknown_tiers: bool,
    pub(super) client_ids: ClientIdSettings,
    /// What may not be as meant.
    pub(super) warnings: Vec<String>,
}

impl Default for Identity {
    fn default() -> Self {
        Identity {
            client_address: ClientAddressPolicy::default(),
            prefixes: IpPrefixes::DEFAULT,
            nat64: false,
            normalization: Normalization::EXACT,
            default_tier: None,
            rejects_unknown_tiers: false,
            client_ids: ClientIdSettings::default(),
            warnings: Vec::new(),
        }
    }
}

impl Identity {
    /// Sets everything except the normalization.
    pub(super) fn apply_to(&self, rules: RuleSet) -> RuleSet {
        let settings = RuleSettings { default_tier: self.default_tier.clone(), ..rules.settings().clone() };
        rules.with_ip_prefixes(self.prefixes).with_nat64(self.nat64).with_settings(settings)
    }
}

/// Reads the section.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> Identity {
    let default = IpPrefixes::DEFAULT;
    let client_address = read_client_address(fields);
    let normalization = read_normalization(fields);
    Identity {
        client_ids: client_ids::read(fields, normalization.ignore_path_case),
        warnings: warnings(&client_address),
        client_address,
        prefixes: IpPrefixes {
            ipv4: fields.read("ipv4_prefix", integer(8..=32)).unwrap_or(default.ipv4),
            ipv6: fields.read("ipv6_prefix", integer(48..=128)).unwrap_or(default.ipv6),
        },
        nat64: fields.read("nat64", boolean).unwrap_or(false),
        normalization,
        default_tier: fields.read("default_tier", id),
        rejects_unknown_tiers: (fields.read("unknown_tier", word(&[("warn", false), ("reject", true)])))
            .unwrap_or(false),
    }
}

fn read_client_address(fields: &mut TableReader<'_, '_>) -> ClientAddressPolicy {
    let known = AddressSource::ALL.map(|source| (source.as_str(), source));
    let source = fields.read("client_address", word(&known));
    let trusted_proxies = fields.items("trusted_proxies", network).unwrap_or_default();
    let depth = fields.read("trusted_proxy_depth", integer(1..=DEPTH_MAX)).and_then(NonZeroU8::new);
    if trusted_proxies.len() > TRUSTED_PROXIES_MAX {
        fields.report("trusted_proxies", format!("must have at most {TRUSTED_PROXIES_MAX} networks"));
    }
    let default = if names_proxies(fields) { AddressSource::XForwardedFor } else { AddressSource::Peer };
    let policy = ClientAddressPolicy { source: source.unwrap_or(default), trusted_proxies, depth };
    check(fields, &policy);
    policy
}

/// Whether proxies are listed, valid or not.
fn names_proxies(fields: &TableReader<'_, '_>) -> bool {
    fields.has("trusted_proxies") && !fields.has_empty_list("trusted_proxies")
}

/// Reports keys that would have no effect: a header of an unknown proxy is never read.
fn check(fields: &mut TableReader<'_, '_>, policy: &ClientAddressPolicy) {
    let needs_proxies = "requires identity.trusted_proxies: list the proxies, such as [\"10.0.0.0/8\"]";
    let has_proxies = names_proxies(fields);
    let source = policy.source.as_str();
    if policy.source != AddressSource::Peer && !has_proxies {
        fields.report("client_address", format!("{source:?} {needs_proxies}"));
    } else if policy.depth.is_some() && !has_proxies {
        fields.report("trusted_proxy_depth", needs_proxies.to_owned());
    } else if policy.depth.is_some() && !policy.source.has_hops() {
        let reason = format!(
            "requires client_address = \"x-forwarded-for\" or \"forwarded\", not {source:?}; remove it"
        );
        fields.report("trusted_proxy_depth", reason);
    }
}

fn warnings(policy: &ClientAddressPolicy) -> Vec<String> {
    let everyone = policy.trusted_proxies.iter().find(|network| network.prefix_len() == 0);
    let warning = everyone.map(|network| {
        format!(
            "identity.trusted_proxies contains {network}: every client is believed, so each can choose the address \
             that it is counted by; list only the networks of your proxies"
        )
    });
    warning.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;

    fn settings(identity: &str) -> Settings {
        Settings::from_toml(&format!("[identity]\n{identity}")).unwrap()
    }

    #[test]
    fn trusted_proxies_choose_the_default_source() {
        for (identity, source) in [
            ("", AddressSource::Peer),
            ("trusted_proxies = []", AddressSource::Peer),
            ("trusted_proxies = '192.0.2.7'", AddressSource::XForwardedFor),
            ("trusted_proxies = ['192.0.2.7']\nclient_address = 'peer'", AddressSource::Peer),
            (
                "trusted_proxies = ['192.0.2.7']\nclient_address = 'proxy-protocol'",
                AddressSource::ProxyProtocol,
            ),
        ] {
            assert_eq!(settings(identity).client_address.source, source, "{identity}");
        }
    }

    #[test]
    fn trusting_everyone_is_a_warning() {
        for network in ["0.0.0.0/0", "::/0", "::ffff:0:0/96"] {
            let warnings = settings(&format!("trusted_proxies = ['10.0.0.1', '{network}']")).warnings;
            assert!(warnings[0].starts_with("identity.trusted_proxies contains "), "{warnings:?}");
            assert_eq!(warnings.len(), 1);
        }
        assert!(settings("trusted_proxies = ['10.0.0.0/8']").warnings.is_empty());
    }

    #[test]
    fn identity_is_reloaded() {
        let (old, new) = (settings(""), settings("trusted_proxies = ['10.0.0.0/8']\nipv4_prefix = 24"));
        assert!(old.needs_restart(&new).is_empty());
    }
}
