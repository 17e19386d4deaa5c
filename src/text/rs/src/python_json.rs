// SPDX-License-Identifier: Apache-2.0
//! Template values as Python writes them: `json.dumps`, which is the `tojson` filter of
//! transformers, and `str`.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Nesting deeper than this is refused; Python's own limit is near 1000.
const MAX_DEPTH: usize = 200;
/// Bytes of one result.
const MAX_BYTES: usize = 4 << 20;

pub struct Style {
    pub ensure_ascii: bool,
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Style {
    /// Python's defaults: the item separator loses its space when lines are broken.
    pub fn new(indent: Option<String>) -> Self {
        let item_separator = if indent.is_some() { "," } else { ", " };
        Self {
            ensure_ascii: false,
            indent,
            item_separator: item_separator.to_string(),
            key_separator: ": ".to_string(),
            sort_keys: false,
        }
    }
}

fn fail(message: String) -> Error {
    Error::new(ErrorKind::BadSerialization, message)
}

/// `repr` of a Python float as json.dumps writes it.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    // Rust's LowerExp gives the shortest digits that read back the same, as Python does; only the
    // layout differs.
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// `str()` of a Python value: strings as they are, everything else as `repr`. Only floats need
/// help: they print with exponents in Python, but not in the template library.
pub fn python_str(value: &Value) -> String {
    let mut out = String::new();
    if value.as_str().is_some() || !python_repr(value, 0, &mut out) {
        return value.to_string();
    }
    out
}

/// False for what has to be left to the template library: too deep, or not data.
fn python_repr(value: &Value, depth: usize, out: &mut String) -> bool {
    let kind = value.kind();
    if depth > MAX_DEPTH || out.len() > MAX_BYTES {
        return false;
    }
    if kind == ValueKind::Number && !value.is_integer() {
        match f64::try_from(value.clone()) {
            Ok(number) if number.is_finite() => out.push_str(&float_repr(number)),
            _ => out.push_str(&value.to_string()),
        }
        return true;
    }
    let (open, close) = match kind {
        ValueKind::Map => ("{", "}"),
        ValueKind::Seq if value.is_tuple() => {
            ("(", if value.len() == Some(1) { ",)" } else { ")" })
        }
        ValueKind::Seq => ("[", "]"),
        ValueKind::Number | ValueKind::Bool | ValueKind::None => {
            out.push_str(&value.to_string());
            return true;
        }
        ValueKind::String => {
            let _ = write!(out, "{value:?}");
            return true;
        }
        _ => return false,
    };
    let Ok(items) = value.try_iter() else {
        return false;
    };
    out.push_str(open);
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        if !python_repr(&item, depth + 1, out) {
            return false;
        }
        if kind == ValueKind::Map {
            out.push_str(": ");
            if !value.get_item(&item).is_ok_and(|held| python_repr(&held, depth + 1, out)) {
                return false;
            }
        }
    }
    out.push_str(close);
    true
}

struct Writer<'a> {
    out: String,
    style: &'a Style,
}

pub fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), style };
    writer.value(value, 0)?;
    Ok(writer.out)
}

impl Writer<'_> {
    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20
                    || (self.style.ensure_ascii && !(' '..='~').contains(&c)) =>
                {
                    let mut units = [0u16; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn scalar(&self, value: &Value) -> Option<String> {
        match value.kind() {
            ValueKind::None => Some("null".to_string()),
            ValueKind::Bool => Some(if value.is_true() { "true" } else { "false" }.to_string()),
            ValueKind::Number if value.is_integer() => Some(value.to_string()),
            ValueKind::Number => f64::try_from(value.clone()).ok().map(float_repr),
            _ => None,
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            self.string(text);
        } else if let Some(text) = self.scalar(key) {
            self.string(&text);
        } else {
            return Err(fail(format!(
                "keys must be str, int, float, bool or None, not {}",
                key.kind()
            )));
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fail(format!("tojson: nested deeper than {MAX_DEPTH}")));
        }
        if self.out.len() > MAX_BYTES {
            return Err(fail(format!("tojson: more than {MAX_BYTES} bytes")));
        }
        if let Some(text) = value.as_str() {
            self.string(text);
            return Ok(());
        }
        if let Some(text) = self.scalar(value) {
            self.out.push_str(&text);
            return Ok(());
        }
        match value.kind() {
            ValueKind::Seq => self.sequence(value, depth),
            ValueKind::Map => self.mapping(value, depth),
            ValueKind::Undefined => {
                Err(fail("Object of type Undefined is not JSON serializable".to_string()))
            }
            other => Err(fail(format!("Object of type {other} is not JSON serializable"))),
        }
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            if !empty {
                self.out.push_str(&self.style.item_separator);
            }
            empty = false;
            self.new_line(depth + 1);
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn mapping(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.style.item_separator);
            }
            self.new_line(depth + 1);
            self.key(key)?;
            self.out.push_str(&self.style.key_separator);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        if !keys.is_empty() {
            self.new_line(depth);
        }
        self.out.push('}');
        Ok(())
    }
}
