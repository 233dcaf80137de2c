//! Deserialization of [`Value`] from JSON and other self-describing formats.
//!
//! `null` is treated as a missing key. Duplicate keys are rejected.

use std::fmt;

use hashbrown::HashSet;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::document::{LocatedValue, Origin, Value};

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ValueVisitor)
    }
}

impl Value {
    /// Sets the origin of all nested values.
    pub(super) fn set_origin(&mut self, origin: &Origin) {
        let set = |node: &mut LocatedValue| {
            node.origin = origin.clone();
            node.value.set_origin(origin);
        };
        match self {
            Value::List(items) => items.iter_mut().for_each(set),
            Value::Table(entries) => entries.iter_mut().map(|(_, node)| node).for_each(set),
            _ => {}
        }
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean, a number, a string, a list or a table")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        // Out of range: rejected when it is read.
        Ok(i64::try_from(number).map_or(Value::Float(f64::INFINITY), Value::Integer))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(value) = list.next_element()? {
            items.push(node(value));
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Value, A::Error> {
        let (mut entries, mut seen) = (Vec::new(), HashSet::new());
        while let Some((key, value)) = table.next_entry::<String, Option<Value>>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            entries.extend(value.map(|value| (key, node(value))));
        }
        Ok(Value::Table(entries))
    }
}

/// The origin is set when a document is made of it.
fn node(value: Value) -> LocatedValue {
    LocatedValue { value, origin: Origin::Named(String::new()) }
}
