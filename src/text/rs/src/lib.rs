// SPDX-License-Identifier: Apache-2.0
//! The tokenizer, chat template and grammar libraries behind a small C ABI (see src/text/text_rs.h, which is
//! its contract).

mod ffi;
mod gbnf;
mod grammar;
mod grammar_ffi;
mod pattern;
mod pretokenizers;
mod python_json;
mod schema;
mod schema_oneof;
mod structural_tag;
mod template;
mod template_cycles;
mod template_ffi;
mod template_source;
mod token_table;
mod tokenizer;
mod tokenizer_ffi;
mod vocabulary;
