//! HTTP/2 of the REST listener: floods, and the bound of headers.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::harness::Service;
use crate::http2_floods::{
    END_HEADERS, END_STREAM, HEADERS, Listener, PREFACE, SETTINGS, flood_tests, frame, get, headers,
    headers_to, put_text,
};

fn rest(server: &str) -> Listener {
    let service = Service::with_config(&format!("default_limit = 100000000\n[server]\n{server}"));
    Listener {
        address: service.address,
        service,
        connections: "tollgate_connections",
        serves: Box::new(|service| service.check("healthy", "/x").status == 200),
    }
}

flood_tests!(crate::http2::rest);

/// The status of one request on a new connection.
pub(crate) fn status_of(
    service: &Service,
    method: &str,
    path: &str,
    authority: &str,
    fields: &[(&str, &str)],
) -> u16 {
    let mut block = headers_to(authority, method, path);
    for (name, value) in fields {
        block.push(0x00);
        put_text(&mut block, name);
        put_text(&mut block, value);
    }
    let mut stream = service.connect();
    let frames = [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)];
    stream.write_all(&[PREFACE, &frames.concat()].concat()).unwrap();
    let (_, head) = answer_of(&mut stream);
    // `:status` from the static table, or Huffman-coded.
    match head.as_slice() {
        [0x88, ..] => 200,
        [0x8c, ..] => 400,
        [0x48, 0x82, 0x68, 0x41, ..] => 421,
        [0x48, 0x83, 0x68, 0x4f, 0xff, ..] => 429,
        other => panic!("{other:x?}"),
    }
}

#[test]
fn header_list_above_16_kib_gets_431() {
    let service = Service::unconfigured();
    let mut stream = service.connect();
    let field = [&[0x00, 1, b'x', 100][..], &[b'y'; 100]].concat();
    // HTTP/2 counts 32 bytes per field in addition to its contents.
    let large = [headers("GET", "/healthz"), field.repeat(20_000 / 133)].concat();
    let frames = [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_HEADERS | END_STREAM, 1, &large), get(3)];
    stream.write_all(&[PREFACE, &frames.concat()].concat()).unwrap();
    let answers = [answer_of(&mut stream), answer_of(&mut stream)];
    // `:status` 431, plain or Huffman-coded.
    let is_431 =
        |block: &[u8]| block.starts_with(b"\x48\x03431") || block.starts_with(b"\x48\x83\x69\x90\xff");
    let of = |stream| answers.iter().find(|(of, _)| *of == stream).map(|(_, block)| &**block).unwrap();
    assert!(is_431(of(1)), "{answers:x?}");
    assert_eq!(of(3)[0], 0x88, "200: {answers:x?}");
}

/// The stream id and head of the next response.
pub(crate) fn answer_of(stream: &mut TcpStream) -> (u32, Vec<u8>) {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == HEADERS {
            return (u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload);
        }
    }
}
