//! `server.hosts`: names of this server.

use std::net::{IpAddr, Ipv6Addr};

use tollgate::config::values::text;
use tollgate::config::{TableReader, Value};

use super::read::duplicate;

/// The longest name of the DNS.
const NAME_BYTES_MAX: usize = 253;

pub(super) fn read(fields: &mut TableReader<'_, '_>) -> Vec<Box<str>> {
    let hosts = fields.items("hosts", host).unwrap_or_default();
    if let Some(host) = duplicate(&hosts) {
        fields.report("hosts", format!("{host:?} is listed twice"));
    }
    hosts
}

/// A name or address without scheme and port, in lower case; IPv6 in brackets.
fn host(value: &Value) -> Result<Box<str>, String> {
    let text = text(value)?;
    let host = text.strip_suffix('.').unwrap_or(&text).to_ascii_lowercase();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(IpAddr::V6(ip)) = address.parse() {
        return Ok(in_brackets(ip));
    }
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_label_byte);
    if host.len() <= NAME_BYTES_MAX && host.split('.').all(is_label) {
        return Ok(host.into());
    }
    Err(format!(
        "{text:?} is not a host name or address such as \"gate.internal\", without scheme, port and wildcard; any port is accepted"
    ))
}

fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

fn in_brackets(ip: Ipv6Addr) -> Box<str> {
    format!("[{ip}]").into()
}
