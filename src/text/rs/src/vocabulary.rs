// SPDX-License-Identifier: Apache-2.0
//! Builds a tokenizer from the vocabulary arrays of a GGUF file: byte-level BPE ("gpt2") or
//! SentencePiece BPE ("llama").

use ahash::AHashMap;
use tokenizers::models::bpe::{Merges, BPE};
use tokenizers::normalizers::{
    replace::Replace, unicode::NFC, Prepend, Sequence as NormalizerSequence,
};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, NormalizerWrapper, SplitDelimiterBehavior, Tokenizer};

use crate::ffi::Failure;
use crate::pretokenizers::{rule_for, KNOWN};
use crate::token_table::{ByteAlphabet, TokenTable, MAX_VOCABULARY, SPECIAL};
use crate::tokenizer::TokenizerHandle;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

const MAX_VOCABULARY_BYTES: usize = 1 << 30;

/// The SentencePiece space.
const SPACE: &str = "\u{2581}";

/// What the file says; missing keys are None or empty.
pub struct Vocabulary<'a> {
    pub model: &'a str,
    pub pre: &'a str,
    pub architecture: &'a str,
    pub tokens: Vec<&'a str>,
    pub scores: &'a [f32],
    pub types: &'a [i32],
    pub merges: Vec<&'a str>,
    pub bos_id: Option<u32>,
    pub eos_id: Option<u32>,
    pub unk_id: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

impl Vocabulary<'_> {
    fn kind(&self, id: usize) -> i32 {
        // Marking BOS and EOS as ordinary tokens is a known fault of converters.
        if Some(id as u32) == self.bos_id || Some(id as u32) == self.eos_id {
            return CONTROL;
        }
        self.types.get(id).copied().unwrap_or(NORMAL)
    }

    fn check(&self) -> Result<(), Failure> {
        let n = self.tokens.len();
        if n == 0 || n > MAX_VOCABULARY {
            return Err(Failure::invalid(format!(
                "the vocabulary has {n} tokens; 1 to {MAX_VOCABULARY} are supported"
            )));
        }
        let bytes: usize = self.tokens.iter().map(|token| token.len()).sum();
        if bytes > MAX_VOCABULARY_BYTES {
            return Err(Failure::invalid(format!(
                "the vocabulary's tokens have {bytes} bytes; the limit is {MAX_VOCABULARY_BYTES}"
            )));
        }
        for (name, len) in [("scores", self.scores.len()), ("token_type", self.types.len())] {
            if len != 0 && len != n {
                return Err(Failure::invalid(format!(
                    "tokenizer.ggml.{name} has {len} entries for {n} tokens"
                )));
            }
        }
        for (name, id) in [("bos", self.bos_id), ("eos", self.eos_id), ("unknown", self.unk_id)] {
            if let Some(id) = id.filter(|&id| id as usize >= n) {
                return Err(Failure::invalid(format!(
                    "tokenizer.ggml.{name}_token_id is {id}, but there are only {n} tokens"
                )));
            }
        }
        Ok(())
    }

    /// A token's spelling in the text: user-defined tokens are matched against text with plain
    /// spaces.
    fn spelling(&self, id: usize, sentence_piece: bool) -> String {
        if sentence_piece && self.kind(id) == USER_DEFINED {
            self.tokens[id].replace(SPACE, " ")
        } else {
            self.tokens[id].to_string()
        }
    }

    /// Spelling -> id of everything that text can become; the first of equal spellings wins.
    fn map(&self, sentence_piece: bool) -> AHashMap<String, u32> {
        let mut map = AHashMap::with_capacity(self.tokens.len());
        for id in (0..self.tokens.len()).filter(|&id| self.kind(id) != UNUSED) {
            map.entry(self.spelling(id, sentence_piece)).or_insert(id as u32);
        }
        map
    }

    /// Control and user-defined tokens, which are cut out of the text before anything else.
    ///
    /// Runs of spaces are found in the normalised text, as SentencePiece does, so that a literal
    /// U+2581 counts as a space.
    fn added_tokens(
        &self,
        spaces_normalised: bool,
        sentence_piece: bool,
        map: &AHashMap<String, u32>,
    ) -> Vec<AddedToken> {
        // Phi-3's special tokens swallow the white space behind them; its GGUF files have no field
        // to say so.
        let phi3 = sentence_piece && self.architecture == "phi3";
        (0..self.tokens.len())
            .filter_map(|id| {
                let special = match self.kind(id) {
                    CONTROL | UNKNOWN => true,
                    USER_DEFINED => false,
                    _ => return None,
                };
                let content = self.spelling(id, sentence_piece);
                if content.is_empty() || map.get(&content) != Some(&(id as u32)) {
                    return None;
                }
                let rstrip = phi3
                    && special
                    && !matches!(content.as_str(), "<unk>" | "<s>" | "<|endoftext|>");
                let normalised = spaces_normalised && !special && content.contains(' ');
                Some(AddedToken::from(content, special).normalized(normalised).rstrip(rstrip))
            })
            .collect()
    }
}

