// SPDX-License-Identifier: Apache-2.0
//! Structural tags: free text in which a trigger string must be followed by one of the tags that
//! begin with it; inside a tag a JSON schema holds until the tag's end string.

use serde_json::Value;

use crate::ffi::Failure;
use crate::gbnf::quote;
use crate::pattern;
use crate::schema::{escape_pointer, prepare};

const MAX_TAGS: usize = 256;

struct Tag {
    begin: String,
    schema: String,
    end: String,
}

fn fail<T>(at: &str, message: impl std::fmt::Display) -> Result<T, Failure> {
    Err(Failure::invalid(format!("structural tag at {at}: {message}")))
}

fn text<'a>(value: &'a Value, key: &str, at: &str) -> Result<&'a str, Failure> {
    match value.get(key).and_then(Value::as_str) {
        Some(text) => Ok(text),
        None => fail(&format!("{at}/{}", escape_pointer(key)), "it must be a string"),
    }
}

fn list<'a>(value: &'a Value, key: &str, at: &str) -> Result<&'a [Value], Failure> {
    match value.get(key).and_then(Value::as_array) {
        Some(items) if !items.is_empty() && items.len() <= MAX_TAGS => Ok(items),
        _ => fail(&format!("{at}/{key}"), format!("it must be a list of 1 to {MAX_TAGS}")),
    }
}

fn schema_text(value: Option<&Value>, at: &str) -> Result<String, Failure> {
    let any = Value::Bool(true);
    Ok(prepare(value.unwrap_or(&any), at)?.schema.to_string())
}

/// `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, or the newer
/// `{"format": {"type": "triggered_tags", "tags": [...], "triggers": [...]}}`.
pub fn to_lark(source: &Value) -> Result<String, Failure> {
    let (tags, triggers) = match source.get("format") {
        None => (legacy_tags(source)?, list(source, "triggers", "")?),
        Some(format) => {
            let kind = text(format, "type", "/format")?;
            if kind != "triggered_tags" {
                return fail(
                    "/format/type",
                    format!("'{kind}' is not supported; supported is 'triggered_tags'"),
                );
            }
            (new_tags(format)?, list(format, "triggers", "/format")?)
        }
    };
    let mut names = Vec::new();
    for (i, trigger) in triggers.iter().enumerate() {
        match trigger.as_str() {
            Some(trigger) if !trigger.is_empty() => names.push(trigger),
            _ => return fail(&format!("/triggers/{i}"), "it must be a string that is not empty"),
        }
    }
    write(&tags, &names)
}

fn legacy_tags(source: &Value) -> Result<Vec<Tag>, Failure> {
    let mut tags = Vec::new();
    for (i, item) in list(source, "structures", "")?.iter().enumerate() {
        let at = format!("/structures/{i}");
        tags.push(Tag {
            begin: text(item, "begin", &at)?.to_string(),
            schema: schema_text(item.get("schema"), &format!("{at}/schema"))?,
            end: text(item, "end", &at)?.to_string(),
        });
    }
    Ok(tags)
}

fn new_tags(format: &Value) -> Result<Vec<Tag>, Failure> {
    let mut tags = Vec::new();
    for (i, item) in list(format, "tags", "/format")?.iter().enumerate() {
        let at = format!("/format/tags/{i}");
        let content = item.get("content").unwrap_or(&Value::Null);
        let kind = text(content, "type", &format!("{at}/content"))?;
        if kind != "json_schema" {
            return fail(
                &format!("{at}/content/type"),
                format!("'{kind}' is not supported; supported is 'json_schema'"),
            );
        }
        tags.push(Tag {
            begin: text(item, "begin", &at)?.to_string(),
            schema: schema_text(content.get("json_schema"), &format!("{at}/content/json_schema"))?,
            end: text(item, "end", &at)?.to_string(),
        });
    }
    Ok(tags)
}

fn write(tags: &[Tag], triggers: &[&str]) -> Result<String, Failure> {
    let escaped = |text: &str| pattern::literal(text).replace('/', "\\/");
    let mut out = String::from("start: (");
    let names: Vec<_> = (0..triggers.len()).map(|i| format!("after_{i}")).collect();
    out.push_str(&names.join(" | "));
    let any: Vec<_> = triggers.iter().map(|trigger| escaped(trigger)).collect();
    out.push_str(&format!(")* TAIL\nTAIL: /(?s:.*)/ & ~/(?s:.*)(?:{})(?s:.*)/\n", any.join("|")));
    let mut used = vec![false; tags.len()];
    for (i, trigger) in triggers.iter().enumerate() {
        let mut options = Vec::new();
        for (t, tag) in tags.iter().enumerate() {
            if let Some(rest) = tag.begin.strip_prefix(trigger) {
                used[t] = true;
                let rest = if rest.is_empty() { String::new() } else { quote(rest) };
                let end = if tag.end.is_empty() { String::new() } else { quote(&tag.end) };
                options.push(format!("{rest} body_{t} {end}"));
            }
        }
        if options.is_empty() {
            return fail("/triggers", format!("no tag begins with the trigger '{trigger}'"));
        }
        out.push_str(&format!("after_{i}: trigger_{i} ({})\n", options.join(" | ")));
        out.push_str(&format!("trigger_{i}[lazy]: /(?s:.*){}/\n", escaped(trigger)));
    }
    for (t, tag) in tags.iter().enumerate() {
        if !used[t] {
            return fail("/triggers", format!("no trigger starts the tag '{}'", tag.begin));
        }
        out.push_str(&format!("body_{t}: %json {}\n", tag.schema));
    }
    Ok(out)
}
