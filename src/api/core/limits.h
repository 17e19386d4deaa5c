// SPDX-License-Identifier: Apache-2.0
// The one table of limits that requests are held to: HTTP framing, JSON shape, and the range of
// every numeric field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace inferd::api {

struct IntLimit {
  std::string_view name;
  std::int64_t min;
  std::int64_t max;
};

struct RealLimit {
  std::string_view name;
  double min;
  double max;
  bool min_exclusive = false;
};

namespace limits {

inline constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

// HTTP framing.
inline constexpr std::size_t kHeadBytes = 32 * 1024;
inline constexpr std::size_t kHeadLineBytes = 8 * 1024;
inline constexpr std::size_t kHeadFields = 100;
inline constexpr std::size_t kTrailerBytes =
    8 * 1024;  // a chunk's head line, or the trailer section
inline constexpr std::size_t kPipelinedBytes = 64 * 1024;
inline constexpr std::size_t kRequestIdBytes = 128;
inline constexpr std::size_t kSessionIdBytes = 256;

// JSON shape.
inline constexpr std::size_t kJsonDepth = 64;
inline constexpr std::size_t kJsonValues = 4'000'000;
inline constexpr std::size_t kJsonKeysPerObject = 2048;

// Lists and texts.
inline constexpr std::size_t kMessages = 10'000;
inline constexpr std::size_t kPrompts = 1024;
inline constexpr std::size_t kChoices = 1024;  // prompts times n
inline constexpr std::size_t kStopStrings = 16;
inline constexpr std::size_t kStopBytes = 256;
inline constexpr std::size_t kStopTokenIds = 1024;
inline constexpr std::size_t kLogitBias = 1024;
inline constexpr std::size_t kAllowedTokenIds = 16'384;
inline constexpr std::size_t kBadWords = 1024;
inline constexpr std::size_t kBadWordBytes = 256;
inline constexpr std::size_t kSaltBytes = 256;
inline constexpr std::size_t kSamplers = 16;
inline constexpr std::size_t kBreakers = 64;
inline constexpr std::size_t kBreakerBytes = 64;
inline constexpr std::size_t kBreakerTokens = 16'384;  // that have a breaker in their text
inline constexpr std::size_t kTools = 1024;
inline constexpr std::size_t kToolNameBytes = 64;
inline constexpr std::size_t kToolBytes = 256 * 1024;  // of one tool, as JSON
inline constexpr std::size_t kAbortNames = 1024;
inline constexpr std::size_t kServedNames = 64;
inline constexpr std::size_t kServedNameBytes = 256;
inline constexpr std::size_t kStoredResponses = 1024;
inline constexpr std::size_t kStoredResponseBytes = 64U << 20;
inline constexpr std::size_t kDetokenizeIds = 4'000'000;
inline constexpr std::size_t kMetadataKeys = 16;
inline constexpr std::size_t kMetadataKeyBytes = 64;
inline constexpr std::size_t kMetadataBytes = 512;  // of a value

// Files and batches.
inline constexpr std::size_t kFilenameBytes = 255;
inline constexpr std::size_t kBatchLines = 50'000;  // OpenAI's
inline constexpr std::size_t kBatchLineBytes = 32U << 20;
inline constexpr std::size_t kBatchErrors = 100;  // of its input; then reading ends
inline constexpr std::size_t kCustomIdBytes = 512;
inline constexpr std::size_t kOpenBatches = 1000;  // of all owners
inline constexpr std::size_t kOpenBatchesOfOwner = 100;
inline constexpr std::size_t kBatchesOver = 10'000;  // kept; the oldest are forgotten first

// Numeric fields of requests.
inline constexpr RealLimit kTemperature{"temperature", 0, 100};
inline constexpr RealLimit kTopP{"top_p", 0, 1, true};
inline constexpr RealLimit kMinP{"min_p", 0, 1};
inline constexpr RealLimit kRepetitionPenalty{"repetition_penalty", 0, 100, true};
inline constexpr RealLimit kPresencePenalty{"presence_penalty", -2, 2};
inline constexpr RealLimit kFrequencyPenalty{"frequency_penalty", -2, 2};
inline constexpr RealLimit kLogitBiasValue{"logit_bias", -100, 100};
inline constexpr RealLimit kTypicalP{"typical_p", 0, 1, true};
inline constexpr RealLimit kXtcProbability{"xtc_probability", 0, 1};
inline constexpr RealLimit kXtcThreshold{"xtc_threshold", 0, 1};
inline constexpr RealLimit kDynatempRange{"dynatemp_range", 0, 100};
inline constexpr RealLimit kDynatempExponent{"dynatemp_exponent", 0, 100};
inline constexpr RealLimit kDryMultiplier{"dry_multiplier", 0, 100};
inline constexpr RealLimit kDryBase{"dry_base", 0, 100, true};
inline constexpr IntLimit kDryAllowedLength{"dry_allowed_length", 1, 1'000'000};
inline constexpr IntLimit kDryPenaltyLastN{"dry_penalty_last_n", -1, kInt32Max};
inline constexpr IntLimit kTopK{"top_k", -1, kInt32Max};
inline constexpr IntLimit kN{"n", 1, 128};
inline constexpr IntLimit kMaxTokens{"max_tokens", 1, kInt32Max};
inline constexpr IntLimit kMaxCompletionTokens{"max_completion_tokens", 1, kInt32Max};
inline constexpr IntLimit kMaxTokensOrZero{"max_tokens", 0, kInt32Max};
inline constexpr IntLimit kMinTokens{"min_tokens", 0, kInt32Max};
inline constexpr IntLimit kSpeculativeTokens{"num_speculative_tokens", 0, 32};
inline constexpr IntLimit kLogprobs{"logprobs", 0, 20};
inline constexpr IntLimit kTopLogprobs{"top_logprobs", 0, 20};
inline constexpr IntLimit kPromptLogprobs{"prompt_logprobs", 0, 20};
inline constexpr IntLimit kTruncatePromptTokens{"truncate_prompt_tokens", -1, kInt32Max};
inline constexpr IntLimit kThinkingBudget{"thinking_token_budget", 0, kInt32Max};
inline constexpr IntLimit kSeed{
    "seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
inline constexpr IntLimit kExpirySeconds{"expires_after[seconds]", 3600, 2'592'000};
inline constexpr IntLimit kFilesPerPage{"limit", 1, 10'000};
inline constexpr IntLimit kBatchesPerPage{"limit", 1, 100};
inline constexpr IntLimit kInputItemsPerPage{"limit", 1, 100};
inline constexpr std::int64_t kUsualPage = 20;  // of both
inline constexpr IntLimit kPriority{
    "priority", std::numeric_limits<std::int32_t>::min(), kInt32Max};

}  // namespace limits
}  // namespace inferd::api
