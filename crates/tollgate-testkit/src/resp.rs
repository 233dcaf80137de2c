//! A minimal blocking client for RESP, the Redis protocol, and a frame parser.
//!
//! Written for the kit, so that it shares no bugs with the client under test.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR …`, without the minus sign.
    Error(String),
    /// `:42`
    Int(i64),
    /// `$5`; `None` for a null string or null array.
    Bulk(Option<Vec<u8>>),
    /// `*2`
    Array(Vec<Reply>),
}

impl Reply {
    /// Whether this is an error reply.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The number, sent as an integer or as text.
    pub fn int(&self) -> i64 {
        self.to_string().parse().unwrap_or_else(|_| panic!("{self:?} is not a number"))
    }

    /// The elements of an array.
    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) => items,
            other => panic!("{other:?} is not an array"),
        }
    }

    /// The bytes of a string; null is empty.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Simple(text) => text.as_bytes(),
            Self::Bulk(bytes) => bytes.as_deref().unwrap_or_default(),
            other => panic!("{other:?} is not a string"),
        }
    }
}

/// Formats like `redis-cli` in a pipe: null is empty, an array has one element per line.
impl fmt::Display for Reply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) | Self::Error(text) => out.write_str(text),
            Self::Int(number) => write!(out, "{number}"),
            Self::Bulk(bytes) => {
                out.write_str(&String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()))
            }
            Self::Array(items) => {
                let lines: Vec<String> = items.iter().map(Reply::to_string).collect();
                out.write_str(&lines.join("\n"))
            }
        }
    }
}

/// A blocking connection to a Redis server.
#[derive(Debug)]
pub struct RespClient {
    stream: BufReader<TcpStream>,
}

impl RespClient {
    /// Connects. `timeout` applies to connecting and to each read and write.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Changes the read timeout.
    pub fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(timeout))
    }

    /// Sends one command and waits for its reply.
    pub fn command(&mut self, arguments: &[&[u8]]) -> io::Result<Reply> {
        self.send(&request(arguments))?;
        self.receive()
    }

    /// Sends raw bytes, for example a pipeline of commands.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Waits for the next reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| not_resp(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| not_resp(&line));
        match kind {
            "+" => Ok(Reply::Simple(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number()?)),
            "$" => self.bulk(number()?),
            "*" => self.array(number()?),
            _ => Err(not_resp(&line)),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let whole = line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        String::from_utf8(whole.to_vec()).map_err(|_| not_resp("not UTF-8"))
    }

    fn bulk(&mut self, length: i64) -> io::Result<Reply> {
        let Ok(length) = usize::try_from(length) else { return Ok(Reply::Bulk(None)) };
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Bulk(Some(bytes)))
    }

    fn array(&mut self, length: i64) -> io::Result<Reply> {
        let Ok(length) = usize::try_from(length) else { return Ok(Reply::Bulk(None)) };
        Ok(Reply::Array((0..length).map(|_| self.receive()).collect::<io::Result<_>>()?))
    }
}

/// Encodes a command.
pub(crate) fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn not_resp(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP: {line:?}"))
}

/// The bytes are neither RESP2 nor RESP3.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotResp;

/// The length of the first frame, a request or a reply; `None` if it is incomplete.
pub(crate) fn frame_length(bytes: &[u8]) -> Result<Option<usize>, NotResp> {
    let mut at = 0;
    let mut elements_left = 1_usize;
    while elements_left > 0 {
        let Some(line) = line_at(bytes, at) else { return Ok(None) };
        at += line.len() + 2;
        let (&kind, rest) = line.split_first().ok_or(NotResp)?;
        elements_left -= 1;
        match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
            b'$' | b'=' | b'!' => at += length(rest)?.map_or(0, |length| length + 2),
            b'*' | b'~' | b'>' => elements_left += length(rest)?.unwrap_or(0),
            b'%' => elements_left += 2 * length(rest)?.unwrap_or(0),
            b'|' => elements_left += 2 * length(rest)?.unwrap_or(0) + 1, // attributes: the value itself follows
            _ => return Err(NotResp),
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// The command name of a complete request.
pub(crate) fn command_name(request: &[u8]) -> Option<&[u8]> {
    let count = line_at(request, 0)?;
    let length = line_at(request, count.len() + 2)?;
    line_at(request, count.len() + 2 + length.len() + 2)
}

fn line_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    rest.windows(2).position(|pair| pair == b"\r\n").map(|end| &rest[..end])
}

/// A length; `None` for -1 (null).
fn length(digits: &[u8]) -> Result<Option<usize>, NotResp> {
    let number: i64 = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(NotResp)?;
    if number > 512 << 20 {
        return Err(NotResp); // longer than Redis allows
    }
    Ok(usize::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_ends_with_its_last_element() {
        let frames: [&[u8]; 9] = [
            b"+OK\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"*0\r\n",
            b"$4\r\n\r\n\r\n\r\n", // a string of line breaks
            b"*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
            b"%1\r\n+key\r\n*2\r\n#t\r\n_\r\n",
            b"|1\r\n+ttl\r\n:1\r\n:5\r\n",
            b"*1\r\n$4\r\nPING\r\n",
        ];
        for frame in frames {
            for end in 0..frame.len() {
                assert_eq!(frame_length(&frame[..end]), Ok(None), "{frame:?} up to {end}");
            }
            assert_eq!(frame_length(&[frame, b"+next\r\n"].concat()), Ok(Some(frame.len())));
        }
        assert_eq!(frame_length(b"HTTP/1.1 200 OK\r\n"), Err(NotResp));
    }

    #[test]
    fn command_name_is_the_first_argument() {
        assert_eq!(command_name(&request(&[b"GET", b"key"])), Some(&b"GET"[..]));
    }
}
