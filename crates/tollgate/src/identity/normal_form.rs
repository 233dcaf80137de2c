//! One form for the spellings of an identifier that are meant to be the same.
//!
//! Identifiers are byte-exact by default: nobody but their owner knows whether `Alice` and `alice` are one. Where they are
//! (names of people, addresses of mail, a directory that ignores case), each spelling that is told apart is an allowance of
//! its own, and there are more than anybody would list. The forms are those of Unicode: canonical composition, full case
//! folding, and both as canonical caseless matching has it (definition D145): decomposed first, because the order of
//! accents decides what some of them fold to, then folded, then composed.

use std::borrow::Cow;

use icu_casemap::{CaseMapper, CaseMapperBorrowed};
use icu_normalizer::{
    ComposingNormalizer, ComposingNormalizerBorrowed, DecomposingNormalizer, DecomposingNormalizerBorrowed,
};

const NFC: ComposingNormalizerBorrowed<'static> = ComposingNormalizer::new_nfc();
const NFD: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizer::new_nfd();
const CASES: CaseMapperBorrowed<'static> = CaseMapper::new();

/// Which spellings of an identifier are the same.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum NormalForm {
    /// None: every byte counts.
    #[default]
    Exact,
    /// Characters that are composed differently: `é` as one code point or as two.
    Nfc,
    /// Upper and lower case, `Straße` and `STRASSE` too.
    Casefold,
    /// Both.
    NfcCasefold,
}

impl NormalForm {
    /// All of them.
    pub const ALL: [NormalForm; 4] =
        [NormalForm::Exact, NormalForm::Nfc, NormalForm::Casefold, NormalForm::NfcCasefold];

    /// The name users write and read.
    pub const fn as_str(self) -> &'static str {
        match self {
            NormalForm::Exact => "exact",
            NormalForm::Nfc => "nfc",
            NormalForm::Casefold => "casefold",
            NormalForm::NfcCasefold => "nfc+casefold",
        }
    }

    /// The form that all spellings share. What has it already is borrowed, not copied; folding twice changes nothing.
    ///
    /// ```
    /// use tollgate::identity::NormalForm;
    ///
    /// let fold = NormalForm::NfcCasefold;
    /// assert_eq!(fold.normalize("STRASSE"), fold.normalize("Straße"));
    /// assert_eq!(fold.normalize("Rene\u{301}"), "rené");
    /// assert_eq!(NormalForm::Exact.normalize("Alice"), "Alice");
    /// ```
    pub fn normalize(self, text: &str) -> Cow<'_, str> {
        if self.keeps(text) {
            return Cow::Borrowed(text);
        }
        let folded = match self {
            NormalForm::Exact => return Cow::Borrowed(text),
            NormalForm::Nfc => NFC.normalize(text),
            NormalForm::Casefold => CASES.fold_string(text),
            NormalForm::NfcCasefold => {
                let composed = NFC.normalize(&CASES.fold_string(&NFD.normalize(text))).into_owned();
                Cow::Owned(composed)
            }
        };
        if *folded == *text { Cow::Borrowed(text) } else { folded }
    }

    /// Whether the text has its form already, as far as that can be told at a glance: it is ASCII, as nearly all are.
    fn keeps(self, text: &str) -> bool {
        match self {
            NormalForm::Exact => true,
            NormalForm::Nfc => text.is_ascii(),
            NormalForm::Casefold | NormalForm::NfcCasefold => {
                text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
            }
        }
    }
}

/// A character as paths are compared without case: Unicode's simple folding. No character beyond ASCII becomes one of
/// ASCII (the Kelvin sign stays what it is): no server takes the one for the other.
pub(crate) fn casefold_path_char(character: char) -> char {
    let folded = CASES.simple_fold(character);
    if folded.is_ascii() && !character.is_ascii() { character } else { folded }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FOLDING: [NormalForm; 3] = [NormalForm::Nfc, NormalForm::Casefold, NormalForm::NfcCasefold];

    #[test]
    fn t11_each_form_makes_its_spellings_one_and_no_others() {
        let pairs = [
            ("\u{e9}", "e\u{301}", [true, false, true]),
            ("Alice", "alice", [false, true, true]),
            ("Straße", "STRASSE", [false, true, true]),
            ("\u{c9}LAN", "e\u{301}lan", [false, false, true]),
            ("ΣΊΣΥΦΟΣ", "σίσυφος", [false, true, true]),
            // The order of two accents decides what the second folds to.
            ("\u{3b1}\u{345}\u{301}", "\u{1fb4}", [true, false, true]),
            // Homoglyphs and invisible characters are other characters.
            ("аlice", "alice", [false; 3]),
            ("ali\u{200b}ce", "alice", [false; 3]),
            ("I", "ı", [false; 3]),
            ("ﬁ", "fi", [false, true, true]),
            ("①", "1", [false; 3]),
        ];
        for (one, other, same) in pairs {
            assert_ne!(NormalForm::Exact.normalize(one), NormalForm::Exact.normalize(other));
            for (fold, same) in FOLDING.into_iter().zip(same) {
                assert_eq!(fold.normalize(one) == fold.normalize(other), same, "{one:?} {other:?} {fold:?}");
            }
        }
    }

    #[test]
    fn t11_every_character_folds_to_what_folds_to_itself() {
        // Behind these are only characters that have no case.
        let cased = ('\0'..='\u{33ff}').chain('\u{a000}'..='\u{abff}').chain('\u{f900}'..='\u{1efff}');
        for character in cased.filter(|character| character.is_alphabetic() || !character.is_alphanumeric()) {
            // Alone, and with the accents that are known to interact with what folding leaves.
            for text in [String::from(character), format!("{character}\u{345}\u{301}")] {
                for fold in FOLDING {
                    let once = fold.normalize(&text);
                    assert_eq!(fold.normalize(&once), once, "{text:?} {fold:?}");
                    assert!(!once.is_empty(), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_folded_already_is_not_copied() {
        for fold in NormalForm::ALL {
            for text in ["alice", "tenant-7_x@example.org", "", "rené", "日本"] {
                assert!(matches!(fold.normalize(text), Cow::Borrowed(_)), "{text} {fold:?}");
            }
        }
        assert!(matches!(NormalForm::Nfc.normalize("Alice"), Cow::Borrowed(_)));
    }

    #[test]
    fn t14_no_character_of_a_path_becomes_one_of_ascii() {
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
        fn t11_folding_twice_changes_nothing(
            text in prop_oneof![any::<String>(), "[a-zA-Zéßſ\u{300}-\u{345}\u{3b1}-\u{3c9}\u{1f80}-\u{1fff}\u{1100}-\u{11ff}]{0,12}"],
        ) {
            for fold in NormalForm::ALL {
                let once = fold.normalize(&text);
                prop_assert_eq!(fold.normalize(&once), once.clone());
                prop_assert_eq!(once.is_empty(), text.is_empty());
            }
        }

        #[test]
        fn t11_a_text_and_its_decomposition_are_one(text in any::<String>()) {
            let apart = NFD.normalize(&text);
            prop_assert_eq!(NormalForm::NfcCasefold.normalize(&apart), NormalForm::NfcCasefold.normalize(&text));
        }
    }
}
