// SPDX-License-Identifier: Apache-2.0
//! The tokenizer's half of the C ABI. The contract of each function is in src/text/text_rs.h.

use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::ffi::{give, guard, Buffer, Bytes, Failure, Ids};
use crate::tokenizer::TokenizerHandle;
use crate::vocabulary::{build, Vocabulary};

#[repr(C)]
pub struct RawVocabulary {
    model: Bytes,
    pre: Bytes,
    architecture: Bytes,
    tokens: *const Bytes,
    num_tokens: usize,
    scores: *const f32,
    num_scores: usize,
    types: *const i32,
    num_types: usize,
    merges: *const Bytes,
    num_merges: usize,
    bos_id: i32,
    eos_id: i32,
    unk_id: i32,
    add_bos: i32,
    add_eos: i32,
    add_space_prefix: i32,
}

#[repr(C)]
pub struct RawTable {
    bytes: *const u8,
    num_bytes: usize,
    offsets: *const u32,
    flags: *const u8,
    num_tokens: usize,
    leading_spaces: i32,
}

unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

unsafe fn strings<'a>(
    data: *const Bytes,
    size: usize,
    what: &str,
) -> Result<Vec<&'a str>, Failure> {
    slice(data, size).iter().enumerate().map(|(i, s)| s.as_str(&format!("{what} {i}"))).collect()
}

unsafe fn read<'a>(raw: &RawVocabulary) -> Result<Vocabulary<'a>, Failure> {
    let id = |value: i32| u32::try_from(value).ok();
    let flag = |value: i32| (value >= 0).then_some(value != 0);
    Ok(Vocabulary {
        model: raw.model.as_str("tokenizer.ggml.model")?,
        pre: raw.pre.as_str("tokenizer.ggml.pre")?,
        architecture: raw.architecture.as_str("general.architecture")?,
        tokens: strings(raw.tokens, raw.num_tokens, "token")?,
        scores: slice(raw.scores, raw.num_scores),
        types: slice(raw.types, raw.num_types),
        merges: strings(raw.merges, raw.num_merges, "merge")?,
        bos_id: id(raw.bos_id),
        eos_id: id(raw.eos_id),
        unk_id: id(raw.unk_id),
        add_bos: flag(raw.add_bos),
        add_eos: flag(raw.add_eos),
        add_space_prefix: flag(raw.add_space_prefix),
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_tokenizer_from_json(
    json: Bytes,
    out: *mut *mut TokenizerHandle,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        *out = Box::into_raw(Box::new(TokenizerHandle::from_json(json.as_slice())?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_tokenizer_from_vocab(
    vocabulary: *const RawVocabulary,
    out: *mut *mut TokenizerHandle,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        *out = Box::into_raw(Box::new(build(&read(&*vocabulary)?)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_tokenizer_free(tokenizer: *mut TokenizerHandle) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inferd_tokenizer_encode(
    tokenizer: *const TokenizerHandle,
    text: Bytes,
    add_special: i32,
    parse_special: i32,
    out: *mut Ids,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let ids =
            (*tokenizer).encode(text.as_str("the text")?, add_special != 0, parse_special != 0)?;
        give(out, ids);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_tokenizer_token_to_id(
    tokenizer: *const TokenizerHandle,
    token: Bytes,
) -> i32 {
    let look_up = || {
        let token = std::str::from_utf8(token.as_slice()).ok()?;
        (*tokenizer).token_to_id(token).and_then(|id| i32::try_from(id).ok())
    };
    catch_unwind(AssertUnwindSafe(look_up)).ok().flatten().unwrap_or(-1)
}

#[no_mangle]
pub unsafe extern "C" fn inferd_tokenizer_table(
    tokenizer: *const TokenizerHandle,
    out: *mut RawTable,
) {
    let table = &(*tokenizer).table;
    *out = RawTable {
        bytes: table.bytes.as_ptr(),
        num_bytes: table.bytes.len(),
        offsets: table.offsets.as_ptr(),
        flags: table.flags.as_ptr(),
        num_tokens: table.flags.len(),
        leading_spaces: table.leading_spaces,
    };
}
