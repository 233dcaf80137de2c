//! Normal forms of identifiers.
//!
//! Identifiers are byte-exact by default. Where an application treats `Alice` and `alice` as one user, each variant
//! would otherwise get its own limit. The forms are Unicode NFC, full case folding, and both combined as in canonical
//! caseless matching (Unicode definition D145): decompose, fold, compose.

use std::borrow::Cow;

use icu_casemap::{CaseMapper, CaseMapperBorrowed};
use icu_normalizer::{
    ComposingNormalizer, ComposingNormalizerBorrowed, DecomposingNormalizer, DecomposingNormalizerBorrowed,
};
use serde::{Deserialize, Serialize};

const NFC: ComposingNormalizerBorrowed<'static> = ComposingNormalizer::new_nfc();
const NFD: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizer::new_nfd();
const CASES: CaseMapperBorrowed<'static> = CaseMapper::new();

named_enum! {
    /// A normal form: two identifiers are the same if their normal forms are equal.
    #[derive(Default, Serialize, Deserialize)]
    pub enum NormalForm {
        /// Byte-exact.
        #[default]
        Exact = "exact",
        /// Unicode NFC: `é` as one code point or as two.
        Nfc = "nfc",
        /// Full case folding: `Straße` and `STRASSE`.
        Casefold = "casefold",
        /// NFC and case folding.
        NfcCasefold = "nfc+casefold",
    }
}

impl NormalForm {
    /// Normalizes an identifier. Borrowed if it is already normalized. Idempotent.
    ///
    /// ```
    /// use tollgate::identity::NormalForm;
    ///
    /// let form = NormalForm::NfcCasefold;
    /// assert_eq!(form.normalize("STRASSE"), form.normalize("Straße"));
    /// assert_eq!(form.normalize("Rene\u{301}"), "rené");
    /// assert_eq!(NormalForm::Exact.normalize("Alice"), "Alice");
    /// ```
    pub fn normalize(self, text: &str) -> Cow<'_, str> {
        if self.is_surely_normal(text) {
            return Cow::Borrowed(text);
        }
        let normalized = match self {
            NormalForm::Exact => return Cow::Borrowed(text),
            NormalForm::Nfc => NFC.normalize(text),
            NormalForm::Casefold => CASES.fold_string(text),
            NormalForm::NfcCasefold => {
                let composed = NFC.normalize(&CASES.fold_string(&NFD.normalize(text))).into_owned();
                Cow::Owned(composed)
            }
        };
        if *normalized == *text { Cow::Borrowed(text) } else { normalized }
    }

    /// The fast path: most identifiers are lower-case ASCII.
    fn is_surely_normal(self, text: &str) -> bool {
        match self {
            NormalForm::Exact => true,
            NormalForm::Nfc => text.is_ascii(),
            NormalForm::Casefold | NormalForm::NfcCasefold => {
                text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
            }
        }
    }
}

/// Simple case folding of one path character. Characters outside ASCII never become ASCII (the Kelvin sign is not `k`),
/// because no server treats them as equal.
pub(crate) fn casefold_path_char(character: char) -> char {
    let folded = CASES.simple_fold(character);
    if folded.is_ascii() && !character.is_ascii() { character } else { folded }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMS: [NormalForm; 3] = [NormalForm::Nfc, NormalForm::Casefold, NormalForm::NfcCasefold];

    #[test]
    fn each_form_merges_only_its_variants() {
        let pairs = [
            ("\u{e9}", "e\u{301}", [true, false, true]),
            ("Alice", "alice", [false, true, true]),
            ("Straße", "STRASSE", [false, true, true]),
            ("\u{c9}LAN", "e\u{301}lan", [false, false, true]),
            ("ΣΊΣΥΦΟΣ", "σίσυφος", [false, true, true]),
            // The order of two accents affects case folding.
            ("\u{3b1}\u{345}\u{301}", "\u{1fb4}", [true, false, true]),
            // Homoglyphs and invisible characters stay distinct.
            ("аlice", "alice", [false; 3]),
            ("ali\u{200b}ce", "alice", [false; 3]),
            ("I", "ı", [false; 3]),
            ("ﬁ", "fi", [false, true, true]),
            ("①", "1", [false; 3]),
        ];
        for (one, other, same) in pairs {
            assert_ne!(NormalForm::Exact.normalize(one), NormalForm::Exact.normalize(other));
            for (form, same) in FORMS.into_iter().zip(same) {
                assert_eq!(form.normalize(one) == form.normalize(other), same, "{one:?} {other:?} {form:?}");
            }
        }
    }

    #[test]
    fn normalizing_any_character_is_idempotent() {
        // Characters outside these ranges have no case.
        let cased = ('\0'..='\u{33ff}').chain('\u{a000}'..='\u{abff}').chain('\u{f900}'..='\u{1efff}');
        for character in cased.filter(|character| character.is_alphabetic() || !character.is_alphanumeric()) {
            // Alone, and with accents whose order affects case folding.
            for text in [String::from(character), format!("{character}\u{345}\u{301}")] {
                for form in FORMS {
                    let once = form.normalize(&text);
                    assert_eq!(form.normalize(&once), once, "{text:?} {form:?}");
                    assert!(!once.is_empty(), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn normalized_text_is_borrowed() {
        for form in NormalForm::ALL {
            for text in ["alice", "tenant-7_x@example.org", "", "rené", "日本"] {
                assert!(matches!(form.normalize(text), Cow::Borrowed(_)), "{text} {form:?}");
            }
        }
        assert!(matches!(NormalForm::Nfc.normalize("Alice"), Cow::Borrowed(_)));
    }

    #[test]
    fn path_folding_never_maps_into_ascii() {
        for character in '\u{80}'..='\u{1ffff}' {
            assert!(!casefold_path_char(character).is_ascii(), "{character:?}");
        }
        for (upper, lower) in [('A', 'a'), ('É', 'é'), ('Σ', 'ς'), ('Ⱥ', 'ⱥ'), ('ẞ', 'ß')] {
            assert_eq!(casefold_path_char(upper), casefold_path_char(lower));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn normalization_is_idempotent(
            text in prop_oneof![any::<String>(), "[a-zA-Zéßſ\u{300}-\u{345}\u{3b1}-\u{3c9}\u{1f80}-\u{1fff}\u{1100}-\u{11ff}]{0,12}"],
        ) {
            for form in NormalForm::ALL {
                let once = form.normalize(&text);
                prop_assert_eq!(form.normalize(&once), once.clone());
                prop_assert_eq!(once.is_empty(), text.is_empty());
            }
        }

        #[test]
        fn composed_and_decomposed_text_are_equal(text in any::<String>()) {
            let apart = NFD.normalize(&text);
            prop_assert_eq!(NormalForm::NfcCasefold.normalize(&apart), NormalForm::NfcCasefold.normalize(&text));
        }
    }
}
