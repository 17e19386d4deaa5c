// SPDX-License-Identifier: Apache-2.0
//! Token id -> the bytes it stands for, so that text can be put together token by token. Made by
//! running a tokenizer's decoder over each token alone; decoders whose steps look at neighbouring
//! tokens are refused.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Decoder, Tokenizer};

use crate::ffi::Failure;

pub const SPECIAL: u8 = 1;

/// Bytes of all tokens in a row.
pub struct TokenTable {
    pub bytes: Vec<u8>,
    pub offsets: Vec<u32>,
    pub flags: Vec<u8>,
    pub leading_spaces: i32,
}

impl TokenTable {
    pub fn with_capacity(num_tokens: usize) -> Self {
        let mut offsets = Vec::with_capacity(num_tokens + 1);
        offsets.push(0);
        Self {
            bytes: Vec::with_capacity(num_tokens * 8),
            offsets,
            flags: Vec::with_capacity(num_tokens),
            leading_spaces: 0,
        }
    }

    pub fn push(&mut self, bytes: &[u8], flags: u8) {
        self.bytes.extend_from_slice(bytes);
        self.offsets.push(self.bytes.len() as u32);
        self.flags.push(flags);
    }
}

/// GPT-2's printable stand-ins for bytes, turned around.
pub struct ByteAlphabet(HashMap<char, u8>);

impl ByteAlphabet {
    pub fn new() -> Self {
        let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let mut next = 256u32;
        let mut map = HashMap::with_capacity(256);
        for b in 0..=255u8 {
            let code = if printable(b) {
                u32::from(b)
            } else {
                next += 1;
                next - 1
            };
            map.insert(char::from_u32(code).expect("below the surrogates"), b);
        }
        Self(map)
    }

    /// None if the token has a character that stands for no byte.
    pub fn bytes(&self, token: &str) -> Option<Vec<u8>> {
        token.chars().map(|c| self.0.get(&c).copied()).collect()
    }
}

/// `<0x0A>` -> 10; spellings with something after the bracket count too (see the caller).
pub fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?;
    if hex.len() == 3 && hex.ends_with('>') {
        u8::from_str_radix(&hex[..2], 16).ok()
    } else {
        None
    }
}

enum Step {
    Replace(DecoderWrapper),
    /// The SentencePiece space.
    Metaspace(String),
}

/// A decoder's steps as far as they act on single tokens.
struct Plan {
    byte_level: bool,
    byte_fallback: bool,
    steps: Vec<Step>,
    leading_spaces: i32,
}

fn refuse<T>(what: &str) -> Result<T, Failure> {
    Err(Failure::unimplemented(format!(
        "the tokenizer's decoder has {what}, which cannot be applied token by token; supported are ByteLevel, ByteFallback, \
         Metaspace, Replace, Fuse and a Strip of leading spaces"
    )))
}

fn add_step(
    decoder: &DecoderWrapper,
    json: &Value,
    fused: &mut bool,
    plan: &mut Plan,
) -> Result<(), Failure> {
    match json["type"].as_str().unwrap_or_default() {
        "ByteLevel" => plan.byte_level = true,
        "ByteFallback" => plan.byte_fallback = true,
        "Fuse" => *fused = true,
        "Metaspace" => {
            plan.steps.push(Step::Metaspace(
                json["replacement"].as_str().unwrap_or("\u{2581}").to_string(),
            ));
            if json["prepend_scheme"].as_str() != Some("never") {
                plan.leading_spaces = 1;
            }
        }
        "Replace" => {
            // After fusing, a pattern may span tokens, unless it is one character.
            let literal = json["pattern"]["String"].as_str();
            if *fused && literal.map_or(true, |s| s.chars().count() != 1) {
                return refuse("a Replace of several characters after Fuse");
            }
            plan.steps.push(Step::Replace(decoder.clone()));
        }
        "Strip" => {
            let (start, stop) =
                (json["start"].as_i64().unwrap_or(0), json["stop"].as_i64().unwrap_or(0));
            if json["content"].as_str() != Some(" ") || stop != 0 || !*fused {
                return refuse("a Strip other than of leading spaces after Fuse");
            }
            plan.leading_spaces = start.clamp(0, 16) as i32;
        }
        other => return refuse(&format!("a step of type '{other}'")),
    }
    Ok(())
}

fn plan_for(tokenizer: &Tokenizer) -> Result<Plan, Failure> {
    let mut plan =
        Plan { byte_level: false, byte_fallback: false, steps: Vec::new(), leading_spaces: 0 };
    let Some(decoder) = tokenizer.get_decoder() else {
        return refuse("no steps at all (tokens are joined by spaces)");
    };
    let json_of = |d: &DecoderWrapper| {
        serde_json::to_value(d)
            .map_err(|e| Failure::invalid(format!("the tokenizer's decoder cannot be read: {e}")))
    };
    let mut fused = false;
    if let DecoderWrapper::Sequence(sequence) = decoder {
        for step in sequence.get_decoders() {
            add_step(step, &json_of(step)?, &mut fused, &mut plan)?;
        }
    } else {
        add_step(decoder, &json_of(decoder)?, &mut fused, &mut plan)?;
    }
    Ok(plan)
}

fn apply(plan: &Plan, alphabet: &ByteAlphabet, token: &str) -> Result<Vec<u8>, Failure> {
    let mut text = token.to_string();
    for step in &plan.steps {
        text = match step {
            Step::Metaspace(replacement) => text.replace(replacement.as_str(), " "),
            Step::Replace(decoder) => decoder
                .decode_chain(vec![text])
                .map_err(|e| {
                    Failure::invalid(format!("the decoder fails for token '{token}': {e}"))
                })?
                .concat(),
        };
    }
    if plan.byte_fallback {
        if let Some(byte) = byte_token(&text) {
            return Ok(vec![byte]);
        }
    }
    if plan.byte_level {
        if let Some(bytes) = alphabet.bytes(&text) {
            return Ok(bytes);
        }
    }
    Ok(text.into_bytes())
}

/// The table of a tokenizer read from a tokenizer.json.
pub fn table_of(tokenizer: &Tokenizer) -> Result<TokenTable, Failure> {
    let plan = plan_for(tokenizer)?;
    let alphabet = ByteAlphabet::new();
    let added = tokenizer.get_added_tokens_decoder();
    let mut spelling: Vec<Option<String>> = Vec::new();
    for (token, id) in tokenizer.get_vocab(true) {
        let index = id as usize;
        // A hostile file may name any 32-bit id; real vocabularies stay far below.
        if index >= MAX_VOCABULARY {
            return Err(Failure::invalid(format!(
                "token '{token}' has id {id}; at most {MAX_VOCABULARY} tokens are supported"
            )));
        }
        if index >= spelling.len() {
            spelling.resize(index + 1, None);
        }
        spelling[index] = Some(token);
    }
    let mut table = TokenTable::with_capacity(spelling.len());
    for (id, token) in spelling.iter().enumerate() {
        match (added.get(&(id as u32)), token) {
            (Some(added), _) if added.special => table.push(added.content.as_bytes(), SPECIAL),
            (Some(added), _) if plan.byte_level => table.push(added.content.as_bytes(), 0),
            (Some(added), _) => table.push(&apply(&plan, &alphabet, &added.content)?, 0),
            (None, Some(token)) => table.push(&apply(&plan, &alphabet, token)?, 0),
            (None, None) => table.push(b"", 0),
        }
    }
    table.leading_spaces = plan.leading_spaces;
    Ok(table)
}

pub const MAX_VOCABULARY: usize = 4 << 20;
