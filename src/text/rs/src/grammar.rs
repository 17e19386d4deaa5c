// SPDX-License-Identifier: Apache-2.0
//! Grammars for constrained decoding: a vocabulary as a trie, grammars compiled against it, and
//! matchers that walk along a generated text.

use std::sync::{Arc, Mutex};

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Logger, Matcher, ParserFactory};
use serde_json::Value;

use crate::ffi::Failure;
use crate::schema::{brief, prepare};
use crate::token_table::SPECIAL;
use crate::tokenizer::TokenizerHandle;
use crate::{gbnf, pattern, structural_tag};

/// The libraries recurse along rules and nested groups, of which MAX_RULES and MAX_NESTING are the
/// bounds, with some ten KiB of stack each.
const COMPILE_STACK_BYTES: usize = 256 << 20;
const MAX_RULES: usize = 5_000;
const MAX_NESTING: usize = 100;
/// The trie stores depths in ten bits.
const MAX_TOKEN_BYTES: usize = 1000;

pub struct GrammarEnv {
    factory: ParserFactory,
    vocab_size: usize,
}

/// As in text_rs.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawLimits {
    pub source_bytes: u64,
    pub initial_fuel: u64,
    pub step_fuel: u64,
    pub step_items: u64,
    pub lexer_states: u64,
    pub grammar_size: u64,
}

pub enum Kind {
    JsonObject,
    JsonSchema,
    Regex,
    Choice,
    Grammar,
    StructuralTag,
}

impl Kind {
    pub fn from_number(number: i32) -> Option<Self> {
        use Kind::*;
        [JsonObject, JsonSchema, Regex, Choice, Grammar, StructuralTag]
            .into_iter()
            .nth(usize::try_from(number).ok()?)
    }
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure { code: crate::ffi::INTERNAL, message: error.to_string() }
}

impl GrammarEnv {
    pub fn new(tokenizer: &TokenizerHandle, end_tokens: &[u32]) -> Result<Self, Failure> {
        let table = &tokenizer.table;
        let vocab_size = table.flags.len();
        let ends: Vec<u32> =
            end_tokens.iter().copied().filter(|id| (*id as usize) < vocab_size).collect();
        if ends.is_empty() {
            return Err(Failure::invalid(
                "the model has no end token, so a grammar could not end its output",
            ));
        }
        let mut words = Vec::with_capacity(vocab_size);
        for id in 0..vocab_size {
            let (begin, end) = (table.offsets[id] as usize, table.offsets[id + 1] as usize);
            let bytes = &table.bytes[begin..end];
            let special = table.flags[id] & SPECIAL != 0 || ends.contains(&(id as u32));
            let mut word = Vec::with_capacity(bytes.len() + 1);
            if bytes.len() <= MAX_TOKEN_BYTES {
                if special && !bytes.is_empty() {
                    word.push(TokTrie::SPECIAL_TOKEN_MARKER);
                }
                word.extend_from_slice(bytes);
            }
            words.push(word);
        }
        let info = TokRxInfo::new(vocab_size as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        // Any spelling of a text in tokens is allowed, so nothing has to be tokenized here.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(internal)?;
        factory.quiet();
        Ok(Self { factory, vocab_size })
    }

    /// On a thread of its own, whose stack is large enough for every source within the limits.
    pub fn compile(
        &self,
        kind: Kind,
        source: &str,
        limits: &RawLimits,
    ) -> Result<Grammar, Failure> {
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(COMPILE_STACK_BYTES)
                .spawn_scoped(scope, || self.compile_here(kind, source, limits))
                .map_err(internal)?
                .join()
                .map_err(|_| {
                    Failure::invalid("the grammar cannot be used: it breaks the compiler")
                })?
        })
    }

    fn compile_here(
        &self,
        kind: Kind,
        source: &str,
        limits: &RawLimits,
    ) -> Result<Grammar, Failure> {
        if source.len() as u64 > limits.source_bytes {
            return Err(Failure::invalid(format!(
                "the grammar has {} bytes; at most {} are taken",
                source.len(),
                limits.source_bytes
            )));
        }
        let (grammar, names) = parse(kind, source)?;
        let parser_limits = ParserLimits {
            initial_lexer_fuel: limits.initial_fuel,
            step_lexer_fuel: limits.step_fuel,
            step_max_items: limits.step_items as usize,
            max_lexer_states: limits.lexer_states as usize,
            max_grammar_size: limits.grammar_size as usize,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let made = self.factory.create_parser_from_init_ext(
            GrammarInit::Serialized(grammar),
            Logger::new(0, 0),
            InferenceCapabilities::default(),
            parser_limits,
        );
        let parser = made.map_err(|e| {
            let mut message = brief(&format!("{e:#}"));
            for (inner, outer) in names.iter().rev() {
                message = message.replace(inner, outer);
            }
            Failure::invalid(format!("the grammar cannot be used: {message}"))
        })?;
        let num_bytes = 4096 + 2 * source.len() + parser.parser.lexer_stats().num_bytes;
        let matcher = Matcher::new(Ok(parser));
        Ok(Grammar { pristine: Mutex::new(matcher), num_bytes, vocab_size: self.vocab_size })
    }
}

