//! Reads the PROXY header, version 1 or 2, with which a trusted proxy begins a connection.
//!
//! Only the bytes of the header are taken from the socket, so that TLS or HTTP can follow without a buffer in between.

use std::io;
use std::net::SocketAddr;

use proxy_header::{Error, ParseConfig, Protocol, ProxyHeader};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The longest line of version 1, by its specification.
const V1_BYTES_MAX: usize = 107;
/// The fixed part of version 2: signature, command, family, length.
const V2_FIXED_BYTES: usize = 16;
/// A header of version 2 with its extensions; certificates of clients would not fit.
const V2_BYTES_MAX: usize = 4 * 1024;
const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Why there is no header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyHeaderError {
    #[error("not a PROXY header")]
    Invalid,
    #[error("the PROXY header is too long")]
    TooLong,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the header. Returns the client that it names; none for a connection of the proxy itself.
pub(super) async fn read(stream: &mut TcpStream) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let mut header = Vec::with_capacity(V1_BYTES_MAX);
    loop {
        let mut arrived = [0; V1_BYTES_MAX + V2_FIXED_BYTES];
        let count = stream.peek(&mut arrived).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let (taken, parsed) = advance(&mut header, &arrived[..count])?;
        stream.read_exact(&mut arrived[..taken]).await?;
        match parsed {
            Parsed::Complete(source) => return Ok(source),
            Parsed::Incomplete => {}
        }
    }
}

/// Reads the header as [`read`] does, from bytes of which at most `part` arrive at a time. Returns the client and the length of the
/// header; `None` if it is incomplete.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_bytes(
    bytes: &[u8],
    part: usize,
) -> Result<Option<(Option<SocketAddr>, usize)>, ProxyHeaderError> {
    let mut header = Vec::new();
    while header.len() < bytes.len() {
        let arrived = &bytes[header.len()..];
        let (_, parsed) = advance(&mut header, &arrived[..arrived.len().min(part)])?;
        if let Parsed::Complete(source) = parsed {
            return Ok(Some((source, header.len())));
        }
    }
    Ok(None)
}

/// Appends the bytes that arrived to the header, as far as they belong to it. Returns how many do.
fn advance(header: &mut Vec<u8>, arrived: &[u8]) -> Result<(usize, Parsed), ProxyHeaderError> {
    let taken = header_bytes(header, arrived)?;
    header.extend_from_slice(&arrived[..taken]);
    Ok((taken, parse(header)?))
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Incomplete,
    /// The client that the header names, if it names one.
    Complete(Option<SocketAddr>),
}

/// How many of the bytes that arrived belong to the header.
fn header_bytes(header: &[u8], arrived: &[u8]) -> Result<usize, ProxyHeaderError> {
    let first = header.first().or(arrived.first());
    if first == Some(&V2_START[0]) {
        let length = match *header {
            [.., high, low] if header.len() == V2_FIXED_BYTES => u16::from_be_bytes([high, low]),
            _ if header.len() > V2_FIXED_BYTES => {
                u16::from_be_bytes([header[V2_FIXED_BYTES - 2], header[V2_FIXED_BYTES - 1]])
            }
            _ => 0,
        };
        let end = V2_FIXED_BYTES + usize::from(length);
        if end > V2_BYTES_MAX {
            return Err(ProxyHeaderError::TooLong);
        }
        return Ok((end - header.len()).min(arrived.len()));
    }
    let line = arrived.iter().position(|byte| *byte == b'\n').map_or(arrived.len(), |end| end + 1);
    if header.len() + line > V1_BYTES_MAX {
        return Err(ProxyHeaderError::TooLong);
    }
    Ok(line)
}

/// Whether nothing more belongs to the header, so that waiting for it would never end.
fn is_complete(header: &[u8]) -> bool {
    if header.starts_with(&V1_START[..1]) {
        return header.ends_with(b"\n");
    }
    let length = header.get(V2_FIXED_BYTES - 2..V2_FIXED_BYTES);
    let length = length.map(|bytes| usize::from(bytes[0]) << 8 | usize::from(bytes[1]));
    length.is_some_and(|length| header.len() >= V2_FIXED_BYTES + length)
}

