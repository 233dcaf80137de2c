//! URLs of key sets. Only the settings contain them, never a token.

use std::fmt;
use std::net::IpAddr;

use http::Uri;

/// The URL of a key set: `https`, or `http` on a loopback address.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct JwksUrl(Uri);

impl JwksUrl {
    /// # Errors
    /// When the text is not a URL, or keys from it could not be trusted.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri =
            text.parse().map_err(|_| "is not a URL such as \"https://idp.example/keys\"".to_owned())?;
        let url = JwksUrl(uri);
        let authority = url.0.authority().map_or("", http::uri::Authority::as_str);
        let address = url.host().parse::<IpAddr>().ok();
        match url.0.scheme_str() {
            _ if url.host().is_empty() => {
                Err("must have a host, such as \"https://idp.example/keys\"".to_owned())
            }
            _ if authority.contains('@') => Err("must not contain a user or password".to_owned()),
            _ if address.is_some_and(|ip| !is_allowed(ip)) => {
                Err(format!("must not be the link-local, multicast or metadata address {}", url.host()))
            }
            Some("https") => Ok(url),
            Some("http") if url.host() == "localhost" || address.is_some_and(is_loopback) => Ok(url),
            _ => Err("must start with https://; http:// is accepted for loopback addresses only".to_owned()),
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// The host without the brackets of IPv6 addresses.
    pub(super) fn host(&self) -> &str {
        self.0.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
    }

    pub(super) fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or(if self.is_encrypted() { 443 } else { 80 })
    }

    /// The value of the header `Host`.
    pub(super) fn authority(&self) -> &str {
        self.0.authority().map_or("", http::uri::Authority::as_str)
    }

    pub(super) fn path_and_query(&self) -> &str {
        self.0.path_and_query().map_or("/", http::uri::PathAndQuery::as_str)
    }

    /// Whether an address that the host resolves to may be connected to.
    pub(super) fn accepts(&self, address: IpAddr) -> bool {
        is_allowed(address) && (self.is_encrypted() || is_loopback(address))
    }
}

/// Metadata services of clouds have link-local addresses; that of AWS has a unique local IPv6 address too.
fn is_allowed(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            !(v4.is_link_local() || v4.is_multicast() || v4.is_unspecified() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => {
            let is_metadata = v6.segments() == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254];
            !(v6.is_unicast_link_local() || v6.is_multicast() || v6.is_unspecified() || is_metadata)
        }
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

impl fmt::Display for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JwksUrl({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_set_urls_are_https_or_loopback() {
        for url in [
            "https://idp.example/keys",
            "https://idp.example:8443/keys?v=1",
            "https://10.0.0.1/keys",
            "http://127.0.0.1:8080/keys",
            "http://[::1]/keys",
            "http://localhost/keys",
        ] {
            assert!(JwksUrl::parse(url).is_ok(), "{url}");
        }
        for url in [
            "",
            "/keys",
            "idp.example",
            "http://idp.example/keys",
            "http://10.0.0.1/keys",
            "http://localhost.example/keys",
            "ftp://idp.example/keys",
            "file:///etc/passwd",
            "https://user:password@idp.example/keys",
            "https://169.254.169.254/latest/meta-data",
            "http://169.254.169.254/latest/meta-data",
            "https://[::ffff:169.254.169.254]/keys",
            "https://[fe80::1]/keys",
            "https://[fd00:ec2::254]/keys",
            "https://0.0.0.0/keys",
        ] {
            assert!(JwksUrl::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn resolved_metadata_addresses_are_refused() {
        let named = JwksUrl::parse("https://idp.example/keys").unwrap();
        for address in
            ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "fd00:ec2::254", "::", "224.0.0.1"]
        {
            assert!(!named.accepts(address.parse().unwrap()), "{address}");
        }
        for address in ["10.1.2.3", "127.0.0.1", "192.0.2.1", "2001:db8::1", "fd00::1"] {
            assert!(named.accepts(address.parse().unwrap()), "{address}");
        }
        let local = JwksUrl::parse("http://localhost/keys").unwrap();
        assert!(local.accepts("::1".parse().unwrap()));
        assert!(!local.accepts("192.0.2.1".parse().unwrap()));
    }
}
