// SPDX-License-Identifier: Apache-2.0
//! Checks a JSON schema before it becomes a grammar, and respells it in the subset that the grammar
//! compiler enforces in full. A keyword that constrains and cannot be enforced is refused with its
//! JSON pointer; keywords that only annotate are dropped.

use std::collections::HashMap;

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use serde_json::{json, Map, Value};

use crate::ffi::Failure;
use crate::pattern;
use crate::schema_oneof::all_disjoint;

const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 20_000;
/// Places that references lead to.
const MAX_TARGETS: usize = 2_000;
/// The compiler compares each pattern of an object with each other.
const MAX_PATTERN_PROPERTIES: usize = 32;

const UNSUPPORTED: [&str; 19] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
    "divisibleBy",
    "$vocabulary",
];

const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Sizes of numbers in OpenAPI documents; they say nothing about strings.
const NUMBER_FORMATS: [&str; 6] = ["int32", "int64", "uint32", "uint64", "float", "double"];

/// Between the tokens of a document: nothing, a space, or up to two line ends with an indent. Without
/// a bound a model may put out white space until its token limit.
const WHITESPACE: &str = r"[\x20]|[\x0A]{1,2}[\x20\x09]{0,20}";

fn fail<T>(at: &str, message: impl std::fmt::Display) -> Result<T, Failure> {
    let place = if at.is_empty() { "(the root)" } else { at };
    Err(Failure::invalid(format!("JSON schema at {place}: {message}")))
}

pub fn escape_pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The value a reference like `#/$defs/a~1b` names, and its canonical pointer.
pub fn resolve<'a>(root: &'a Value, reference: &str) -> Option<(&'a Value, String)> {
    let fragment = reference.strip_prefix('#')?;
    let fragment = percent_decode(fragment)?;
    if fragment.is_empty() || fragment == "/" {
        return Some((root, String::new()));
    }
    if fragment.starts_with('/') {
        return root.pointer(&fragment).map(|value| (value, fragment.clone()));
    }
    find_anchor(root, &fragment, String::new(), 0)
}

fn percent_decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_string());
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let digits = text.get(at + 1..at + 3)?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

fn find_anchor<'a>(
    value: &'a Value,
    name: &str,
    at: String,
    depth: usize,
) -> Option<(&'a Value, String)> {
    if depth > MAX_DEPTH {
        return None;
    }
    match value {
        Value::Object(map) => {
            let named = |key: &str, text: &str| map.get(key).and_then(Value::as_str) == Some(text);
            if named("$anchor", name) || named("$id", &format!("#{name}")) {
                return Some((value, at));
            }
            map.iter().find_map(|(key, child)| {
                find_anchor(child, name, format!("{at}/{}", escape_pointer(key)), depth + 1)
            })
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(i, child)| find_anchor(child, name, format!("{at}/{i}"), depth + 1)),
        _ => None,
    }
}

pub struct Prepared {
    /// What the grammar compiler gets.
    pub schema: Value,
    /// Names that `schema` uses for places of the client's document: ("#/$defs/d0", "#/..."). For
    /// messages.
    pub names: Vec<(String, String)>,
}

/// `at` is the pointer of the schema in the client's request, for messages ("" if it is the whole).
pub fn prepare(root: &Value, at: &str) -> Result<Prepared, Failure> {
    let mut checker = Checker { root, at, nodes: 0, defs: HashMap::new(), queue: Vec::new() };
    let mut schema = match checker.schema(root, "", 0)? {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return fail(at, "nothing is valid under the schema false"),
        schema => schema,
    };
    let mut definitions = Map::new();
    let mut next = 0;
    while next < checker.queue.len() {
        let pointer = checker.queue[next].clone();
        let target = root.pointer(&pointer).unwrap_or(&Value::Null);
        let checked = checker.schema(target, &pointer, 0)?;
        definitions.insert(format!("d{next}"), checked);
        next += 1;
    }
    let names =
        (0..next).map(|i| (format!("#/$defs/d{i}"), format!("#{}", checker.queue[i]))).collect();
    if let Some(map) = schema.as_object_mut() {
        if !definitions.is_empty() {
            map.insert("$defs".into(), Value::Object(definitions));
        }
        map.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE }));
    }
    Ok(Prepared { schema, names })
}

