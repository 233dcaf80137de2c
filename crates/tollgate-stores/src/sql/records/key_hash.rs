//! The part of a primary key that stands for texts of any length.

use xxhash_rust::xxh3::xxh3_128;

/// A hash of texts that may be absent. Lengths are part of it, so `ab`, `c` and `a`, `bc` differ.
pub(super) fn key_hash(texts: &[Option<&str>]) -> [u8; 16] {
    let mut key = Vec::with_capacity(128);
    for text in texts {
        let length = text.map_or(u64::MAX, |text| text.len() as u64);
        key.extend_from_slice(&length.to_le_bytes());
        key.extend_from_slice(text.unwrap_or_default().as_bytes());
    }
    xxh3_128(&key).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_keys_have_different_hashes() {
        let keys: [&[Option<&str>]; 5] = [
            &[Some("ab"), Some("c")],
            &[Some("a"), Some("bc")],
            &[Some("abc"), None],
            &[Some("abc"), Some("")],
            &[None, Some("abc")],
        ];
        let hashes: std::collections::BTreeSet<_> = keys.iter().map(|key| key_hash(key)).collect();
        assert_eq!(hashes.len(), keys.len());
    }

    #[test]
    fn stored_hashes_stay_valid() {
        let hash = key_hash(&[None, Some("user:alice"), Some("/api/*")]);
        let mut streamed = xxhash_rust::xxh3::Xxh3::new();
        for text in [None, Some("user:alice"), Some("/api/*")] {
            streamed.update(&text.map_or(u64::MAX, |text: &str| text.len() as u64).to_le_bytes());
            streamed.update(text.unwrap_or_default().as_bytes());
        }
        assert_eq!(streamed.digest128().to_be_bytes(), hash);
    }
}
