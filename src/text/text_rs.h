/* SPDX-License-Identifier: Apache-2.0
 * C ABI of the Rust crate in src/text/rs. Included by the .cc files of this room only; everyone
 * else uses the C++ classes. Handles are immutable and may be used by many threads at once, but for
 * matchers; no call
 * throws, aborts on bad input or keeps global state. Calls return 0 or a code of inferd::Code; with
 * a code, *error holds a message to be freed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct inferd_tokenizer inferd_tokenizer;
typedef struct inferd_template inferd_template;
typedef struct inferd_grammar_env inferd_grammar_env;
typedef struct inferd_grammar inferd_grammar;
typedef struct inferd_matcher inferd_matcher;

/* Borrowed bytes; data may be null if size is 0. */
typedef struct {
  const char* data;
  size_t size;
} inferd_bytes;

/* Owned by the crate until inferd_buffer_free; zero it before the first use. */
typedef struct {
  char* data;
  size_t size;
  size_t capacity;
} inferd_buffer;

typedef struct {
  uint32_t* data;
  size_t size;
  size_t capacity;
} inferd_ids;

/* Missing optional ids are -1; missing optional flags are -1, else 0 or 1. */
typedef struct {
  inferd_bytes model;
  inferd_bytes pre;
  inferd_bytes architecture;
  const inferd_bytes* tokens; /* [num_tokens] */
  size_t num_tokens;
  const float* scores; /* [num_scores], 0 or num_tokens */
  size_t num_scores;
  const int32_t* types; /* [num_types], 0 or num_tokens */
  size_t num_types;
  const inferd_bytes* merges; /* [num_merges] */
  size_t num_merges;
  int32_t bos_id;
  int32_t eos_id;
  int32_t unk_id;
  int32_t add_bos;
  int32_t add_eos;
  int32_t add_space_prefix;
} inferd_vocabulary;

/* Views into a tokenizer, valid as long as it lives. */
typedef struct {
  const char* bytes;
  size_t num_bytes;
  const uint32_t* offsets; /* [num_tokens + 1] */
  const uint8_t* flags;    /* [num_tokens]; INFERD_TOKEN_* */
  size_t num_tokens;
  int32_t leading_spaces; /* to strip from the start of a decoded text */
} inferd_token_table;

#define INFERD_TOKEN_SPECIAL 1

void inferd_buffer_free(inferd_buffer* buffer);
void inferd_ids_free(inferd_ids* ids);

int32_t inferd_tokenizer_from_json(inferd_bytes json, inferd_tokenizer** out, inferd_buffer* error);
int32_t inferd_tokenizer_from_vocab(const inferd_vocabulary* vocabulary,
                                    inferd_tokenizer** out,
                                    inferd_buffer* error);
void inferd_tokenizer_free(inferd_tokenizer* tokenizer);
int32_t inferd_tokenizer_encode(const inferd_tokenizer* tokenizer,
                                inferd_bytes text,
                                int32_t add_special,
                                int32_t parse_special,
                                inferd_ids* out,
                                inferd_buffer* error);
/* -1 if there is no such token. */
int32_t inferd_tokenizer_token_to_id(const inferd_tokenizer* tokenizer, inferd_bytes token);
void inferd_tokenizer_table(const inferd_tokenizer* tokenizer, inferd_token_table* out);

/* `specials_json`: object of variables that are always defined ("bos_token": "<s>", ...). */
int32_t inferd_template_compile(inferd_bytes source,
                                inferd_bytes specials_json,
                                inferd_template** out,
                                inferd_buffer* error);
void inferd_template_free(inferd_template* handle);
/* `now_s` < 0 is the system's clock. `kwargs_json` may be empty. */
int32_t inferd_template_render(const inferd_template* handle,
                               inferd_bytes variables_json,
                               inferd_bytes kwargs_json,
                               int64_t now_s,
                               inferd_buffer* out,
                               inferd_buffer* error);
int32_t inferd_template_mentions(const inferd_template* handle, inferd_bytes variable);

/* Limits of one grammar: its text, the work of compiling it, and the work of one mask. */
typedef struct {
  uint64_t source_bytes;
  uint64_t initial_fuel;
  uint64_t step_fuel;
  uint64_t step_items;
  uint64_t lexer_states;
  uint64_t grammar_size;
} inferd_grammar_limits;

/* A vocabulary as a trie, with the tokens that end an output. Copies what it needs of the
 * tokenizer. */
int32_t inferd_grammar_env_new(const inferd_tokenizer* tokenizer,
                               const uint32_t* end_tokens,
                               size_t num_end_tokens,
                               inferd_grammar_env** out,
                               inferd_buffer* error);
void inferd_grammar_env_free(inferd_grammar_env* env);
/* `kind`: the number of inferd::text::GrammarKind. */
int32_t inferd_grammar_compile(const inferd_grammar_env* env,
                               int32_t kind,
                               inferd_bytes source,
                               const inferd_grammar_limits* limits,
                               inferd_grammar** out,
                               inferd_buffer* error);
void inferd_grammar_free(inferd_grammar* grammar);
size_t inferd_grammar_num_bytes(const inferd_grammar* grammar);
int32_t inferd_schema_prepare(inferd_bytes schema,
                              inferd_bytes pointer,
                              inferd_buffer* out,
                              inferd_buffer* error);

/* A matcher is not shared: one thread at a time. */
int32_t inferd_matcher_new(const inferd_grammar* grammar,
                           inferd_matcher** out,
                           inferd_buffer* error);
int32_t inferd_matcher_clone(const inferd_matcher* matcher,
                             inferd_matcher** out,
                             inferd_buffer* error);
void inferd_matcher_free(inferd_matcher* matcher);
int32_t inferd_matcher_fill_mask(inferd_matcher* matcher,
                                 uint32_t* words, /* [num_words]; bit i % 32 of word i / 32 */
                                 size_t num_words,
                                 inferd_buffer* error);
int32_t inferd_matcher_accept(inferd_matcher* matcher, uint32_t token, inferd_buffer* error);
int32_t inferd_matcher_accept_text(inferd_matcher* matcher,
                                   inferd_bytes text,
                                   inferd_buffer* error);
int32_t inferd_matcher_is_accepting(inferd_matcher* matcher, int32_t* out, inferd_buffer* error);
int32_t inferd_matcher_is_stopped(const inferd_matcher* matcher);

#ifdef __cplusplus
}
#endif
