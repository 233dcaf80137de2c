//! Texts that are used and never shown, and keys that got where they would be.

use std::ffi::OsString;
use std::fmt;

/// A secret. It prints as `***` by type, not by care.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// The text, for the one place that sends it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Said of a whole key where its id is asked for.
pub(crate) const WHOLE: &str = "is a whole key: give only its id, which stands between tg_ and the second _, and keep the rest to yourself";

/// Flags whose value is a key.
const FLAGS_OF_KEYS: [&str; 2] = ["--key", "--api-key"];
/// The id of a client's key.
const ID_CHARACTERS: usize = 16;
/// A secret, and so much of one behind an id that it is hardly anything else.
const SECRET_CHARACTERS: usize = 43;
const SECRET_CHARACTERS_MIN: usize = 16;

/// Whether a text that ought to be an id is a whole key, or a part of one that is more than its id.
pub(crate) fn is_whole_key(text: &str) -> bool {
    text.strip_prefix("tg_").is_some_and(|rest| rest.contains('_'))
}

/// Whether a whole key stands among the arguments where none belongs.
///
/// Looked for before anything is made of them: what an argument is used for ends in URLs, which servers and proxies write into
/// their logs, and what cannot be used is repeated by the message that says so.
pub(crate) fn has_stray_key(args: impl IntoIterator<Item = OsString>) -> bool {
    let mut is_key = false;
    args.into_iter().any(|argument| {
        let text = argument.to_string_lossy();
        let belongs = std::mem::replace(&mut is_key, FLAGS_OF_KEYS.contains(&&*text));
        let flag = text.split_once('=').map(|(flag, _)| flag);
        !belongs && !flag.is_some_and(|flag| FLAGS_OF_KEYS.contains(&flag)) && holds_key(&text)
    })
}

/// Whether a whole key is anywhere in a text: of a client, `tg_<id>_<secret>`, or the administrator's.
fn holds_key(text: &str) -> bool {
    text.match_indices("tg_").any(|(at, prefix)| {
        let Some((id, secret)) = text[at + prefix.len()..].split_once('_') else { return false };
        let of_secret = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_id =
            id.len() == ID_CHARACTERS && id.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'));
        let characters = secret.bytes().take_while(of_secret).count();
        // Files and users may be called something that begins alike.
        is_id && characters >= SECRET_CHARACTERS_MIN || id == "admin" && characters >= SECRET_CHARACTERS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t29_a_key_is_found_wherever_it_stands_and_belongs_to_its_flags_alone() {
        let key = "tg_4kq2mz7ehv3xw5ta_hunter2hunter2hunter2hunter2hunter2hunter2h";
        let stray = |args: &[&str]| has_stray_key(args.iter().map(OsString::from));
        for args in [&["keys", "show", key][..], &["inspect", &format!("api_key:{key}")]] {
            assert!(stray(args), "{args:?}");
        }
        assert!(stray(&[&format!("--user={key}")]) && stray(&["--key", "a", key]));
        assert!(stray(&[&key.replace("4kq2mz7ehv3xw5ta", "admin")]));
        assert!(!stray(&["--key", key, "--api-key", key, &format!("--key={key}")]));
        assert!(!stray(&[
            "tg_4kq2mz7ehv3xw5ta",
            "tg_admin_rules-of-production.toml",
            "user:tg_team_bob",
            "tg__"
        ]));
        assert!(!stray(&["tg_rules_production-eu-west-1.toml"]));
    }
}
