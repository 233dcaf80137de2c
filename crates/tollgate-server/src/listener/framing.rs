//! Follows the framing of HTTP/1 requests in the bytes read, and invalidates heads that hyper accepts but other servers read
//! differently: request smuggling.
//!
//! hyper takes lines that end in a bare LF, and a `Transfer-Encoding` beside a `Content-Length`, and does not show either to the
//! service. A NUL in place of the line's last byte makes it refuse the request with 400 and close the connection.

use memchr::memchr;

/// Longer than any line that matters here: `content-length` with its value.
const LINE_BYTES_MAX: usize = 64;

/// An end of a head, as hyper looks for it.
const HEAD_END: [u8; 2] = *b"\n\n";

/// The position in the requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Framing {
    at: At,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// Whether the line is longer than what is kept of it.
    is_cut: bool,
    /// Whether the last byte was CR.
    after_cr: bool,
    head: Head,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum At {
    /// Before a request.
    #[default]
    Start,
    Head,
    /// In a body of which so much is left.
    Body(u64),
    ChunkSize,
    Trailers,
    /// Behind an ambiguous line: so many bytes are still to be made the end of the head.
    Refused(usize),
    /// HTTP/2, or a request that is refused.
    Unknown,
}

/// What the current head contains so far.
#[derive(Debug, Default)]
struct Head {
    length: Option<u64>,
    is_chunked: bool,
    /// Whether the body is in chunks, once in the body.
    in_chunks: bool,
}

impl Framing {
    /// Whether a request head has begun and is not complete.
    pub(super) fn is_in_head(&self) -> bool {
        self.at == At::Head || (self.at == At::Start && !self.line.is_empty())
    }

    /// Whether the client may still be sending a request.
    pub(super) fn is_in_request(&self) -> bool {
        self.at != At::Start || !self.line.is_empty()
    }

    /// Follows bytes that were read, and invalidates ambiguous heads in them.
    pub(super) fn follow(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match self.at {
                At::Unknown => return,
                At::Refused(left) => self.end_head(left, rest),
                At::Body(left) => self.skip_body(left, rest.len()),
                _ => self.take_line(rest),
            };
            rest = &mut rest[taken..];
        }
    }

    fn skip_body(&mut self, left: u64, available: usize) -> usize {
        let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(available);
        self.at = match left - skipped as u64 {
            0 if self.head.in_chunks => At::ChunkSize,
            0 => At::Start,
            left => At::Body(left),
        };
        skipped
    }

    /// Takes bytes up to the end of a line; returns how many.
    fn take_line(&mut self, bytes: &mut [u8]) -> usize {
        let end = memchr(b'\n', bytes);
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let kept = part.len().min(LINE_BYTES_MAX - self.line.len());
        self.line.extend_from_slice(&part[..kept]);
        self.is_cut |= kept < part.len();
        self.after_cr = part.last().map_or(self.after_cr, |last| *last == b'\r');
        let Some(end) = end else { return bytes.len() };
        let is_valid = std::mem::take(&mut self.after_cr) && self.end_line();
        self.line.clear();
        self.is_cut = false;
        if !is_valid {
            bytes[end] = 0;
            self.at = At::Refused(HEAD_END.len());
        }
        end + 1
    }

    /// Overwrites what follows an ambiguous line with the end of the head: hyper parses a head only once it has its end, which the
    /// ambiguous line may have been part of.
    fn end_head(&mut self, left: usize, bytes: &mut [u8]) -> usize {
        let count = left.min(bytes.len());
        bytes[..count].copy_from_slice(&HEAD_END[..count]);
        self.at = if count == left { At::Unknown } else { At::Refused(left - count) };
        count
    }

    /// A line is complete; returns whether it is unambiguous.
    fn end_line(&mut self) -> bool {
        let is_empty = self.line == b"\r";
        match self.at {
            // Empty lines before a request are ignored.
            At::Start if is_empty => {}
            At::Start if self.line.starts_with(b"PRI * HTTP/2") => self.at = At::Unknown,
            At::Start => (self.at, self.head) = (At::Head, Head::default()),
            At::Head if is_empty => self.begin_body(),
            At::Head => return self.read_field(),
            At::ChunkSize => return self.begin_chunk(),
            At::Trailers if is_empty => self.at = At::Start,
            At::Trailers | At::Body(_) | At::Refused(_) | At::Unknown => {}
        }
        true
    }

    /// Reads a header field; returns whether it agrees with those before it.
    fn read_field(&mut self) -> bool {
        // Most other fields differ in the first letter.
        if !matches!(self.line.first().map(u8::to_ascii_lowercase), Some(b't' | b'c')) {
            return true;
        }
        let colon = self.line.iter().position(|byte| *byte == b':').unwrap_or(0);
        let (name, value) = self.line.split_at(colon);
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let is_repeated = std::mem::replace(&mut self.head.is_chunked, true);
            return !is_repeated && self.head.length.is_none();
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = std::str::from_utf8(value.get(1..).unwrap_or_default()).unwrap_or_default().trim();
            let length = digits.parse().ok().filter(|_| !self.is_cut && !digits.starts_with('+'));
            self.head.length = length;
            return length.is_some() && !self.head.is_chunked;
        }
        true
    }

    fn begin_body(&mut self) {
        self.head.in_chunks = self.head.is_chunked;
        self.at = match self.head.length {
            _ if self.head.is_chunked => At::ChunkSize,
            Some(length) if length > 0 => At::Body(length),
            _ => At::Start,
        };
    }

    /// Reads the size of a chunk, and skips it with the line end behind it.
    fn begin_chunk(&mut self) -> bool {
        let digits = self.line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = std::str::from_utf8(&self.line[..digits]).ok();
        let Some(size) = size.and_then(|digits| u64::from_str_radix(digits, 16).ok()) else { return false };
        self.at = if size == 0 { At::Trailers } else { At::Body(size.saturating_add(2)) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes as hyper gets them, read in parts of this size, and the position behind them.
    fn followed(text: &str, part: usize) -> (Vec<u8>, Framing) {
        let mut framing = Framing::default();
        let mut bytes = text.as_bytes().to_vec();
        bytes.chunks_mut(part).for_each(|part| framing.follow(part));
        (bytes, framing)
    }

    #[test]
    fn valid_requests_are_left_alone() {
        for text in [
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\na\nb\nc",
            "POST / HTTP/1.1\r\nContent-Length:  2\r\ncontent-length: 2\r\n\r\n\n\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n\n\n\n\r\nA\r\n0123\n56789\r\n0\r\na: b\r\n\r\n",
        ] {
            for part in [1, 2, 7, 1000] {
                let (bytes, framing) = followed(text, part);
                assert_eq!(String::from_utf8(bytes).unwrap(), text);
                assert!(!framing.is_in_request(), "{text:?} in parts of {part}: {framing:?}");
            }
        }
    }

    #[test]
    fn ambiguous_requests_are_invalidated() {
        for text in [
            "GET / HTTP/1.1\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.1\nhost: a\r\n\r\n",
        ] {
            for part in [1, 3, 1000] {
                let (bytes, framing) = followed(text, part);
                assert!(bytes.contains(&0), "{text:?} in parts of {part}");
                assert!(framing.is_in_request());
            }
        }
    }

    #[test]
    fn head_and_body_are_told_apart() {
        let (_, framing) = followed("POST / HTTP/1.1\r\ncontent-le", 1000);
        assert!(framing.is_in_head());
        let (_, framing) = followed("POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc", 1000);
        assert!(!framing.is_in_head() && framing.is_in_request());
        let (_, framing) = followed("G", 1);
        assert!(framing.is_in_head());
    }
}
