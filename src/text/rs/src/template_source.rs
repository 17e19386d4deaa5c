// SPDX-License-Identifier: Apache-2.0
//! What is done to a chat template's source before it is compiled: the `generation` tag that
//! transformers adds to Jinja is rewritten; names with double underscores and namespaces in namespaces are refused.

use crate::ffi::Failure;
use crate::template_cycles::refuse_nested_namespaces;

/// Byte ranges of the `{{ ... }}` and `{% ... %}` parts, without comments and raw blocks.
fn code_ranges(source: &str) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    let mut raw = false;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        let close = match source.as_bytes().get(start + 1) {
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            Some(b'#') => "#}",
            _ => {
                at = start + 1;
                continue;
            }
        };
        let Some(end) = end_of_code(source, start + 2, close) else {
            break;
        };
        let inner = source[start + 2..end]
            .trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        if close == "%}" && (inner == "raw" || inner == "endraw") {
            raw = inner == "raw";
        } else if !raw && close != "#}" {
            ranges.push((start, end + 2));
        }
        at = if raw && close != "%}" { start + 1 } else { end + 2 };
    }
    ranges
}

/// Where `close` begins, looking past string literals (comments have none).
fn end_of_code(source: &str, from: usize, close: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut quote = None;
    let mut at = from;
    while at < bytes.len() {
        match quote {
            Some(_) if bytes[at] == b'\\' => at += 1,
            Some(q) if bytes[at] == q => quote = None,
            Some(_) => {}
            None if bytes[at..].starts_with(close.as_bytes()) => return Some(at),
            None if close != "#}" && matches!(bytes[at], b'\'' | b'"') => quote = Some(bytes[at]),
            None => {}
        }
        at += 1;
    }
    None
}

/// The first `__name__` in a piece of template code, whether attribute, name or string literal.
fn dunder(code: &str) -> Option<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c| !is_word(c)).find(|w| w.len() > 4 && w.starts_with("__") && w.ends_with("__"))
}

/// `{% generation %}` marks the assistant's own text for training; for rendering it is an empty
/// scope.
fn without_generation(code: &str) -> Option<String> {
    let inner = code.strip_prefix("{%")?.strip_suffix("%}")?;
    let word = inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
    let tag = match word {
        "generation" => "with",
        "endgeneration" => "endwith",
        _ => return None,
    };
    Some(code.replace(word, tag))
}

pub fn prepare(source: &str) -> Result<String, Failure> {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let ranges = code_ranges(source);
    let codes: Vec<&str> = ranges.iter().map(|(start, end)| &source[start + 2..end - 2]).collect();
    refuse_nested_namespaces(&codes)?;
    for (start, end) in ranges {
        let code = &source[start..end];
        if let Some(name) = dunder(code) {
            let line = source[..start].matches('\n').count() + 1;
            return Err(Failure::invalid(format!(
                "the chat template reaches for '{name}' near line {line}; names with double underscores are not allowed"
            )));
        }
        if let Some(tag) = without_generation(code) {
            out.push_str(&source[copied..start]);
            out.push_str(&tag);
            copied = end;
        }
    }
    out.push_str(&source[copied..]);
    Ok(out)
}