fn json(source: &str) -> Result<Value, Failure> {
    serde_json::from_str(source)
        .map_err(|e| Failure::invalid(format!("the grammar is not valid JSON: {e}")))
}

type Parsed = (TopLevelGrammar, Vec<(String, String)>);

fn parse(kind: Kind, source: &str) -> Result<Parsed, Failure> {
    let plain = |grammar| Ok((grammar, Vec::new()));
    match kind {
        Kind::JsonObject => {
            let prepared = prepare(&serde_json::json!({"type": "object"}), "")?;
            plain(TopLevelGrammar::from_json_schema(prepared.schema))
        }
        Kind::JsonSchema => {
            let prepared = prepare(&json(source)?, "")?;
            Ok((TopLevelGrammar::from_json_schema(prepared.schema), prepared.names))
        }
        Kind::Regex => {
            let translated = pattern::translate(source).map_err(|construct| {
                Failure::invalid(format!(
                    "the regex '{source}' has {construct}, which is not supported"
                ))
            })?;
            plain(TopLevelGrammar::from_regex(&translated))
        }
        Kind::Choice => {
            let value = json(source)?;
            let choices: Option<Vec<&str>> = value
                .as_array()
                .filter(|all| !all.is_empty())
                .and_then(|all| all.iter().map(Value::as_str).collect());
            let Some(choices) = choices else {
                return Err(Failure::invalid("choice must be a list of strings with at least one"));
            };
            let options: Vec<_> = choices.into_iter().map(pattern::literal).collect();
            plain(TopLevelGrammar::from_regex(&format!("(?:{})", options.join("|"))))
        }
        Kind::Grammar if gbnf::is_gbnf(source) => {
            plain(TopLevelGrammar::from_lark(gbnf::to_lark(source)?))
        }
        Kind::Grammar => {
            check_lark(source)?;
            plain(TopLevelGrammar::from_lark(source.to_string()))
        }
        Kind::StructuralTag => {
            plain(TopLevelGrammar::from_lark(structural_tag::to_lark(&json(source)?)?))
        }
    }
}

/// Bounds on what the Lark compiler recurses along. Texts and expressions are stepped over.
fn check_lark(source: &str) -> Result<(), Failure> {
    let mut nesting = 0usize;
    let mut rules = 0;
    let mut negations = 0; // in a row
    let bytes = source.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let skipped = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                bytes[at..].iter().position(|b| *b == b'\n')
            }
            quote @ (b'"' | b'/') => end_of_quoted(&bytes[at + 1..], quote).map(|end| end + 1),
            b'(' | b'[' | b'{' => {
                nesting += 1;
                None
            }
            b')' | b']' | b'}' => {
                nesting = nesting.saturating_sub(1);
                None
            }
            b':' => {
                rules += 1;
                None
            }
            _ => None,
        };
        match bytes[at] {
            b'~' => negations += 1,
            b' ' | b'\t' | b'\n' | b'\r' => {}
            _ => negations = 0,
        }
        if nesting > MAX_NESTING || negations > MAX_NESTING {
            return Err(Failure::invalid(format!(
                "grammar: groups are nested more than {MAX_NESTING} deep"
            )));
        }
        at += skipped.unwrap_or(0) + 1;
    }
    if rules > MAX_RULES {
        return Err(Failure::invalid(format!("grammar: it has more than {MAX_RULES} rules")));
    }
    Ok(())
}