struct Checker<'a> {
    root: &'a Value,
    at: &'a str,
    nodes: usize,
    defs: HashMap<String, usize>,
    queue: Vec<String>,
}

impl Checker<'_> {
    fn fail<T>(&self, at: &str, message: impl std::fmt::Display) -> Result<T, Failure> {
        fail(&format!("{}{at}", self.at), message)
    }

    fn schema(&mut self, value: &Value, at: &str, depth: usize) -> Result<Value, Failure> {
        self.nodes += 1;
        if depth > MAX_DEPTH {
            return self.fail(at, format!("it is nested more than {MAX_DEPTH} levels deep"));
        }
        if self.nodes > MAX_NODES {
            return self.fail(at, format!("it has more than {MAX_NODES} parts"));
        }
        let map = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(map) => map,
            _ => return self.fail(at, "a schema must be an object or a boolean"),
        };
        let mut out = Map::new();
        for (key, value) in map {
            let here = format!("{at}/{}", escape_pointer(key));
            self.keyword(map, key, value, &here, depth, &mut out)?;
        }
        Ok(Value::Object(out))
    }

    fn keyword(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        value: &Value,
        at: &str,
        depth: usize,
        out: &mut Map<String, Value>,
    ) -> Result<(), Failure> {
        let checked = match key {
            "$ref" => self.reference(value, at)?,
            "properties" => self.named_schemas(value, at, depth)?,
            "patternProperties" => self.pattern_properties(value, at, depth)?,
            "additionalProperties" | "additionalItems" => self.schema(value, at, depth + 1)?,
            "items" if value.is_array() => self.list(value, at, depth)?,
            "items" => self.schema(value, at, depth + 1)?,
            "prefixItems" | "allOf" | "anyOf" => self.list(value, at, depth)?,
            "oneOf" => return self.one_of(value, at, depth, out),
            "pattern" => Value::String(self.pattern(value, at)?),
            "format" => match self.format(map, value, at)? {
                Some(format) => format,
                None => return Ok(()),
            },
            "type" => self.types(value, at)?,
            "enum" => self.literals(value, at)?,
            "const" => self.literal(value, at)?,
            "required" => self.strings(value, at)?,
            "minimum" | "exclusiveMinimum" => self.bound(value, at, false)?,
            "maximum" | "exclusiveMaximum" => self.bound(value, at, true)?,
            "multipleOf" => match value.as_f64() {
                Some(number) if number > 0.0 => value.clone(),
                _ => return self.fail(at, format!("{value} is not a number above 0")),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => self.count(value, at)?,
            "uniqueItems" if value == &Value::Bool(false) => return Ok(()),
            "uniqueItems" => return self.unsupported(at, "uniqueItems"),
            "$id" if at != "/$id" => return self.unsupported(at, "an embedded $id"),
            key if UNSUPPORTED.contains(&key) => return self.unsupported(at, key),
            _ => return Ok(()), // An annotation.
        };
        // A oneOf may have become this already.
        if let (Some(Value::Array(all)), Value::Array(more)) = (out.get_mut(key), &checked) {
            all.extend(more.iter().cloned());
        } else {
            out.insert(key.to_string(), checked);
        }
        Ok(())
    }

    fn unsupported<T>(&self, at: &str, what: &str) -> Result<T, Failure> {
        self.fail(at, format!("{what} is not supported; leave it out and check it yourself"))
    }

    fn reference(&mut self, value: &Value, at: &str) -> Result<Value, Failure> {
        let Some(reference) = value.as_str() else {
            return self.fail(at, "$ref must be a string");
        };
        if !reference.starts_with('#') {
            return self.fail(
                at,
                format!(
                    "the reference '{reference}' leads out of the document; only '#...' is followed"
                ),
            );
        }
        let Some((_, pointer)) = resolve(self.root, reference) else {
            return self.fail(at, format!("the reference '{reference}' leads nowhere"));
        };
        if pointer.is_empty() {
            return Ok(json!("#"));
        }
        let next = self.queue.len();
        if next >= MAX_TARGETS {
            return self.fail(at, format!("references lead to more than {MAX_TARGETS} places"));
        }
        let index = *self.defs.entry(pointer.clone()).or_insert(next);
        if index == next {
            self.queue.push(pointer);
        }
        Ok(Value::String(format!("#/$defs/d{index}")))
    }

    fn named_schemas(&mut self, value: &Value, at: &str, depth: usize) -> Result<Value, Failure> {
        let Some(map) = value.as_object() else {
            return self.fail(at, "it must be an object of schemas");
        };
        let mut out = Map::new();
        for (name, schema) in map {
            let here = format!("{at}/{}", escape_pointer(name));
            out.insert(name.clone(), self.schema(schema, &here, depth + 1)?);
        }
        Ok(Value::Object(out))
    }

    fn pattern_properties(
        &mut self,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Result<Value, Failure> {
        let Some(map) = value.as_object() else {
            return self.fail(at, "it must be an object of schemas");
        };
        if map.len() > MAX_PATTERN_PROPERTIES {
            return self.fail(at, format!("it has more than {MAX_PATTERN_PROPERTIES} patterns"));
        }
        let mut out = Map::new();
        for (name, schema) in map {
            let here = format!("{at}/{}", escape_pointer(name));
            let name = self.pattern(&Value::String(name.clone()), &here)?;
            out.insert(name, self.schema(schema, &here, depth + 1)?);
        }
        Ok(Value::Object(out))
    }

    fn list(&mut self, value: &Value, at: &str, depth: usize) -> Result<Value, Failure> {
        let Some(items) = value.as_array().filter(|items| !items.is_empty()) else {
            return self.fail(at, "it must be a list of schemas with at least one");
        };
        let mut out = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            out.push(self.schema(item, &format!("{at}/{i}"), depth + 1)?);
        }
        Ok(Value::Array(out))
    }

    // Exactly one of options that exclude each other is any of them.
    fn one_of(
        &mut self,
        value: &Value,
        at: &str,
        depth: usize,
        out: &mut Map<String, Value>,
    ) -> Result<(), Failure> {
        let options = self.list(value, at, depth)?;
        if let Err((a, b)) = all_disjoint(self.root, value.as_array().map_or(&[], Vec::as_slice)) {
            return self.fail(
                at,
                format!(
                    "options {a} and {b} may both match, which cannot be ruled out while generating; \
                     use anyOf, or give each option a required property with its own const"
                ),
            );
        }
        let any_of = json!([{ "anyOf": options }]);
        match (out.get_mut("allOf"), any_of) {
            (Some(Value::Array(all)), Value::Array(more)) => all.extend(more),
            (_, any_of) => {
                out.insert("allOf".into(), any_of);
            }
        }
        Ok(())
    }

    fn pattern(&self, value: &Value, at: &str) -> Result<String, Failure> {
        let Some(source) = value.as_str() else {
            return self.fail(at, "a pattern must be a string");
        };
        let translated = match pattern::translate(source) {
            Ok(translated) => translated,
            Err(construct) => {
                return self.fail(
                    at,
                    format!("the pattern '{source}' has {construct}, which is not supported"),
                )
            }
        };
        let mut builder = RegexBuilder::new();
        if let Err(e) = builder.mk_regex_for_serach(&regex_to_lark(&translated, "")) {
            return self
                .fail(at, format!("the pattern '{source}' is not supported: {}", brief(&e)));
        }
        Ok(translated)
    }

    fn format(
        &self,
        map: &Map<String, Value>,
        value: &Value,
        at: &str,
    ) -> Result<Option<Value>, Failure> {
        let Some(name) = value.as_str() else {
            return self.fail(at, "format must be a string");
        };
        let may_be_string = match map.get("type") {
            Some(Value::String(one)) => one == "string",
            Some(Value::Array(all)) => all.iter().any(|one| one == "string"),
            _ => true,
        };
        if !may_be_string || NUMBER_FORMATS.contains(&name) {
            return Ok(None);
        }
        if !FORMATS.contains(&name) {
            return self.fail(
                at,
                format!(
                    "the format '{name}' is not supported; supported are {}",
                    FORMATS.join(", ")
                ),
            );
        }
        Ok(Some(value.clone()))
    }

    fn types(&self, value: &Value, at: &str) -> Result<Value, Failure> {
        let known = |value: &Value| {
            matches!(
                value.as_str(),
                Some("null" | "boolean" | "number" | "integer" | "string" | "array" | "object")
            )
        };
        let good = match value {
            Value::Array(all) => !all.is_empty() && all.iter().all(known),
            one => known(one),
        };
        if !good {
            return self.fail(at, format!("{value} is not a JSON type or a list of them"));
        }
        Ok(value.clone())
    }

    fn strings(&self, value: &Value, at: &str) -> Result<Value, Failure> {
        match value.as_array() {
            Some(items) if items.iter().all(Value::is_string) => Ok(value.clone()),
            _ => self.fail(at, "it must be a list of strings"),
        }
    }

    fn literals(&self, value: &Value, at: &str) -> Result<Value, Failure> {
        let Some(items) = value.as_array().filter(|items| !items.is_empty()) else {
            return self.fail(at, "enum must be a list with at least one value");
        };
        for (i, item) in items.iter().enumerate() {
            self.literal(item, &format!("{at}/{i}"))?;
        }
        Ok(value.clone())
    }

    fn literal(&self, value: &Value, at: &str) -> Result<Value, Failure> {
        match value {
            Value::Number(number) if !is_exact(number) => {
                self.fail(at, format!("{number} is too large to be enforced exactly"))
            }
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.literal(item, &format!("{at}/{i}"))?;
                }
                Ok(value.clone())
            }
            Value::Object(map) => {
                for (name, item) in map {
                    self.literal(item, &format!("{at}/{}", escape_pointer(name)))?;
                }
                Ok(value.clone())
            }
            _ => Ok(value.clone()),
        }
    }

    // Bounds are kept as doubles; one that is none moves inwards.
    fn bound(&self, value: &Value, at: &str, is_upper: bool) -> Result<Value, Failure> {
        match value {
            Value::Bool(_) => Ok(value.clone()), // Draft 4's exclusive flags.
            Value::Number(number) if is_exact(number) => Ok(value.clone()),
            Value::Number(number) => {
                let near = number.as_f64().unwrap_or(0.0);
                Ok(json!(if is_upper { near.next_down() } else { near.next_up() }))
            }
            _ => self.fail(at, format!("{value} is not a number")),
        }
    }

    fn count(&self, value: &Value, at: &str) -> Result<Value, Failure> {
        if let Some(count) = value.as_u64() {
            return Ok(json!(count));
        }
        match value.as_f64() {
            Some(count) if count >= 0.0 && count.fract() == 0.0 && count < 9e15 => {
                Ok(json!(count as u64))
            }
            _ => self.fail(at, format!("{value} is not a whole number of 0 or more")),
        }
    }
}

/// Whether a double holds the number.
fn is_exact(number: &serde_json::Number) -> bool {
    const LIMIT: u64 = 1 << 53;
    match (number.as_u64(), number.as_i64()) {
        (Some(value), _) => value <= LIMIT,
        (_, Some(value)) => value.unsigned_abs() <= LIMIT,
        _ => true,
    }
}

/// The first line of a library's message that says something.
pub fn brief(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let text = text.replace("\n<non-verbose/>", "");
    if text.contains("lookarounds not supported yet") {
        return "an anchor that is not at the start or end".into();
    }
    match text.rsplit_once("error: ") {
        Some((_, last)) => last.trim().to_string(),
        None => text.trim().chars().take(500).collect(),
    }
}