fn parse(header: &[u8]) -> Result<Parsed, ProxyHeaderError> {
    let begins_with = |start: &[u8]| {
        let length = start.len().min(header.len());
        header[..length] == start[..length]
    };
    // Refused at the first wrong byte, so that a peer that speaks something else does not wait for the timeout.
    if !begins_with(V1_START) && !begins_with(V2_START) {
        return Err(ProxyHeaderError::Invalid);
    }
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    match ProxyHeader::parse(header, config) {
        Ok((parsed, _)) => match parsed.proxied_address() {
            Some(address) if address.protocol == Protocol::Datagram => Err(ProxyHeaderError::Invalid),
            Some(address) => {
                let source = SocketAddr::new(address.source.ip().to_canonical(), address.source.port());
                Ok(Parsed::Complete(Some(source)))
            }
            None => Ok(Parsed::Complete(None)),
        },
        Err(Error::BufferTooShort) if is_complete(header) => Err(ProxyHeaderError::Invalid),
        Err(Error::BufferTooShort) => Ok(Parsed::Incomplete),
        Err(_) => Err(ProxyHeaderError::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &[u8] = b"PROXY TCP4 203.0.113.9 192.0.2.1 51000 8080\r\n";

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [V2_START, &[command, family], &length, body].concat()
    }

    fn v2_ipv4() -> Vec<u8> {
        v2(0x21, 0x11, &[203, 0, 113, 9, 192, 0, 2, 1, 0xc7, 0x38, 0x1f, 0x90])
    }

    /// Feeds the bytes in pieces of this size, and returns the result with what was taken.
    fn feed(bytes: &[u8], piece: usize) -> (Result<Parsed, ProxyHeaderError>, usize) {
        let mut header = Vec::new();
        while header.len() < bytes.len() {
            let end = (header.len() + piece).min(bytes.len());
            let taken = match header_bytes(&header, &bytes[header.len()..end]) {
                Ok(taken) => taken,
                Err(error) => return (Err(error), header.len()),
            };
            header.extend_from_slice(&bytes[header.len()..header.len() + taken]);
            match parse(&header) {
                Ok(Parsed::Incomplete) => {}
                done => return (done, header.len()),
            }
        }
        (Ok(Parsed::Incomplete), header.len())
    }

    #[test]
    fn only_the_header_is_taken_however_it_arrives() {
        for header in [V1, &v2_ipv4(), &v2(0x21, 0x11, &[[1; 12].as_slice(), &[9; 300]].concat())] {
            let bytes = [header, b"GET / HTTP/1.1\r\n\r\n"].concat();
            for piece in [1, 2, 7, 15, 16, 17, 40, 123] {
                let (parsed, taken) = feed(&bytes, piece);
                assert!(matches!(parsed, Ok(Parsed::Complete(Some(_)))), "{piece}: {parsed:?}");
                assert_eq!(taken, header.len(), "{piece}");
            }
        }
    }

    #[test]
    fn both_versions_name_the_same_client() {
        let source = Some("203.0.113.9:51000".parse().unwrap());
        for header in [V1, &v2_ipv4()] {
            assert_eq!(feed(header, 64).0.unwrap(), Parsed::Complete(source));
        }
        let mapped = b"PROXY TCP6 ::ffff:203.0.113.9 ::1 51000 80\r\n";
        assert_eq!(feed(mapped, 64).0.unwrap(), Parsed::Complete(source), "an IPv4-mapped address");
    }

    #[test]
    fn local_connections_name_no_client() {
        for header in [b"PROXY UNKNOWN\r\n".as_slice(), &v2(0x20, 0x11, &[1; 12]), &v2(0x21, 0, &[])] {
            assert_eq!(feed(header, 1).0.unwrap(), Parsed::Complete(None), "{header:?}");
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let long = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 200], b"\r\n"].concat();
        let datagram = v2(0x21, 0x12, &[1; 12]);
        let truncated = v2(0x21, 0x11, &[1; 4]);
        let version = v2(0x31, 0x11, &[1; 12]);
        let huge = v2(0x21, 0x11, &[1; 5_000]);
        for header in [
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".as_slice(),
            b"POST / HTTP/1.1\r\n",
            b"PROXY TCP4 203.0.113.9 192.0.2.1 51000\r\n",
            b"PROXY TCP4 not-an-address 192.0.2.1 51000 80\r\n",
            b"PROXY TCP4 203.0.113.9 192.0.2.1 70000 80\r\n",
            b"PROXYXTCP4 203.0.113.9 192.0.2.1 51000 80\r\n",
            b"PROXY TCP4 203.0.113.9 192.0.2.1 51000 80\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"\r\n\r\n\0\r\nQUIX\n\x21\x11\0\0",
            &long,
            &datagram,
            &truncated,
            &version,
            &huge,
        ] {
            for piece in [1, 123] {
                let (parsed, _) = feed(header, piece);
                assert!(parsed.is_err(), "{:?}: {parsed:?}", String::from_utf8_lossy(header));
            }
        }
    }
}
