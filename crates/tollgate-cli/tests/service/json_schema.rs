//! The subset of JSON Schema that the description uses.
//!
//! An unknown keyword is an error, because a constraint that is not checked is useless.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use regex::Regex;
use serde_json::{Map, Value};

/// The schemas of a description.
pub(crate) struct Schemas<'a> {
    api: &'a Value,
    /// Whether undescribed fields are errors, although JSON Schema permits them.
    is_closed: bool,
}

type Checked = Result<(), String>;

impl<'a> Schemas<'a> {
    /// For responses: everything must be described.
    pub(crate) fn closed(api: &'a Value) -> Self {
        Schemas { api, is_closed: true }
    }

    /// For requests, which may have undescribed fields unless the schema forbids them.
    pub(crate) fn open(api: &'a Value) -> Self {
        Schemas { api, is_closed: false }
    }

    /// The target of a reference, or the schema itself.
    pub(crate) fn resolved(&self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            None => schema,
            Some(reference) => {
                let found = reference.strip_prefix('#').and_then(|pointer| self.api.pointer(pointer));
                self.resolved(found.unwrap_or_else(|| panic!("{reference} leads nowhere")))
            }
        }
    }

    /// Validates a value against a schema.
    pub(crate) fn check(&self, schema: &Value, value: &Value) -> Checked {
        self.check_at(schema, value, "")
    }

    fn check_at(&self, schema: &Value, value: &Value, at: &str) -> Checked {
        self.check_part(schema, value, at)?;
        let Some(fields) = value.as_object().filter(|_| self.is_closed) else { return Ok(()) };
        let mut known = BTreeSet::new();
        let is_free = self.gather(schema, value, &mut known);
        if is_free && known.is_empty() {
            return Ok(());
        }
        let undescribed = fields.keys().find(|field| !known.contains(*field));
        undescribed.map_or(Ok(()), |field| Err(format!("{at}.{field} is not described")))
    }

    /// Collects the described fields of this value; returns whether others are allowed.
    fn gather(&self, schema: &Value, value: &Value, known: &mut BTreeSet<String>) -> bool {
        let schema = self.reference(schema).unwrap_or(schema);
        let described = schema["properties"].as_object();
        known.extend(described.into_iter().flat_map(Map::keys).cloned());
        if schema["additionalProperties"].is_object() || schema["additionalProperties"] == true {
            known.extend(value.as_object().into_iter().flat_map(Map::keys).cloned());
        }
        let parts = ["allOf", "oneOf", "anyOf"].map(|keyword| schema[keyword].as_array());
        let parts: Vec<&Value> = parts.into_iter().flatten().flatten().collect();
        let fitting = parts.iter().filter(|part| self.check_part(part, value, "").is_ok());
        let free: Vec<bool> = fitting.map(|part| self.gather(part, value, known)).collect();
        if parts.is_empty() { described.is_none() } else { free.into_iter().any(|free| free) }
    }

    fn reference(&self, schema: &Value) -> Option<&'a Value> {
        let reference = schema["$ref"].as_str()?;
        let found = reference.strip_prefix('#').and_then(|pointer| self.api.pointer(pointer));
        Some(self.resolved(found.unwrap_or_else(|| panic!("{reference} leads nowhere"))))
    }

    fn check_part(&self, schema: &Value, value: &Value, at: &str) -> Checked {
        let Some(keywords) = schema.as_object() else {
            return if *schema == true { Ok(()) } else { Err(format!("{at}: {schema} is no schema")) };
        };
        for (keyword, constraint) in keywords {
            let checked = match &**keyword {
                "$ref" => self.check_part(self.reference(schema).unwrap(), value, at),
                "description" | "default" | "example" | "examples" | "title" | "deprecated" => Ok(()),
                "allOf" | "oneOf" | "anyOf" => self.check_parts(keyword, constraint, value, at),
                "properties" | "additionalProperties" | "propertyNames" | "required" | "items" => {
                    self.check_inside(keyword, schema, value, at)
                }
                "unevaluatedProperties" => self.check_unevaluated(schema, value, at),
                _ => check_alone(keyword, constraint, value),
            };
            checked.map_err(|error| if error.starts_with('.') { error } else { format!("{at}: {error}") })?;
        }
        Ok(())
    }

    fn check_parts(&self, keyword: &str, parts: &Value, value: &Value, at: &str) -> Checked {
        let parts = parts.as_array().unwrap();
        let checked: Vec<Checked> = parts.iter().map(|part| self.check_part(part, value, at)).collect();
        let fitting = checked.iter().filter(|part| part.is_ok()).count();
        let is_right = match keyword {
            "allOf" => fitting == parts.len(),
            "oneOf" => fitting == 1,
            _ => fitting > 0,
        };
        let errors: Vec<String> = checked.into_iter().filter_map(Result::err).collect();
        if is_right { Ok(()) } else { Err(format!("{fitting} of {keyword} fit: {}", errors.join("; or "))) }
    }

    /// Validates that an object has no fields beside those of the schema and of its parts.
    fn check_unevaluated(&self, schema: &Value, value: &Value, at: &str) -> Checked {
        assert_eq!(schema["unevaluatedProperties"], false);
        let mut known = BTreeSet::new();
        for part in [Some(schema), self.reference(schema)].into_iter().flatten() {
            self.gather(part, value, &mut known);
        }
        let mut unknown =
            value.as_object().into_iter().flatten().filter(|(field, _)| !known.contains(*field));
        unknown.next().map_or(Ok(()), |(field, _)| Err(format!("{at}.{field} is too much")))
    }

    /// Validates the fields of an object or the items of a list.
    fn check_inside(&self, keyword: &str, schema: &Value, value: &Value, at: &str) -> Checked {
        if let (Some(items), "items") = (value.as_array(), keyword) {
            let mut items = items.iter().enumerate();
            return items
                .try_for_each(|(n, item)| self.check_at(&schema["items"], item, &format!("{at}[{n}]")));
        }
        let Some(fields) = value.as_object() else { return Ok(()) };
        let inside = |field: &str| format!("{at}.{field}");
        match keyword {
            "required" => {
                let mut names =
                    schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                names
                    .find(|name| !fields.contains_key(*name))
                    .map_or(Ok(()), |name| Err(format!("no {name}")))
            }
            "propertyNames" => {
                let name = |name: &String| Value::String(name.clone());
                fields.keys().try_for_each(|field| self.check_at(&schema["propertyNames"], &name(field), at))
            }
            "properties" => {
                let described = schema["properties"].as_object().unwrap();
                let mut both =
                    fields.iter().filter_map(|(name, value)| Some((name, described.get(name)?, value)));
                both.try_for_each(|(name, schema, value)| self.check_at(schema, value, &inside(name)))
            }
            _ => {
                let described = schema["properties"].as_object();
                let mut others =
                    fields.iter().filter(|(name, _)| !described.is_some_and(|d| d.contains_key(*name)));
                match &schema["additionalProperties"] {
                    Value::Bool(true) => Ok(()),
                    Value::Bool(false) => {
                        others.next().map_or(Ok(()), |(name, _)| Err(format!("{} is too much", inside(name))))
                    }
                    schema => {
                        others.try_for_each(|(name, value)| self.check_at(schema, value, &inside(name)))
                    }
                }
            }
        }
    }
}

