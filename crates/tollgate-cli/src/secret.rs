//! Secrets that are never printed, and detection of API keys in the wrong place.

use std::ffi::OsString;
use std::fmt;

/// A secret; its `Debug` form is `***`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// The plain text, for the code that sends it.
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

/// The end of the error for a full key where only its id is expected.
pub(crate) const FULL_KEY: &str =
    "is a full API key: pass only its id, the part between tg_ and the second _, and keep the rest secret";

/// Flags whose value is a key.
const KEY_FLAGS: [&str; 2] = ["--key", "--api-key"];
const ID_LEN: usize = 16;
const SECRET_LEN: usize = 43;

/// Whether a full key stands in an argument that does not take one.
///
/// Checked before the arguments are parsed: they end up in error messages, and in URLs that servers and proxies log.
pub(crate) fn contains_misplaced_key(args: impl IntoIterator<Item = OsString>) -> bool {
    let mut follows_key_flag = false;
    args.into_iter().any(|argument| {
        let text = argument.to_string_lossy();
        let is_flag_value = std::mem::replace(&mut follows_key_flag, KEY_FLAGS.contains(&&*text));
        let flag = text.split_once('=').map(|(flag, _)| flag);
        !is_flag_value && !flag.is_some_and(|flag| KEY_FLAGS.contains(&flag)) && contains_key(&text)
    })
}

/// Whether a client's key, `tg_<id>_<secret>`, or an admin key is anywhere in a text. The secret may be truncated.
pub(crate) fn contains_key(text: &str) -> bool {
    text.match_indices("tg_").any(|(at, prefix)| {
        let Some((id, secret)) = text[at + prefix.len()..].split_once('_') else { return false };
        let is_secret_byte = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_id = id.len() == ID_LEN && id.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'));
        let len = secret.bytes().take_while(is_secret_byte).count();
        // File and user names may start with tg_ too.
        is_id && len > 0 || id == "admin" && len >= SECRET_LEN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_accepted_only_in_key_flags() {
        let key = "tg_4kq2mz7ehv3xw5ta_hunter2hunter2hunter2hunter2hunter2hunter2h";
        let misplaced = |args: &[&str]| contains_misplaced_key(args.iter().map(OsString::from));
        for args in [&["keys", "show", key][..], &["inspect", &format!("api_key:{key}")]] {
            assert!(misplaced(args), "{args:?}");
        }
        assert!(misplaced(&[&format!("--user={key}")]) && misplaced(&["--key", "a", key]));
        assert!(misplaced(&[&key.replace("4kq2mz7ehv3xw5ta", "admin")]));
        assert!(!misplaced(&["--key", key, "--api-key", key, &format!("--key={key}")]));
        assert!(!misplaced(&[
            "tg_4kq2mz7ehv3xw5ta",
            "tg_admin_rules-of-production.toml",
            "user:tg_team_bob",
            "tg__"
        ]));
        assert!(!misplaced(&["tg_rules_production-eu-west-1.toml"]));
    }
}