pub fn build(vocabulary: &Vocabulary) -> Result<TokenizerHandle, Failure> {
    vocabulary.check()?;
    match vocabulary.model {
        "gpt2" => build_byte_level(vocabulary),
        "llama" => build_sentence_piece(vocabulary),
        other => Err(Failure::unimplemented(format!(
            "the file's tokenizer model is '{other}'; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)"
        ))),
    }
}

fn fault(e: impl std::fmt::Display) -> Failure {
    Failure::invalid(format!("the vocabulary cannot be used: {e}"))
}

fn build_byte_level(vocabulary: &Vocabulary) -> Result<TokenizerHandle, Failure> {
    let rule = rule_for(vocabulary.pre, vocabulary.architecture).ok_or_else(|| {
        Failure::unimplemented(format!(
            "the file's splitting rule (tokenizer.ggml.pre) '{}' is not known; known are {KNOWN}",
            vocabulary.pre
        ))
    })?;
    if vocabulary.merges.is_empty() {
        return Err(Failure::invalid(
            "tokenizer.ggml.merges is missing; a 'gpt2' vocabulary needs it",
        ));
    }
    let mut merges: Merges = Vec::with_capacity(vocabulary.merges.len());
    for (index, merge) in vocabulary.merges.iter().enumerate() {
        // The left part is never empty, but may itself be a space.
        let cut = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let Some((left, right)) = cut.map(|at| (&merge[..at], &merge[at + 1..])) else {
            return Err(Failure::invalid(format!(
                "merge {index} ('{merge}') is not two parts with a space between"
            )));
        };
        merges.push((left.to_string(), right.to_string()));
    }
    let map = vocabulary.map(false);
    let added = vocabulary.added_tokens(false, false, &map);
    let model = BPE::builder()
        .vocab_and_merges(map, merges)
        .ignore_merges(rule.ignore_merges)
        .build()
        .map_err(fault)?;
    let mut tokenizer = Tokenizer::new(model);
    if rule.nfc {
        tokenizer.with_normalizer(Some(NFC)).map_err(fault)?;
    }
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for expression in rule.splits {
        let pattern = SplitPattern::Regex(expression.to_string());
        steps.push(
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(fault)?.into(),
        );
    }
    steps.push(ByteLevel::new(false, false, false).into());
    tokenizer.with_pre_tokenizer(Some(PreTokenizerSequence::new(steps)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer.add_tokens(added).map_err(fault)?;

    let alphabet = ByteAlphabet::new();
    let mut table = TokenTable::with_capacity(vocabulary.tokens.len());
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        match vocabulary.kind(id) {
            CONTROL | UNKNOWN => table.push(token.as_bytes(), SPECIAL),
            USER_DEFINED => table.push(token.as_bytes(), 0),
            UNUSED => table.push(b"", 0),
            _ => table.push(&alphabet.bytes(token).unwrap_or_else(|| token.as_bytes().to_vec()), 0),
        }
    }
    Ok(finish(vocabulary, tokenizer, table, rule.add_bos))
}

fn build_sentence_piece(vocabulary: &Vocabulary) -> Result<TokenizerHandle, Failure> {
    if vocabulary.scores.is_empty() {
        return Err(Failure::invalid(
            "tokenizer.ggml.scores is missing; a 'llama' vocabulary needs it",
        ));
    }
    let prefix_space =
        vocabulary.add_space_prefix.unwrap_or(!vocabulary.architecture.starts_with("gemma"));
    let map = vocabulary.map(true);
    let merges = merges_from_scores(vocabulary, &map);
    let added = vocabulary.added_tokens(!prefix_space, true, &map);
    let mut builder =
        BPE::builder().vocab_and_merges(map, merges).fuse_unk(true).byte_fallback(true);
    if let Some(id) = vocabulary.unk_id {
        builder = builder.unk_token(vocabulary.spelling(id as usize, true));
    }
    let mut tokenizer = Tokenizer::new(builder.build().map_err(fault)?);
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if prefix_space {
        steps.push(Prepend::new(SPACE.to_string()).into());
    }
    steps.push(Replace::new(" ", SPACE).map_err(fault)?.into());
    tokenizer.with_normalizer(Some(NormalizerSequence::new(steps))).map_err(fault)?;
    tokenizer.add_tokens(added).map_err(fault)?;

    let mut table = TokenTable::with_capacity(vocabulary.tokens.len());
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        match vocabulary.kind(id) {
            CONTROL | UNKNOWN => table.push(token.as_bytes(), SPECIAL),
            USER_DEFINED => table.push(vocabulary.spelling(id, true).as_bytes(), 0),
            UNUSED => table.push(b"", 0),
            BYTE => table.push(&[byte_of(id, token)?], 0),
            _ => table.push(token.replace(SPACE, " ").as_bytes(), 0),
        }
    }
    table.leading_spaces = i32::from(prefix_space);
    Ok(finish(vocabulary, tokenizer, table, true))
}

