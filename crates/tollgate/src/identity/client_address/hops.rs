//! The hops of `X-Forwarded-For` and `Forwarded`, read from the right without an allocation.
//!
//! Quoted strings of `Forwarded` are scanned from the right too: an open quote in what a client sent must not swallow what
//! a proxy appended to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{AddressError, AddressSource};

const BYTES_MAX: usize = 8_192;
const HOPS_MAX: usize = 64;

/// The lines of one header, in the order of the request.
pub(super) struct HeaderLines<'h> {
    lines: [&'h [u8]; HOPS_MAX],
    count: usize,
}

impl<'h> HeaderLines<'h> {
    /// A line has at least one hop, so more lines than hops are too many.
    pub(super) fn collect(values: impl IntoIterator<Item = &'h [u8]>) -> Result<Self, AddressError> {
        let (mut lines, mut count, mut bytes) = ([[].as_slice(); HOPS_MAX], 0, 0);
        for value in values {
            bytes += value.len();
            if bytes > BYTES_MAX {
                return Err(AddressError::HeaderTooLong);
            }
            *lines.get_mut(count).ok_or(AddressError::TooManyHops)? = value;
            count += 1;
        }
        Ok(HeaderLines { lines, count })
    }

    /// The only line.
    pub(super) fn single(&self) -> Option<&'h [u8]> {
        if let [line] = self.lines[..self.count] { Some(line) } else { None }
    }

    pub(super) fn hops(&self, source: AddressSource) -> Hops<'_, 'h> {
        Hops { lines: &self.lines[..self.count], is_forwarded: source == AddressSource::Forwarded }
    }
}

/// The hops of all lines, as one list.
pub(super) struct Hops<'l, 'h> {
    lines: &'l [&'h [u8]],
    is_forwarded: bool,
}

impl<'h> Hops<'_, 'h> {
    pub(super) fn check_count(&self) -> Result<(), AddressError> {
        if self.elements().nth(HOPS_MAX).is_some() { Err(AddressError::TooManyHops) } else { Ok(()) }
    }

    /// The addresses from right to left; `None` for a hop that is no address.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Option<IpAddr>> {
        self.elements().map(|element| {
            if self.is_forwarded { parse_address(for_parameter(element)?) } else { parse_address(element) }
        })
    }

    fn elements(&self) -> impl Iterator<Item = &'h [u8]> {
        let last_comma = if self.is_forwarded { last_unquoted_comma } else { last_comma };
        self.lines.iter().rev().flat_map(move |line| Elements { rest: Some(line), last_comma })
    }
}

/// The elements of one line, from right to left.
struct Elements<'h> {
    rest: Option<&'h [u8]>,
    last_comma: fn(&[u8]) -> Option<usize>,
}

impl<'h> Iterator for Elements<'h> {
    type Item = &'h [u8];

    fn next(&mut self) -> Option<&'h [u8]> {
        let line = self.rest.take()?;
        let Some(comma) = (self.last_comma)(line) else { return Some(line) };
        self.rest = Some(&line[..comma]);
        Some(&line[comma + 1..])
    }
}

fn last_comma(line: &[u8]) -> Option<usize> {
    line.iter().rposition(|byte| *byte == b',')
}

/// The last comma outside of quoted strings, with the end of the line outside of them.
fn last_unquoted_comma(line: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    for (position, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if !is_quoted => is_quoted = true,
            b'"' => is_quoted = is_escaped(line, position),
            b',' if !is_quoted => return Some(position),
            _ => {}
        }
    }
    None
}

/// Whether the byte at this position of a quoted string follows an odd number of backslashes.
fn is_escaped(text: &[u8], position: usize) -> bool {
    let slashes = text[..position].iter().rev().take_while(|byte| **byte == b'\\').count();
    slashes % 2 == 1
}

/// The value of `for` in an element of `Forwarded`. `None` if it is missing or repeated, or the element is malformed.
fn for_parameter(element: &[u8]) -> Option<&[u8]> {
    let mut rest = element.trim_ascii();
    let mut found = None;
    while !rest.is_empty() {
        if let Some(next) = rest.strip_prefix(b";") {
            rest = next.trim_ascii_start();
            continue;
        }
        let (name, value_on) = rest.split_at(rest.iter().position(|byte| *byte == b'=')?);
        let value_on = &value_on[1..];
        let (value, after) = value_on.split_at(value_length(value_on)?);
        if !name.iter().all(u8::is_ascii_alphanumeric) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
        rest = after.trim_ascii_start();
        if !rest.is_empty() && !rest.starts_with(b";") {
            return None;
        }
    }
    found
}

/// The length of the token or quoted string at the start. `None` if the quoted string has no end.
fn value_length(text: &[u8]) -> Option<usize> {
    if !text.starts_with(b"\"") {
        let is_end = |byte: &u8| *byte == b';' || byte.is_ascii_whitespace();
        return Some(text.iter().position(is_end).unwrap_or(text.len()));
    }
    let quotes = (1..text.len()).filter(|position| text[*position] == b'"');
    let mut ends = quotes.filter(|position| !is_escaped(text, *position));
    ends.next().map(|end| end + 1)
}

/// An address with an optional port, brackets around IPv6 and quotes around all of it. IPv4-mapped addresses are unmapped;
/// zone ids, leading zeros and short forms of IPv4 are rejected.
pub(super) fn parse_address(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop.trim_ascii()).ok()?;
    let hop = hop.strip_prefix('"').map_or(Some(hop), |rest| rest.strip_suffix('"'))?;
    if let Some(rest) = hop.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let address = address.parse::<Ipv6Addr>().ok()?;
        return (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then(|| canonical(address));
    }
    match hop.split_once(':') {
        Some((address, port)) if !port.contains(':') => {
            address.parse::<Ipv4Addr>().ok().filter(|_| is_port(port)).map(IpAddr::V4)
        }
        Some(_) => hop.parse::<Ipv6Addr>().ok().map(canonical),
        None => hop.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

fn canonical(address: Ipv6Addr) -> IpAddr {
    IpAddr::V6(address).to_canonical()
}

/// A number, or an obfuscated port of RFC 7239 such as `_http`.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}
