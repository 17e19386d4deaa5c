// SPDX-License-Identifier: Apache-2.0
//! The grammars' half of the C ABI. The contract of each function is in src/text/text_rs.h.

use crate::ffi::{give, guard, Buffer, Bytes, Failure};
use crate::grammar::{Grammar, GrammarEnv, GrammarMatcher, Kind, RawLimits};
use crate::schema::prepare;
use crate::tokenizer::TokenizerHandle;

#[no_mangle]
pub unsafe extern "C" fn inferd_grammar_env_new(
    tokenizer: *const TokenizerHandle,
    end_tokens: *const u32,
    num_end_tokens: usize,
    out: *mut *mut GrammarEnv,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let ends = if num_end_tokens == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(end_tokens, num_end_tokens)
        };
        *out = Box::into_raw(Box::new(GrammarEnv::new(&*tokenizer, ends)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_grammar_env_free(env: *mut GrammarEnv) {
    if !env.is_null() {
        drop(Box::from_raw(env));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inferd_grammar_compile(
    env: *const GrammarEnv,
    kind: i32,
    source: Bytes,
    limits: *const RawLimits,
    out: *mut *mut Grammar,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let kind = Kind::from_number(kind)
            .ok_or_else(|| Failure::invalid(format!("there is no grammar kind {kind}")))?;
        let grammar = (*env).compile(kind, source.as_str("the grammar")?, &*limits)?;
        *out = Box::into_raw(Box::new(grammar));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        drop(Box::from_raw(grammar));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inferd_grammar_num_bytes(grammar: *const Grammar) -> usize {
    (*grammar).num_bytes
}

#[no_mangle]
pub unsafe extern "C" fn inferd_schema_prepare(
    schema: Bytes,
    pointer: Bytes,
    out: *mut Buffer,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let value = serde_json::from_slice(schema.as_slice())
            .map_err(|e| Failure::invalid(format!("the schema is not valid JSON: {e}")))?;
        let prepared = prepare(&value, pointer.as_str("the pointer")?)?;
        give(out, prepared.schema.to_string().into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_matcher_new(
    grammar: *const Grammar,
    out: *mut *mut GrammarMatcher,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        *out = Box::into_raw(Box::new((*grammar).matcher()?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_matcher_clone(
    matcher: *const GrammarMatcher,
    out: *mut *mut GrammarMatcher,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        *out = Box::into_raw(Box::new((*matcher).deep_clone()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_matcher_free(matcher: *mut GrammarMatcher) {
    if !matcher.is_null() {
        drop(Box::from_raw(matcher));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inferd_matcher_fill_mask(
    matcher: *mut GrammarMatcher,
    words: *mut u32,
    num_words: usize,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        if num_words == 0 {
            return Ok(());
        }
        (*matcher).fill_mask(std::slice::from_raw_parts_mut(words, num_words))
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_matcher_accept(
    matcher: *mut GrammarMatcher,
    token: u32,
    error: *mut Buffer,
) -> i32 {
    guard(error, || (*matcher).accept(token))
}

#[no_mangle]
pub unsafe extern "C" fn inferd_matcher_accept_text(
    matcher: *mut GrammarMatcher,
    text: Bytes,
    error: *mut Buffer,
) -> i32 {
    guard(error, || (*matcher).accept_text(text.as_slice()))
}

#[no_mangle]
pub unsafe extern "C" fn inferd_matcher_is_accepting(
    matcher: *mut GrammarMatcher,
    out: *mut i32,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        *out = i32::from((*matcher).is_accepting()?);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_matcher_is_stopped(matcher: *const GrammarMatcher) -> i32 {
    i32::from((*matcher).is_stopped())
}
