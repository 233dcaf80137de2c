//! Other names of flags. Clap accepts them as hidden aliases; a note says which name to use.

use std::ffi::OsString;

use crate::Output;

/// Other names, and the flags.
const SYNONYMS: [(&str, &str); 3] =
    [("--user-id", "--user"), ("--strategy", "--algorithm"), ("--burst-size", "--burst")];

/// Prints a note for each flag that was given by another name.
pub(crate) fn note_used(arguments: impl Iterator<Item = OsString>, output: &Output) {
    let arguments = arguments.take_while(|argument| argument != "--");
    for argument in arguments.filter_map(|argument| argument.into_string().ok()) {
        let name = argument.split('=').next().unwrap_or_default();
        if let Some((name, flag)) = SYNONYMS.iter().find(|(known, _)| *known == name) {
            output.note(&format!("hint: {name} is read as {flag}"));
        }
    }
}
