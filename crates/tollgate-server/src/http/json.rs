//! Strict JSON parsing: no duplicate keys, and errors that name the field. `serde_json` bounds the depth to 128 levels and skips
//! ignored fields without recursion.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::http::error::{ApiError, Code};

const UNKNOWN: &str = "unknown field";

/// Parses a body. A body that fails is parsed a second time to locate the error.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    let text = object_text(body)?;
    serde_json::from_str(text).map_err(|error| locate::<T>(text, &error))
}

/// The text of a body that is an object.
pub(crate) fn object_text(body: &[u8]) -> Result<&str, ApiError> {
    // serde_json does not validate the strings that it skips.
    let text = std::str::from_utf8(body)
        .map_err(|error| ApiError::field(Code::InvalidInput, "", format!("invalid JSON: {error}")))?;
    // serde would read an array as the fields in order.
    if !text.trim_start().starts_with('{') {
        return Err(ApiError::field(Code::InvalidInput, "", "must be a JSON object"));
    }
    Ok(text)
}

/// A field that the struct does not have.
pub(crate) struct UnknownField {
    pub(crate) name: String,
    /// The field as which it was read, if it is another name of one. Otherwise it was ignored.
    pub(crate) read_as: Option<&'static str>,
}

/// Other names of fields, and the fields.
const SYNONYMS: [(&str, &str); 4] = [
    ("user", "user_id"),
    ("algorithm", "strategy"),
    ("burst", "burst_capacity"),
    ("burst_size", "burst_capacity"),
];

/// Parses a body and collects its unknown fields. Without any, nothing is allocated.
pub(crate) fn parse_with_unknown<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    unknown: &mut Vec<UnknownField>,
) -> Result<T, ApiError> {
    let text = object_text(body)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = T::deserialize(Observed { inner: &mut deserializer, unknown });
    let parsed = parsed.and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| locate_observed::<T>(text, &error))
}

type Located<T> = Result<T, serde_path_to_error::Error<serde_json::Error>>;

fn locate<'a, T: Deserialize<'a>>(text: &'a str, error: &serde_json::Error) -> ApiError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    explain::<T>(serde_path_to_error::deserialize(&mut deserializer), error)
}

/// Like [`locate`], with the other names of fields.
fn locate_observed<'a, T: Deserialize<'a>>(text: &'a str, error: &serde_json::Error) -> ApiError {
    let (mut deserializer, mut unknown) = (serde_json::Deserializer::from_str(text), Vec::new());
    let observed = Observed { inner: &mut deserializer, unknown: &mut unknown };
    explain::<T>(serde_path_to_error::deserialize(observed), error)
}

fn explain<T>(located: Located<T>, error: &serde_json::Error) -> ApiError {
    let Err(located) = located else {
        // The value itself parses, so the error is in what follows it.
        return ApiError::field(Code::InvalidInput, "", format!("invalid JSON: {error}"));
    };
    let path = located.path().to_string();
    let cause = located.into_inner();
    let said = cause.to_string();
    // serde_json reports a number out of every range as a syntax error.
    if cause.is_data() || said.starts_with("number out of range") {
        return self::located(&path, &said);
    }
    ApiError::field(Code::InvalidInput, "", format!("invalid JSON: {cause}"))
}

/// An error of a serde parser at `path`.
pub(crate) fn located(path: &str, said: &str) -> ApiError {
    let (field, reason) = name_field(path.to_owned(), said);
    if reason == UNKNOWN {
        let name = field.rsplit('.').next().unwrap_or_default();
        // The parser lists the fields that it expects.
        let meant =
            SYNONYMS.iter().find(|(other, meant)| *other == name && said.contains(&format!("`{meant}`")));
        return match meant {
            Some((_, meant)) => {
                ApiError::field(Code::InvalidInput, field, format!("{UNKNOWN}: write {meant}"))
            }
            None => unknown(field),
        };
    }
    ApiError::invalid(field, reason)
}

/// An unknown field: `INVALID_INPUT`, whatever its name.
pub(crate) fn unknown(field: impl Into<Cow<'static, str>>) -> ApiError {
    ApiError::field(Code::InvalidInput, field, UNKNOWN)
}

