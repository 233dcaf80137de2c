//! Warnings: plain sentences about a request that was served, but perhaps not as its sender meant it.

use std::borrow::Cow;

use serde::Serialize;

/// The most warnings in one response.
const WARNINGS_MAX: usize = 20;

/// Warnings about one request, in the field `warnings` of its response. Without any, nothing is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Warnings(Vec<Cow<'static, str>>);

impl Warnings {
    /// Adds a sentence, unless it is present or the response has enough of them.
    pub(crate) fn add(&mut self, sentence: impl Into<Cow<'static, str>>) {
        let sentence = sentence.into();
        if self.0.len() < WARNINGS_MAX && !self.0.contains(&sentence) {
            self.0.push(sentence);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn as_slice(&self) -> &[Cow<'static, str>] {
        &self.0
    }
}
