//! Case folding of endpoints.
//!
//! Servers that ignore case fold single characters, also outside ASCII (`/CAFÉ` is `/café`). So this is Unicode simple case
//! folding of the decoded characters. The result is a normal form again.

use super::{EscapedCharacter, push_byte};
use crate::identity::casefold_path_char;

/// Folds the case of a normal form or a part of one; `None` if nothing changes.
pub(crate) fn casefold(normal: &str) -> Option<String> {
    // Checked first: most paths do not change and are not copied.
    if !characters(normal).any(|character| character.folded.is_some()) {
        return None;
    }
    let mut result = String::with_capacity(normal.len());
    for Character { written, folded } in characters(normal) {
        match folded {
            Some(folded) if folded.is_ascii() => result.push(folded),
            Some(folded) => {
                let mut utf8 = [0; 4];
                folded.encode_utf8(&mut utf8).bytes().for_each(|byte| push_byte(&mut result, byte, false));
            }
            None => result.push_str(written),
        }
    }
    Some(result)
}

/// One character of a path.
struct Character<'a> {
    /// The original text with its escapes.
    written: &'a str,
    /// The folded character, if it differs.
    folded: Option<char>,
}

fn characters(normal: &str) -> impl Iterator<Item = Character<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let byte = *normal.as_bytes().get(at)?;
        let (length, character) = match byte {
            b'%' => escaped(normal.as_bytes(), at),
            _ => (1, char::from(byte)),
        };
        let written = normal.get(at..at + length)?;
        at += length;
        let folded = Some(casefold_path_char(character)).filter(|folded| *folded != character);
        Some(Character { written, folded })
    })
}

/// The length of the escapes at `at` and the character they encode. Escaped ASCII characters have no case.
fn escaped(text: &[u8], at: usize) -> (usize, char) {
    let read = EscapedCharacter::read(text, at).ok();
    let character = read.as_ref().and_then(|read| std::str::from_utf8(read.bytes()).ok()?.chars().next());
    (read.map_or(1, |read| read.escaped_length()), character.unwrap_or('%'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::Endpoint;

    fn folded(raw: &str) -> String {
        Endpoint::parse(raw).unwrap().casefold().to_string()
    }

    #[test]
    fn endpoints_that_differ_in_case_are_equal() {
        for (one, other) in [
            ("/API/Users", "/api/users"),
            ("/CAF\u{c9}", "/caf%c3%a9"),
            ("/%41%62", "/aB"),
            ("/\u{3a3}\u{3c2}", "/\u{3c3}\u{3c3}"),
            ("/\u{23a}", "/\u{2c65}"),
        ] {
            assert_eq!(folded(one), folded(other));
        }
        assert_eq!(folded("/A%2Fb%3B"), "/a%2Fb%3B", "digits of escapes are not folded");
        assert_ne!(folded("/\u{212a}"), folded("/k"), "the Kelvin sign is not k");
        assert_ne!(folded("/stra\u{df}e"), folded("/strasse"), "simple folding only");
    }

    proptest! {
        #[test]
        fn casefold_is_idempotent_and_normal(raw in "(/(%[0-9A-Fa-f]{2}|\\PC){0,4}){1,4}") {
            if let Ok(endpoint) = Endpoint::parse(&raw) {
                let once = endpoint.casefold();
                prop_assert_eq!(once.clone().casefold(), once.clone());
                if let Ok(read) = Endpoint::parse(once.as_str()) {
                    prop_assert_eq!(&read, &once);
                }
            }
        }
    }
}