/// The field and the reason of a parser's message.
fn name_field(path: String, said: &str) -> (String, String) {
    let reason = said.split(" at line ").next().unwrap_or(said);
    let quoted = || reason.split(['`', '"']).nth(1).unwrap_or_default();
    // `path` is the field itself or the object that contains it.
    let inside = |field: &str| match path.as_str() {
        "." => field.to_owned(),
        at if at == field || at.ends_with(&format!(".{field}")) => at.to_owned(),
        around => format!("{around}.{field}"),
    };
    if reason.starts_with("missing field") {
        return (inside(quoted()), "is missing".to_owned());
    }
    if reason.starts_with("duplicate ") {
        return (inside(quoted()), "is given twice".to_owned());
    }
    if reason.starts_with("unknown field") {
        return (inside(quoted()), UNKNOWN.to_owned());
    }
    let mut reason = without_rust_types(reason);
    // A window is not 0, although its type admits it.
    if path.ends_with("window_seconds") {
        reason = reason.replace("an integer from 0 to", "an integer from 1 to");
    }
    (if path == "." { String::new() } else { path }, reason)
}

/// Replaces the names of Rust types in a parser's message.
fn without_rust_types(reason: &str) -> String {
    let mut plain = reason.to_owned();
    for (rust, word) in [
        ("expected u32", "expected an integer from 0 to 4294967295"),
        ("expected u64", "expected a non-negative integer"),
        ("floating point", "fraction"),
    ] {
        plain = plain.replace(rust, word);
    }
    plain
}

/// Rejects an object with fields other than these: in a change, a misspelt field must not count as an absent one.
pub(crate) fn require_known(body: &[u8], fields: &[&str]) -> Result<(), ApiError> {
    #[expect(clippy::zero_sized_map_values, reason = "only the names matter")]
    let sent: BTreeMap<Text<'_>, IgnoredAny> = parse(body)?;
    match sent.into_keys().find(|name| !fields.contains(&&**name)) {
        Some(name) => Err(unknown(name.0.into_owned())),
        None => Ok(()),
    }
}

/// The most unknown fields that are listed.
const UNKNOWN_MAX: usize = 10;

/// A deserializer of a struct that notes which fields of the outermost object the struct does not have.
struct Observed<'u, D> {
    inner: D,
    unknown: &'u mut Vec<UnknownField>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Observed<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_map(ObservedVisitor { inner: visitor, fields, unknown: self.unknown })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct ObservedVisitor<'u, V> {
    inner: V,
    fields: &'static [&'static str],
    unknown: &'u mut Vec<UnknownField>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for ObservedVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let ObservedVisitor { inner, fields, unknown } = self;
        inner.visit_map(ObservedMap { inner: map, fields, unknown })
    }
}

struct ObservedMap<'u, A> {
    inner: A,
    fields: &'static [&'static str],
    unknown: &'u mut Vec<UnknownField>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for ObservedMap<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some(Text(name)) = self.inner.next_key::<Text<'de>>()? else { return Ok(None) };
        if self.fields.contains(&&*name) {
            return seed.deserialize(de::value::CowStrDeserializer::new(name)).map(Some);
        }
        let synonym = SYNONYMS.iter().find(|(other, field)| *other == name && self.fields.contains(field));
        let read_as = synonym.map(|(_, field)| *field);
        if self.unknown.len() < UNKNOWN_MAX {
            self.unknown.push(UnknownField { name: name.clone().into_owned(), read_as });
        }
        let name = read_as.map_or(name, Cow::Borrowed);
        seed.deserialize(de::value::CowStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<S: de::DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }
}

