// SPDX-License-Identifier: Apache-2.0
// What goes into the engine (SequenceRequest) and what comes out (TokenEvent). A client's request
// with n choices is n sequences; the leader splits it and joins the answers.
#pragma once

#include "engine/prefix_hasher.h"
#include "inferd/result.h"
#include "spec/sampling_params.h"
#include "spec/step.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace inferd::engine {

struct SequenceRequest {
  std::uint64_t id = 0;  // chosen by the caller, never reused within a scheduler's life
  std::vector<std::int32_t> prompt;
  spec::SamplingParams sampling;
  /// Output tokens at most; the scheduler lowers it to what max_model_len and the KV pool leave. 0:
  /// only run the prompt (for prompt logprobs), then end with kLength.
  std::int64_t max_tokens = 16;
  /// The event before the last carries the final hidden state of the prompt's last position;
  /// max_tokens must be 0.
  bool embed = false;
  std::int64_t min_tokens = 0;  // end tokens do not end the sequence before this many
  bool ignore_eos = false;      // eos_tokens do not end it; stop_tokens still do
  /// Each of its samples needs a token mask (MaskRequest). The masks decide when end tokens may
  /// come, so these end it whatever min_tokens and ignore_eos say.
  bool constrained = false;
  /// Tokens guessed ahead by prompt lookup at most, 0: none. Changes the speed, never the tokens.
  std::int32_t num_speculative_tokens = 0;
  std::vector<std::int32_t> eos_tokens;
  std::vector<std::int32_t> stop_tokens;
  std::int32_t priority = 0;  // lower runs first and may preempt higher
  /// Whose it is: at equal priority tenants get shares of the tokens by weight, and the users of
  /// each an equal part of its share (FairQueue).
  std::string tenant;
  std::string user;
  std::int32_t weight = 1;  // of the tenant's share (without a tenant: of the user's), at least 1
  /// On the scheduler's clock; 0: none. `queue_deadline_ns`: the first step must be planned by
  /// then. `deadline_ns`: the sequence must have ended by then, whatever its state. Both end it
  /// with kDeadlineExceeded.
  std::int64_t queue_deadline_ns = 0;
  std::int64_t deadline_ns = 0;
  /// Sequences share cached prefixes only if these bytes are equal: tenant and the request's
  /// cache_salt.
  std::string cache_salt;
  /// Siblings of one request (n > 1) carry the same non-zero key: the later ones wait until the
  /// first has computed the prompt, then take its blocks from the prefix cache.
  std::uint64_t fork_key = 0;
  /// Keys of the prompt's full blocks if the router has already made them (PrefixHasher::Extend);
  /// else empty.
  std::vector<Hash128> prefix_keys;
};

/// Tokens that a sequence is likely to take, for shares and predictions. What a request may have
/// says little about what it will have, so not all of it counts.
constexpr std::int64_t LikelyCost(std::int64_t num_prompt, std::int64_t max_output) {
  constexpr std::int64_t kMostOutput = 512;
  return num_prompt + (max_output < kMostOutput ? max_output : kMostOutput);
}

/// A planned sample of a constrained sequence for which the tokens before it are known now: the
/// sampler waits for a mask. Every such sample gets exactly one request, before its step can end.
struct MaskRequest {
  std::uint64_t id = 0;
  std::int64_t step = 0;
  std::int32_t group = 0;
  std::int32_t row = 0;
  std::int64_t num_output = 0;  // output tokens before this one
  bool wanted = true;           // false: the sequence has ended; any token will do
};

enum class FinishReason : std::uint8_t {
  kNone,    // goes on
  kStop,    // an end token; it is in `token`
  kLength,  // max_tokens, max_model_len or the KV pool
  kAbort,   // Cancel()
  kError,   // `error` says why
};

/// One token of one sequence, or its end. Every accepted sequence gets exactly one event with
/// finish != kNone, its last.
struct TokenEvent {
  std::uint64_t id = 0;
  std::int32_t token = -1;  // -1: no token in this event
  FinishReason finish = FinishReason::kNone;
  bool first = false;  // carries the sequence's first token: num_cached_tokens is set
  float logprob = 0;   // as in spec::SampledToken
  std::int32_t rank = 0;
  std::int64_t num_cached_tokens = 0;  // prompt tokens taken from the prefix cache
  std::int64_t admitted_ns = 0;        // when the sequence first left the queue; 0: it never did
  std::vector<spec::TokenLogprob> top;
  /// Prompt logprobs of positions [prompt_first, prompt_first + prompt_logprobs.size()), each
  /// position once, in order.
  std::int64_t prompt_first = 0;
  std::vector<spec::SampledToken> prompt_logprobs;
  std::vector<float> embedding;  // [hidden]
  std::optional<Error> error;
};

}  // namespace inferd::engine