/// A byte token's value: `<0x0A>`, with or without something behind the bracket that makes copies
/// distinct.
fn byte_of(id: usize, token: &str) -> Result<u8, Failure> {
    token.get(..6).and_then(crate::token_table::byte_token).ok_or_else(|| {
        Failure::invalid(format!(
            "token {id} ('{token}') is typed as a byte but not spelt like '<0x0A>'"
        ))
    })
}

/// SentencePiece joins the neighbours whose union has the best score. As ranked merges: every way
/// to cut a token into two tokens, best unions first; among the cuts of one token, the one with the
/// better parts first.
fn merges_from_scores(vocabulary: &Vocabulary, map: &AHashMap<String, u32>) -> Merges {
    let score = |id: u32| vocabulary.scores[id as usize];
    let normal =
        |part: &str| map.get(part).copied().filter(|&id| vocabulary.kind(id as usize) == NORMAL);
    let mut all: Vec<(f32, &str, &str)> = Vec::new();
    let mut cuts: Vec<(f32, f32, &str, &str)> = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        if normal(token) != Some(id as u32) {
            continue;
        }
        cuts.clear();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (normal(left), normal(right)) {
                cuts.push((score(l), score(r), left, right));
            }
        }
        cuts.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
        all.extend(cuts.iter().map(|&(_, _, left, right)| (score(id as u32), left, right)));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().map(|(_, left, right)| (left.to_string(), right.to_string())).collect()
}

fn finish(
    vocabulary: &Vocabulary,
    tokenizer: Tokenizer,
    table: TokenTable,
    add_bos: bool,
) -> TokenizerHandle {
    let prefix = vocabulary.bos_id.filter(|_| vocabulary.add_bos.unwrap_or(add_bos));
    let suffix = vocabulary.eos_id.filter(|_| vocabulary.add_eos.unwrap_or(false));
    TokenizerHandle::new(tokenizer, table, prefix, suffix)
}
