//! Texts that fit their columns.

use std::borrow::Cow;

/// The widths of the columns, in characters.
pub(crate) mod width {
    pub(crate) const TENANT: usize = 256;
    pub(crate) const IDENTIFIER: usize = 300;
    pub(crate) const USER: usize = 256;
    pub(crate) const API_KEY: usize = 256;
    pub(crate) const ENDPOINT: usize = 500;
    pub(crate) const METHOD: usize = 32;
    pub(crate) const RULE: usize = 255;
    pub(crate) const REGION: usize = 50;
    pub(crate) const SERVER: usize = 100;
    pub(crate) const REQUEST: usize = 255;
}

/// Makes texts fit, and remembers whether one was changed.
#[derive(Default)]
pub(crate) struct Fit {
    pub(crate) is_changed: bool,
}

impl Fit {
    /// The first `width` characters of a text. NUL characters, which PostgreSQL cannot store, become U+FFFD.
    pub(crate) fn text<'a>(&mut self, text: &'a str, width: usize) -> Cow<'a, str> {
        let end = match text.len() {
            bytes if bytes <= width => bytes,
            bytes => text.char_indices().nth(width).map_or(bytes, |(end, _)| end),
        };
        let kept = &text[..end];
        let has_nul = kept.contains('\0');
        self.is_changed |= has_nul || end < text.len();
        if has_nul { kept.replace('\0', "\u{fffd}").into() } else { kept.into() }
    }

    /// As [`text`](Self::text), for a text that may be absent.
    pub(crate) fn maybe<'a>(&mut self, text: Option<&'a str>, width: usize) -> Option<Cow<'a, str>> {
        text.map(|text| self.text(text, width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        let mut fit = Fit::default();
        assert_eq!((fit.text("grün", 4), fit.is_changed), ("grün".into(), false));
        assert_eq!((fit.text("grün", 3), fit.is_changed), ("grü".into(), true));
        let mut fit = Fit::default();
        assert_eq!((fit.maybe(None, 1), fit.is_changed), (None, false));
        assert_eq!((fit.maybe(Some("a\0b"), 9), fit.is_changed), (Some("a\u{fffd}b".into()), true));
        assert_eq!(fit.text("", 0), "");
    }
}
