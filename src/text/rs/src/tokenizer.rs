// SPDX-License-Identifier: Apache-2.0
//! One tokenizer with its byte table: encoding with special tokens read or spelt, and what the
//! model wants around a text.

use std::sync::OnceLock;

use tokenizers::Tokenizer;

use crate::ffi::Failure;
use crate::token_table::{table_of, TokenTable};

pub struct TokenizerHandle {
    tokenizer: Tokenizer,
    /// The same tokenizer, treating special tokens in the text as text; made when first asked for.
    plain: OnceLock<Tokenizer>,
    pub table: TokenTable,
    /// Added around a text on top of the tokenizer's own post-processor (which vocabularies from
    /// GGUF do not have).
    prefix: Option<u32>,
    suffix: Option<u32>,
}

impl TokenizerHandle {
    pub fn new(
        tokenizer: Tokenizer,
        table: TokenTable,
        prefix: Option<u32>,
        suffix: Option<u32>,
    ) -> Self {
        Self { tokenizer, plain: OnceLock::new(), table, prefix, suffix }
    }

    pub fn from_json(json: &[u8]) -> Result<Self, Failure> {
        let mut tokenizer = Tokenizer::from_bytes(json)
            .map_err(|e| Failure::invalid(format!("tokenizer.json cannot be read: {e}")))?;
        // Left over from training in some published files; a server must neither cut nor fill
        // prompts.
        tokenizer
            .with_truncation(None)
            .map_err(|e| Failure::invalid(format!("tokenizer.json: truncation: {e}")))?
            .with_padding(None);
        let table = table_of(&tokenizer)?;
        Ok(Self::new(tokenizer, table, None, None))
    }

    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Failure> {
        let tokenizer = if parse_special {
            &self.tokenizer
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.tokenizer.clone();
                plain.set_encode_special_tokens(true);
                plain
            })
        };
        let encoding = tokenizer
            .encode_fast(text, add_special)
            .map_err(|e| Failure::invalid(format!("the text cannot be tokenized: {e}")))?;
        let ids = encoding.get_ids();
        let mut out = Vec::with_capacity(ids.len() + 2);
        if add_special {
            out.extend(self.prefix);
        }
        out.extend_from_slice(ids);
        if add_special {
            out.extend(self.suffix);
        }
        Ok(out)
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }
}
