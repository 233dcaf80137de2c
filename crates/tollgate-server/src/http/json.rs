//! Strict JSON parsing: bounded depth, no duplicate keys, and errors that name the field.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::http::error::{ApiError, Code};

const UNKNOWN: &str = "unknown field";
const DEPTH_MAX: usize = 32;

/// Parses a body. A body that fails is parsed a second time to locate the error.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    if too_deep(body) {
        let reason = format!("must not be nested deeper than {DEPTH_MAX} levels");
        return Err(ApiError::field(Code::InvalidInput, "", reason));
    }
    // serde_json does not validate the strings that it skips.
    let text = std::str::from_utf8(body)
        .map_err(|error| ApiError::field(Code::InvalidInput, "", format!("invalid JSON: {error}")))?;
    // serde would read an array as the fields in order.
    if !text.trim_start().starts_with('{') {
        return Err(ApiError::field(Code::InvalidInput, "", "must be a JSON object"));
    }
    serde_json::from_str(text).map_err(|error| locate::<T>(text, &error))
}

fn locate<'a, T: Deserialize<'a>>(text: &'a str, error: &serde_json::Error) -> ApiError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let Err(located) = serde_path_to_error::deserialize::<_, T>(&mut deserializer) else {
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
        return unknown(field);
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
    let quoted = || reason.split('`').nth(1).unwrap_or_default();
    // `path` is the field itself or the object that contains it.
    let inside = |field: &str| match path.as_str() {
        "." => field.to_owned(),
        at if at == field || at.ends_with(&format!(".{field}")) => at.to_owned(),
        around => format!("{around}.{field}"),
    };
    if reason.starts_with("missing field") {
        return (inside(quoted()), "is missing".to_owned());
    }
    if reason.starts_with("duplicate field") {
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

/// Whether the nesting exceeds the bound. Almost every body has too few brackets for that and is counted only once.
fn too_deep(body: &[u8]) -> bool {
    let opening = |byte: &&u8| matches!(**byte, b'[' | b'{');
    if body.iter().filter(opening).count() <= DEPTH_MAX {
        return false;
    }
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => depth += 1,
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
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

/// An object of any values. Duplicate keys are rejected at any depth; a field that is null counts as absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Object(pub(crate) Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Any::deserialize(deserializer)?.0 {
            Value::Object(fields) => Ok(Object(fields)),
            _ => Err(de::Error::custom("must be a JSON object")),
        }
    }
}

/// Any value, parsed as strictly.
struct Any(Value);

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor).map(Any)
    }
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number).map(Value::Number).ok_or_else(|| de::Error::custom("number out of range"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Any(item)) = items.next_element()? {
            if item.is_null() {
                return Err(de::Error::custom("a list must not contain null"));
            }
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let (mut fields, mut nulls) = (Map::new(), Vec::new());
        while let Some((key, Any(value))) = entries.next_entry::<String, Any>()? {
            if fields.contains_key(&key) || nulls.contains(&key) {
                return Err(de::Error::custom(format!("duplicate field `{key}`")));
            }
            match value {
                Value::Null => nulls.push(key),
                value => drop(fields.insert(key, value)),
            }
        }
        Ok(Value::Object(fields))
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
        let deep = format!(r#"{{"name":"a","x":{}"#, "[".repeat(100_000));
        assert!(message(&deep).contains("nested"));
        let brackets_in_text = format!(r#"{{"name":"{}"}}"#, "[{".repeat(100));
        assert!(parse::<Sample<'_>>(brackets_in_text.as_bytes()).is_ok());
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
    fn any_object_is_strict_and_drops_nulls() {
        let object: Object = parse(br#"{"a":null,"b":{"c":[1,-2,"x",true,{"d":null}]},"e":1.5}"#).unwrap();
        assert_eq!(Value::Object(object.0), serde_json::json!({"b":{"c":[1,-2,"x",true,{}]},"e":1.5}));
        for (body, expected) in [
            (r#"{"a":{"b":1,"b":2}}"#, "a.b: is given twice"),
            (r#"{"a":1,"a":null}"#, "a: is given twice"),
            (r#"{"a":null,"a":null}"#, "a: is given twice"),
            (r#"{"a":[1,null]}"#, "a: a list must not contain null"),
            ("[]", "must be a JSON object"),
        ] {
            let error = parse::<Object>(body.as_bytes()).unwrap_err();
            let message = serde_json::to_value(error.body("")).unwrap()["message"].clone();
            assert_eq!(message, expected, "{body}");
        }
    }

    #[test]
    fn text_borrows_unless_escaped() {
        let plain: Sample<'_> = parse(br#"{"name":"abc"}"#).unwrap();
        let escaped: Sample<'_> = parse(br#"{"name":"a\u0062c"}"#).unwrap();
        assert!(matches!(plain.name.0, Cow::Borrowed("abc")));
        assert!(matches!(&escaped.name.0, Cow::Owned(text) if text == "abc"));
    }
}
