// SPDX-License-Identifier: Apache-2.0
#include "api/core/constraint_wraps.h"

#include "base/error.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Words = std::shared_ptr<const std::vector<std::uint32_t>>;

class AllowedConstraint final : public leader::TokenConstraint {
 public:
  /// `pristine`: null: everything may come.
  AllowedConstraint(Words allowed, std::shared_ptr<const TokenConstraint> pristine)
      : allowed_(std::move(allowed)), pristine_(std::move(pristine)) {}

  Result<std::unique_ptr<TokenConstraint>> Clone() const override {
    auto clone = std::make_unique<AllowedConstraint>(allowed_, pristine_);
    if (pristine_ != nullptr) {
      INFERD_ASSIGN(clone->own_, pristine_->Clone());
    }
    return std::unique_ptr<TokenConstraint>(std::move(clone));
  }

  Result<> FillMask(std::span<std::uint32_t> words) override {
    std::fill(words.begin(), words.end(), ~0U);
    if (own_ != nullptr) {
      INFERD_TRY(own_->FillMask(words));
    }
    std::uint32_t left = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] &= i < allowed_->size() ? (*allowed_)[i] : 0;
      left |= words[i];
    }
    if (left == 0) {
      return InvalidArgument(
          "allowed_token_ids has no token that can follow under the request's "
          "grammar; allow more of them");
    }
    return {};
  }

  Result<> Accept(std::int32_t token) override {
    return own_ == nullptr ? Result<>() : own_->Accept(token);
  }

 private:
  const Words allowed_;
  const std::shared_ptr<const TokenConstraint> pristine_;
  std::unique_ptr<TokenConstraint> own_;  // only in clones
};

}  // namespace

void ConstrainToAllowed(std::span<const std::int32_t> end_tokens,
                        leader::GenerateRequest* request) {
  std::vector<std::int32_t>& tokens = request->sampling.allowed_tokens;
  if (tokens.empty()) {
    return;
  }
  std::vector<std::uint32_t> words;
  const auto allow = [&](std::int32_t token) {
    if (token >= 0) {
      const auto index = static_cast<std::size_t>(token);
      words.resize(std::max(words.size(), index / 32 + 1));
      words[index / 32] |= 1U << (index % 32);
    }
  };
  std::ranges::for_each(tokens, allow);
  if (request->constraint != nullptr) {
    std::ranges::for_each(end_tokens, allow);
  }
  request->constraint = std::make_shared<AllowedConstraint>(
      std::make_shared<const std::vector<std::uint32_t>>(std::move(words)), request->constraint);
  tokens.clear();
}

}  // namespace inferd::api