/// A string that borrows from the body unless it contains escapes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// An object of strings, in the order written. Duplicate keys are rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> std::ops::Deref for Pairs<'a> {
    type Target = [(Cow<'a, str>, Cow<'a, str>)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a> Pairs<'a> {
    /// Adds a pair, unless the key is present or the object is full.
    pub(crate) fn add(&mut self, key: Cow<'a, str>, value: Cow<'a, str>) -> Result<(), String> {
        if self.0.iter().any(|(known, _)| *known == key) {
            return Err(format!("{key:?} is given twice"));
        }
        if self.0.len() == 32 {
            return Err("must have at most 32 entries".to_owned());
        }
        self.0.push((key, value));
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for PairsVisitor<'a> {
            type Value = Pairs<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'a>, A::Error> {
                let mut pairs = Pairs::default();
                while let Some((key, value)) = map.next_entry::<Text<'a>, Text<'a>>()? {
                    pairs.add(key.0, value.0).map_err(de::Error::custom)?;
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only parsed")]
    struct Sample<'a> {
        #[serde(borrow)]
        name: Text<'a>,
        cost: Option<u32>,
        #[serde(borrow, default)]
        more: Pairs<'a>,
    }

    fn message(body: &str) -> String {
        let error = parse::<Sample<'_>>(body.as_bytes()).unwrap_err();
        serde_json::to_value(error.body("")).unwrap()["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn numbers_out_of_range_are_rejected_by_field() {
        for number in
            ["NaN", "Infinity", "1e400", "-1", "-0", "1.5", "4294967296", "18446744073709551616", "\"5\""]
        {
            let message = message(&format!(r#"{{"name":"a","cost":{number}}}"#));
            assert!(message.starts_with("cost: ") || message.contains("invalid JSON"), "{number}: {message}");
        }
    }

    #[test]
    fn duplicate_keys_and_trailing_data_are_rejected() {
        assert_eq!(message(r#"{"name":"a","name":"b"}"#), "name: is given twice");
        assert!(
            message(r#"{"name":"a","more":{"x":"1","x":"2"}}"#).starts_with("more: \"x\" is given twice")
        );
        assert!(message(r#"{"name":"a"} x"#).contains("trailing"));
        assert!(message("\u{feff}{}").contains("must be a JSON object"));
        assert_eq!(message("{}"), "name: is missing");
    }

    #[test]
    fn unknown_fields_are_invalid_input() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only parsed")]
        struct Strict {
            limit: Option<u32>,
        }
        let code = |body: &str| parse::<Strict>(body.as_bytes()).unwrap_err().code();
        assert_eq!(code(r#"{"limit":-1}"#), Code::InvalidLimit);
        for field in ["window_seconds", "strategy", "colour"] {
            assert_eq!(code(&format!(r#"{{"{field}":1}}"#)), Code::InvalidInput, "{field}");
        }
        assert_eq!(require_known(br#"{"limit":1}"#, &["cost"]).unwrap_err().code(), Code::InvalidInput);
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |levels| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        let deep = |levels| format!(r#"{{"a":{}}}"#, nested(levels));
        assert!(parse::<tollgate::config::Value>(deep(100).as_bytes()).is_ok());
        let error = parse::<tollgate::config::Value>(deep(100_000).as_bytes()).unwrap_err();
        assert!(error.message().contains("recursion limit"), "{}", error.message());
        let ignored = format!(r#"{{"name":"a","x":{}}}"#, nested(100_000));
        assert!(parse::<Sample<'_>>(ignored.as_bytes()).is_ok(), "skipped without recursion");
    }

    #[test]
    fn invalid_utf8_is_rejected_everywhere() {
        for body in [&b"{\"name\":\"\xff\"}"[..], b"{\"name\":\"a\",\"unknown\":{\"\xff\":1}}", b"\xc0\xaf"] {
            assert!(parse::<Sample<'_>>(body).is_err());
        }
        // A lone surrogate is not text either.
        assert!(parse::<Sample<'_>>(br#"{"name":"\ud800"}"#).is_err());
    }

    #[test]
    fn text_borrows_unless_escaped() {
        let plain: Sample<'_> = parse(br#"{"name":"abc"}"#).unwrap();
        let escaped: Sample<'_> = parse(br#"{"name":"a\u0062c"}"#).unwrap();
        assert!(matches!(plain.name.0, Cow::Borrowed("abc")));
        assert!(matches!(&escaped.name.0, Cow::Owned(text) if text == "abc"));
    }
}
