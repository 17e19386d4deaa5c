/* SPDX-License-Identifier: Apache-2.0
 * C ABI of the Rust crate in src/text/rs. Included by the .cc files of this room only; everyone
 * else uses the C++ classes. Handles are immutable and may be used by many threads at once; no call
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

#ifdef __cplusplus
}
#endif
