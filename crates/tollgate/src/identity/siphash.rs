//! SipHash-1-3-128 over a sequence of short pieces.
//!
//! Equal to the `siphasher` crate, which the tests compare it with. That crate's incremental hasher is slower for the
//! short pieces of a subject, and copying them into a buffer first costs as much as the hash.

/// An incremental hasher.
#[derive(Copy, Clone)]
pub(super) struct SipHasher {
    state: [u64; 4],
    /// Bytes that do not fill a word yet, and their number of bits.
    tail: u64,
    tail_bits: u32,
    /// The number of bytes; only the low eight bits matter.
    length: usize,
}

impl SipHasher {
    #[inline]
    pub(super) fn new(key: [u8; 16]) -> Self {
        let key = u128::from_le_bytes(key);
        #[expect(clippy::cast_possible_truncation, reason = "each half keeps its own bits")]
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        let state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f83, // of the paper's constant, with the 0xee of 128 bits
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        SipHasher { state, tail: 0, tail_bits: 0, length: 0 }
    }

    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word), 8);
        }
        if rest.is_empty() {
            return;
        }
        let word = match bytes.last_chunk::<8>() {
            // One load of the last eight bytes instead of up to three for the rest.
            Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        self.word(word, rest.len());
    }

    /// Adds the low one to eight bytes of `word`; the others must be zero.
    #[inline]
    pub(super) fn word(&mut self, word: u64, bytes: usize) {
        self.length = self.length.wrapping_add(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
        let bits = bytes as u32 * 8;
        self.tail |= word << self.tail_bits;
        let filled = self.tail_bits + bits;
        if filled < 64 {
            self.tail_bits = filled;
            return;
        }
        self.compress(self.tail);
        // Shifted in two steps, because a shift by 64 is not defined.
        self.tail = word >> 1 >> (63 - self.tail_bits);
        self.tail_bits = filled - 64;
    }

    #[inline]
    pub(super) fn finish(mut self) -> u128 {
        self.compress((self.length as u64) << 56 | self.tail);
        self.state[2] ^= 0xee;
        let low = self.digest();
        self.state[1] ^= 0xdd;
        let high = self.digest();
        u128::from(high) << 64 | u128::from(low)
    }

    #[inline]
    fn compress(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.state[0] ^= word;
    }

    #[inline]
    fn digest(&mut self) -> u64 {
        (0..3).for_each(|_| self.round());
        let [v0, v1, v2, v3] = self.state;
        v0 ^ v1 ^ v2 ^ v3
    }

    #[inline]
    fn round(&mut self) {
        let [mut v0, mut v1, mut v2, mut v3] = self.state;
        v0 = v0.wrapping_add(v1);
        v1 = v1.rotate_left(13) ^ v0;
        v0 = v0.rotate_left(32);
        v2 = v2.wrapping_add(v3);
        v3 = v3.rotate_left(16) ^ v2;
        v0 = v0.wrapping_add(v3);
        v3 = v3.rotate_left(21) ^ v0;
        v2 = v2.wrapping_add(v1);
        v1 = v1.rotate_left(17) ^ v2;
        v2 = v2.rotate_left(32);
        self.state = [v0, v1, v2, v3];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use siphasher::sip128::SipHasher13;

    use super::*;

    fn hash(key: [u8; 16], pieces: &[Vec<u8>]) -> u128 {
        let mut hasher = SipHasher::new(key);
        for piece in pieces {
            hasher.write(piece);
        }
        hasher.finish()
    }

    proptest! {
        #[test]
        fn pieces_hash_like_siphasher(
            key in any::<[u8; 16]>(),
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        ) {
            let whole = SipHasher13::new_with_key(&key).hash(&pieces.concat()).as_u128();
            prop_assert_eq!(hash(key, &pieces), whole);
        }
    }

    #[test]
    fn every_length_hashes_like_siphasher() {
        let text: Vec<u8> = (0..=255).cycle().take(700).collect();
        for length in 0..text.len() {
            let whole = SipHasher13::new_with_key(&[7; 16]).hash(&text[..length]).as_u128();
            assert_eq!(hash([7; 16], &[text[..length].to_vec()]), whole, "{length} bytes");
        }
    }
}
