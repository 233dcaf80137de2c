//! Compares the output of a command with what a page shows.
//!
//! Runs of spaces are one. These parts may differ: durations by half a minute, instants, generated ids, the wait in
//! `retry_after`. `…` stands for any text within a line, a line `…` for any number of lines.

use std::iter::Peekable;
use std::str::Chars;

const TOLERANCE_MS: u64 = 30_000;

/// A command of a `console` block and the output below it.
#[derive(Debug, PartialEq)]
pub(crate) struct Exchange {
    pub command: String,
    pub output: String,
}

/// The commands of a `console` block.
pub(crate) fn exchanges(block: &str) -> Vec<Exchange> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    let mut continued = false;
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            exchanges.push(Exchange { command: format!("{command}\n"), output: String::new() });
            continued = line.ends_with('\\');
            continue;
        }
        let last = exchanges.last_mut().expect("a console block starts with `$ `");
        let more = line.strip_prefix("> ");
        let text = if continued || more.is_some() { &mut last.command } else { &mut last.output };
        text.push_str(more.unwrap_or(line));
        text.push('\n');
        continued = continued && line.ends_with('\\');
    }
    exchanges
}

/// Whether a command printed what the page shows.
pub(crate) fn matches(shown: &str, printed: &str) -> bool {
    let lines = |text: &str| text.trim_end().lines().map(tokens).collect::<Vec<_>>();
    lines_match(&lines(shown), &lines(printed))
}

fn lines_match(shown: &[Vec<String>], printed: &[Vec<String>]) -> bool {
    let Some((first, rest)) = shown.split_first() else { return printed.is_empty() };
    if first.len() == 1 && first[0] == "…" {
        return (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]));
    }
    printed.split_first().is_some_and(|(line, more)| line_matches(first, line, "") && lines_match(rest, more))
}

fn line_matches(shown: &[String], printed: &[String], before: &str) -> bool {
    let Some((first, rest)) = shown.split_first() else { return printed.is_empty() };
    if let Some(start) = first.strip_suffix('…') {
        let starts = printed.first().is_some_and(|token| token.starts_with(start)) || start.is_empty();
        return starts && (0..=printed.len()).any(|skipped| line_matches(rest, &printed[skipped..], ""));
    }
    let Some((token, more)) = printed.split_first() else { return false };
    let is_word = first.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let key = if is_word { first } else { before };
    (first == token || may_differ(first, token, before)) && line_matches(rest, more, key)
}

/// Words and single other characters; spaces only separate them.
fn tokens(line: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        if is_part_of_word(letter) {
            let word = word(letter, &mut letters);
            // `7m 58s` is one duration.
            match tokens.last_mut().filter(|last: &&mut String| duration_ms(last).is_some()) {
                Some(last) if duration_ms(&word).is_some() => last.push_str(&word),
                _ => tokens.push(word),
            }
        } else if !letter.is_whitespace() {
            tokens.push(letter.to_string());
        }
    }
    tokens
}

fn is_part_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn word(first: char, letters: &mut Peekable<Chars<'_>>) -> String {
    let mut word = String::from(first);
    while let Some(letter) = letters.next_if(|letter| is_part_of_word(*letter)) {
        word.push(letter);
    }
    word.extend(letters.next_if_eq(&'…'));
    word
}

fn may_differ(shown: &str, printed: &str, key: &str) -> bool {
    let both = |test: fn(&str) -> bool| test(shown) && test(printed);
    let close = |a: u64, b: u64| a.abs_diff(b) <= TOLERANCE_MS;
    let durations = duration_ms(shown).zip(duration_ms(printed));
    durations.is_some_and(|(shown, printed)| close(shown, printed))
        || both(is_instant)
        || both(is_generated)
        || (both(is_number) && matches!(key, "retry_after" | "after" | "reset_at" | "retry_after_us"))
}

fn is_number(word: &str) -> bool {
    word.chars().all(|letter| letter.is_ascii_digit())
}

/// Unix seconds, milliseconds or microseconds.
fn is_instant(word: &str) -> bool {
    is_number(word) && [10, 13, 16].contains(&word.len())
}

/// The id of an API key or of a request.
fn is_generated(word: &str) -> bool {
    let id = word.strip_prefix("req_").unwrap_or(word);
    id.len() == 16 && id.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
}

/// `1h30m` and the like in milliseconds.
fn duration_ms(word: &str) -> Option<u64> {
    let mut total = 0;
    let mut rest = word;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).filter(|digits| *digits > 0)?;
        let (number, unit) = rest.split_at(digits);
        let end = unit.find(|letter: char| letter.is_ascii_digit()).unwrap_or(unit.len());
        let scale = match &unit[..end] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total += number.parse::<u64>().ok()? * scale;
        rest = &unit[end..];
    }
    (!word.is_empty()).then_some(total)
}

#[test]
fn variable_parts_may_differ() {
    for (shown, printed) in [
        ("retry in 20s, over_limit", "retry in  18s, over_limit"),
        ("full again in 8m", "full again in 7m 58s"),
        (r#"{"reset_at":1794888182,"retry_after":20}"#, r#"{"reset_at":1794888199,"retry_after":19}"#),
        ("retry-after: 20", "retry-after: 19"),
        ("id 4kq2mz7ehv3xw5ta", "id aaaabbbbccccdddd"),
        ("tg_…  active", "tg_4kq2mz7ehv3xw5ta_x-y   active"),
        ("a\n…\nz", "a\nb\nc\nz\n"),
        ("…\nz", "z\n"),
    ] {
        assert!(matches(shown, printed), "{shown} / {printed}");
    }
}

#[test]
fn everything_else_must_be_the_same() {
    for (shown, printed) in [
        ("2 of 3 left", "1 of 3 left"),
        ("3/1m", "3/1h"),
        ("admitted", "refused"),
        ("a\nb", "a"),
        ("a", "a\nb"),
        (r#"{"limit":10}"#, r#"{"limit":11}"#),
    ] {
        assert!(!matches(shown, printed), "{shown} / {printed}");
    }
}

#[test]
fn console_block_is_a_list_of_commands() {
    let block = "$ a \\\n   b\none\ntwo\n$ c\n> d\n";
    let exchange = |command: &str, output: &str| Exchange { command: command.into(), output: output.into() };
    assert_eq!(exchanges(block), [exchange("a \\\n   b\n", "one\ntwo\n"), exchange("c\nd\n", "")]);
}
