// SPDX-License-Identifier: Apache-2.0
//! The tokenizer and chat template libraries behind a small C ABI (see src/text/text_rs.h, which is
//! its contract).

mod ffi;
mod pretokenizers;
mod python_json;
mod template;
mod template_ffi;
mod template_source;
mod token_table;
mod tokenizer;
mod tokenizer_ffi;
mod vocabulary;