/// Validates a keyword that constrains the value itself.
fn check_alone(keyword: &str, constraint: &Value, value: &Value) -> Checked {
    let number = value.as_f64();
    let chars = value.as_str().map(|text| text.chars().count());
    let items = value.as_array().map(Vec::len);
    let at_least =
        |count: Option<usize>| count.is_none_or(|count| count as u64 >= constraint.as_u64().unwrap());
    let at_most =
        |count: Option<usize>| count.is_none_or(|count| count as u64 <= constraint.as_u64().unwrap());
    let is_right = match keyword {
        "type" => match constraint {
            Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
            kind => is_of(kind, value),
        },
        "enum" => constraint.as_array().unwrap().contains(value),
        "minimum" => number.is_none_or(|number| number >= constraint.as_f64().unwrap()),
        "maximum" => number.is_none_or(|number| number <= constraint.as_f64().unwrap()),
        "minLength" => at_least(chars),
        "maxLength" => at_most(chars),
        "minItems" => at_least(items),
        "maxItems" => at_most(items),
        "maxProperties" => at_most(value.as_object().map(Map::len)),
        "pattern" => {
            value.as_str().is_none_or(|text| Regex::new(constraint.as_str().unwrap()).unwrap().is_match(text))
        }
        "format" => match constraint.as_str().unwrap() {
            "int32" => value.as_i64().is_none_or(|number| i32::try_from(number).is_ok()),
            "int64" => !value.is_u64() || value.as_i64().is_some(),
            "date-time" => value.as_str().is_none_or(|text| text.parse::<jiff::Timestamp>().is_ok()),
            "ipv4" => value.as_str().is_none_or(|text| text.parse::<Ipv4Addr>().is_ok()),
            "ipv6" => value.as_str().is_none_or(|text| text.parse::<Ipv6Addr>().is_ok()),
            // Every number, and texts as tollgate's parsers define them.
            "double" | "endpoint" | "endpoint-pattern" | "network" | "client" | "time-span" | "window"
            | "time-zone" => true,
            format => return Err(format!("the format {format} is not known here")),
        },
        keyword => return Err(format!("the keyword {keyword} is not known here")),
    };
    if is_right { Ok(()) } else { Err(format!("{value} against {keyword} {constraint}")) }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the type {other} is not known"),
    }
}
