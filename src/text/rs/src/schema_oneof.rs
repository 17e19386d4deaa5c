// SPDX-License-Identifier: Apache-2.0
//! Whether the options of a oneOf exclude each other, so that it may be enforced as an anyOf.

use std::cell::Cell;

use serde_json::{Map, Value};

use crate::schema::resolve;

const MAX_DEPTH: usize = 12;
const MAX_OPTIONS: usize = 64;
const MAX_COMPARISONS: usize = 100_000;

/// Err names the first two options that may both match.
pub fn all_disjoint(root: &Value, options: &[Value]) -> Result<(), (usize, usize)> {
    if options.len() > MAX_OPTIONS {
        return Err((0, MAX_OPTIONS));
    }
    let check = Check { root, left: Cell::new(MAX_COMPARISONS) };
    for a in 0..options.len() {
        for b in a + 1..options.len() {
            if !check.disjoint(&options[a], &options[b], 0) {
                return Err((a, b));
            }
        }
    }
    Ok(())
}

/// Where a chain of references ends. Siblings of $ref only narrow, so they may be overlooked here.
fn target<'a>(root: &'a Value, mut value: &'a Value) -> &'a Value {
    for _ in 0..MAX_DEPTH {
        let Some(reference) = value.get("$ref").and_then(Value::as_str) else {
            return value;
        };
        match resolve(root, reference) {
            Some((next, _)) => value = next,
            None => return value,
        }
    }
    value
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The JSON types that can match; None: any. Integers count as numbers.
fn types(schema: &Map<String, Value>) -> Option<Vec<&str>> {
    let plain = |name: &'_ str| if name == "integer" { "number" } else { type_of(name) };
    match (schema.get("type"), literals(schema)) {
        (Some(Value::String(one)), _) => Some(vec![plain(one)]),
        (Some(Value::Array(all)), _) => {
            Some(all.iter().filter_map(Value::as_str).map(plain).collect())
        }
        (_, Some(values)) => Some(values.into_iter().map(type_name).collect()),
        _ => None,
    }
}

fn type_of(name: &str) -> &'static str {
    ["null", "boolean", "number", "string", "array", "object"]
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or("null")
}

fn literals(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    if let Some(value) = schema.get("const") {
        return Some(vec![value]);
    }
    schema.get("enum").and_then(Value::as_array).map(|all| all.iter().collect())
}

fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn required(schema: &Map<String, Value>) -> Vec<&str> {
    schema
        .get("required")
        .and_then(Value::as_array)
        .map_or_else(Vec::new, |all| all.iter().filter_map(Value::as_str).collect())
}

fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    schema.get("properties").and_then(|properties| properties.get(name))
}

/// One search; gives up, that is, finds options not disjoint, when it takes too long.
struct Check<'a> {
    root: &'a Value,
    left: Cell<usize>,
}

impl Check<'_> {
    /// A property that `a` needs has no value that both allow, or no place in `b`.
    fn objects_exclude(
        &self,
        a: &Map<String, Value>,
        b: &Map<String, Value>,
        depth: usize,
    ) -> bool {
        required(a).into_iter().any(|name| match (property(a, name), property(b, name)) {
            (Some(in_a), Some(in_b)) => self.disjoint(in_a, in_b, depth + 1),
            (_, None) => {
                b.get("additionalProperties") == Some(&Value::Bool(false))
                    && b.get("patternProperties").is_none()
            }
            _ => false,
        })
    }

    fn disjoint(&self, a: &Value, b: &Value, depth: usize) -> bool {
        if depth > MAX_DEPTH || self.left.get() == 0 {
            return false;
        }
        self.left.set(self.left.get() - 1);
        let (a, b) = (target(self.root, a), target(self.root, b));
        let (Value::Object(map_a), Value::Object(map_b)) = (a, b) else {
            return a == &Value::Bool(false) || b == &Value::Bool(false);
        };
        let (types_a, types_b) = (types(map_a), types(map_b));
        if let (Some(types_a), Some(types_b)) = (&types_a, &types_b) {
            if !types_a.iter().any(|name| types_b.contains(name)) {
                return true;
            }
        }
        if let (Some(values_a), Some(values_b)) = (literals(map_a), literals(map_b)) {
            if !values_a.iter().any(|x| values_b.iter().any(|y| same(x, y))) {
                return true;
            }
        }
        let only_objects =
            |types: &Option<Vec<&str>>| matches!(types, Some(all) if all == &["object"]);
        if (only_objects(&types_a) || only_objects(&types_b))
            && (self.objects_exclude(map_a, map_b, depth)
                || self.objects_exclude(map_b, map_a, depth))
        {
            return true;
        }
        [(map_a, b), (map_b, a)].into_iter().any(|(one, other)| {
            ["anyOf", "oneOf"].into_iter().any(|key| {
                let options = one.get(key).and_then(Value::as_array);
                options.is_some_and(|all| all.iter().all(|o| self.disjoint(o, other, depth + 1)))
            })
        })
    }
}
