// SPDX-License-Identifier: Apache-2.0
//! A compiled chat template: Jinja with the settings, filters and functions that transformers gives
//! its templates, and limits on what one rendering may do.

use std::fmt;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use serde_json::{Map, Value as Json};

use crate::ffi::Failure;
use crate::python_json::{dumps, python_str, Style};
use crate::template_source::prepare;

const NAME: &str = "chat_template";
const FUEL: u64 = 1_000_000;
const MAX_OUTPUT: usize = 4 << 20;
const MAX_SOURCE: usize = 1 << 20;

/// Variables that only the server sets; a client's chat_template_kwargs may not name them.
const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "dict",
    "loop",
    "self",
    "caller",
    "cycler",
    "joiner",
    "lipsum",
    "true",
    "false",
    "none",
    "True",
    "False",
    "None",
];

/// The text that a template gave to raise_exception.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub struct TemplateHandle {
    environment: Environment<'static>,
    specials: Map<String, Json>,
}

/// Key order is kept. serde_json has bounded the depth.
fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => items.iter().map(to_value).collect::<Vec<_>>().into(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), to_value(v)))),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() || v.is_undefined() => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_string(),
            // Python takes True for 1 and a negative count for none.
            None if v.kind() == ValueKind::Bool => " ".repeat(usize::from(v.is_true())),
            None => " ".repeat(i64::try_from(v)?.clamp(0, 64) as usize),
        }),
    };
    let mut style = Style::new(indent);
    style.ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(separators) = kwargs.get::<Option<Value>>("separators")?.filter(|v| !v.is_none()) {
        let pair: Vec<String> = separators.try_iter()?.map(|v| v.to_string()).collect();
        let [item, key] = pair.as_slice() else {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators must be a pair of strings",
            ));
        };
        style.item_separator = item.clone();
        style.key_separator = key.clone();
    }
    kwargs.assert_all_used()?;
    dumps(value, &style).map(Value::from)
}

/// Python's idea of a sequence includes strings and mappings; its idea of an iterable excludes
/// None.
fn is_sequence(value: &Value) -> bool {
    value.is_undefined()
        || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.kind() != ValueKind::Plain && value.try_iter().is_ok()
}

fn strftime_now(now_s: i64, format: &str) -> Result<Value, Error> {
    let fail =
        |what: &str| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {what}"));
    let pattern =
        std::ffi::CString::new(format).map_err(|_| fail("the format holds a zero byte"))?;
    if format.is_empty() {
        return Ok(Value::from(""));
    }
    if format.len() > 256 {
        return Err(fail("the format is longer than 256 bytes"));
    }
    let time = libc::time_t::from(now_s);
    let mut buffer = vec![0u8; 4096];
    // SAFETY: both calls write only into what is handed to them, within its size.
    let written = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&time, &mut parts).is_null() {
            return Err(fail("the time cannot be represented"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), pattern.as_ptr(), &parts)
    };
    buffer.truncate(written);
    String::from_utf8(buffer).map(Value::from).map_err(|_| fail("the result is not UTF-8"))
}

/// Numbers and containers print as in Python.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            out.write_str(&python_str(value)).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

fn string(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => Value::from(python_str(value)),
        _ => Value::from(value.to_string()),
    }
}

fn new_environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(print);
    environment.set_fuel(Some(FUEL));
    environment.set_debug(true);
    environment.remove_global("debug");
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", string);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    Ok(environment)
}

/// One line without source excerpts: they may hold prompt text.
fn describe(error: &Error) -> String {
    let mut text = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        text += &format!(" (line {line} of the chat template)");
    }
    text
}

/// Looks for `T` among an error and what caused it.
fn cause<'a, T: std::error::Error + 'static>(error: &'a Error) -> Option<&'a T> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = next {
        if let Some(found) = current.downcast_ref::<T>() {
            return Some(found);
        }
        next = current.source();
    }
    None
}

struct BoundedOutput {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + data.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn object(json: &[u8], what: &str) -> Result<Map<String, Json>, Failure> {
    match serde_json::from_slice(json) {
        Ok(Json::Object(map)) => Ok(map),
        Ok(_) => Err(Failure::invalid(format!("{what} must be a JSON object"))),
        Err(e) => Err(Failure::invalid(format!("{what} is not valid JSON: {e}"))),
    }
}

impl TemplateHandle {
    pub fn compile(source: &str, specials_json: &[u8]) -> Result<Self, Failure> {
        if source.len() > MAX_SOURCE {
            return Err(Failure::invalid(format!(
                "the chat template has {} bytes; the limit is {MAX_SOURCE}",
                source.len()
            )));
        }
        let refuse = |e: Error| {
            Failure::invalid(format!("the chat template does not compile: {}", describe(&e)))
        };
        let mut environment = new_environment().map_err(refuse)?;
        environment.add_template_owned(NAME, prepare(source)?).map_err(refuse)?;
        Ok(Self { environment, specials: object(specials_json, "the special tokens")? })
    }

    fn context(
        &self,
        variables_json: &[u8],
        kwargs_json: &[u8],
    ) -> Result<Map<String, Json>, Failure> {
        let mut context = Map::new();
        // transformers always passes these three, if only as None.
        context.insert("tools".to_string(), Json::Null);
        context.insert("documents".to_string(), Json::Null);
        context.insert("add_generation_prompt".to_string(), Json::Bool(false));
        context.extend(self.specials.clone());
        if !kwargs_json.is_empty() {
            let kwargs = object(kwargs_json, "chat_template_kwargs")?;
            if let Some(name) = kwargs.keys().find(|name| RESERVED.contains(&name.as_str())) {
                return Err(Failure::invalid(format!(
                    "chat_template_kwargs may not set '{name}'; the server sets it itself"
                )));
            }
            context.extend(kwargs);
        }
        context.extend(object(variables_json, "the template's variables")?);
        Ok(context)
    }

    pub fn render(
        &self,
        variables_json: &[u8],
        kwargs_json: &[u8],
        now_s: i64,
    ) -> Result<Vec<u8>, Failure> {
        let context = self.context(variables_json, kwargs_json)?;
        let mut values: Vec<(String, Value)> =
            context.iter().map(|(name, value)| (name.clone(), to_value(value))).collect();
        let clock = Value::from_function(move |format: String| strftime_now(now_s, &format));
        values.push(("strftime_now".to_string(), clock));
        let context = Value::from_pairs(values);

        let fault =
            |e: Error| Failure::invalid(format!("the chat template failed: {}", describe(&e)));
        let template = self.environment.get_template(NAME).map_err(fault)?;
        let mut output = BoundedOutput { bytes: Vec::new(), full: false };
        let result = template.render_captured_to(context, &mut output).map(|_| ());
        match result {
            Ok(()) => Ok(output.bytes),
            Err(_) if output.full => Err(Failure::exhausted(format!(
                "the chat template's output is longer than {MAX_OUTPUT} bytes"
            ))),
            Err(e) if e.kind() == ErrorKind::OutOfFuel => {
                Err(Failure::exhausted(format!("the chat template took more than {FUEL} steps")))
            }
            Err(e) => Err(match cause::<Raised>(&e) {
                Some(raised) => Failure::invalid(raised.0.clone()),
                None => fault(e),
            }),
        }
    }

    pub fn mentions(&self, variable: &str) -> bool {
        self.environment
            .get_template(NAME)
            .is_ok_and(|t| t.undeclared_variables(false).contains(variable))
    }
}