/// Where a quoted text ends; None when it does not end on its line.
fn end_of_quoted(bytes: &[u8], quote: u8) -> Option<usize> {
    let mut escaped = false;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' => return None,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return Some(at),
            _ => {}
        }
    }
    None
}

pub struct Grammar {
    pristine: Mutex<Matcher>,
    pub num_bytes: usize,
    vocab_size: usize,
}

impl Grammar {
    pub fn matcher(&self) -> Result<GrammarMatcher, Failure> {
        let pristine = self.pristine.lock().map_err(internal)?;
        // Own caches: what one request makes of a grammar is neither seen nor waited for by others.
        Ok(GrammarMatcher {
            matcher: pristine.deep_clone(),
            vocab_size: self.vocab_size,
            ended: false,
        })
    }
}

pub struct GrammarMatcher {
    matcher: Matcher,
    vocab_size: usize,
    ended: bool,
}

fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::invalid(format!("the grammar cannot go on: {}", brief(&error)))
}

impl GrammarMatcher {
    pub fn deep_clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), vocab_size: self.vocab_size, ended: self.ended }
    }

    /// Bit i of word i / 32 for token i; tokens beyond the vocabulary are never allowed.
    pub fn fill_mask(&mut self, words: &mut [u32]) -> Result<(), Failure> {
        let mask = self.matcher.compute_mask_or_eos().map_err(broken)?;
        let source = mask.as_slice();
        for (i, word) in words.iter_mut().enumerate() {
            *word = source.get(i).copied().unwrap_or(0);
        }
        let tail = self.vocab_size / 32;
        if let Some(word) = words.get_mut(tail) {
            *word &= (1u32 << (self.vocab_size % 32)) - 1;
        }
        for word in words.iter_mut().skip(tail + 1) {
            *word = 0;
        }
        Ok(())
    }

    pub fn accept(&mut self, token: u32) -> Result<(), Failure> {
        if self.ended {
            return Err(Failure::invalid(format!("token {token} comes after the grammar's end")));
        }
        let is_end =
            self.matcher.tok_env().map_err(broken)?.tok_trie().eos_tokens().contains(&token);
        if is_end && self.is_accepting()? {
            self.ended = true;
            return Ok(());
        }
        if self.matcher.is_stopped() {
            return Err(Failure::invalid(format!("token {token} comes after the grammar's end")));
        }
        // Validated first: an error inside would end the matcher.
        match self.matcher.try_consume_tokens(&[token]).map_err(broken)? {
            1 => Ok(()),
            _ => Err(Failure::invalid(format!("token {token} is not allowed by the grammar here"))),
        }
    }

    /// A text, by whatever tokens spell it.
    pub fn accept_text(&mut self, text: &[u8]) -> Result<(), Failure> {
        let env = self.matcher.tok_env().map_err(broken)?;
        let tokens = env.tok_trie().greedy_tokenize(text);
        if env.tok_trie().decode(&tokens) != text {
            return Err(Failure::invalid("the vocabulary cannot spell what follows a marker"));
        }
        tokens.into_iter().try_for_each(|token| self.accept(token))
    }

    pub fn is_accepting(&mut self) -> Result<bool, Failure> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(broken)
    }

    /// No token but an end token can follow.
    pub fn is_stopped(&self) -> bool {
        self.ended || self.matcher.is_stopped()
    }
}
