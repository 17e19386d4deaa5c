// SPDX-License-Identifier: Apache-2.0
#include "leader/mask_maker.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace inferd::leader {
namespace {

constexpr std::int64_t kVocab = 100;

/// Allows exactly the sum of the tokens so far, and refuses token 99.
class SumConstraint : public TokenConstraint {
 public:
  Result<std::unique_ptr<TokenConstraint>> Clone() const override {
    return std::unique_ptr<TokenConstraint>(std::make_unique<SumConstraint>());
  }
  Result<> FillMask(std::span<std::uint32_t> words) override {
    std::fill(words.begin(), words.end(), 0);
    if (sum_ < kVocab) {
      words[static_cast<std::size_t>(sum_) / 32] |= 1U << (sum_ % 32);
    }
    return {};
  }
  Result<> Accept(std::int32_t token) override {
    if (token == 99) {
      return InvalidArgument("99 is not taken");
    }
    sum_ += token;
    return {};
  }

 private:
  std::int64_t sum_ = 0;
};

class Peer : public rpc::Peer {
 public:
  const rpc::Hello& hello() const override { return hello_; }
  bool Send(const rpc::ToWorker& message) override {
    const std::lock_guard lock(mutex_);
    masks_.push_back(std::get<spec::TokenMask>(message));
    changed_.notify_all();
    return true;
  }
  void Close() override {}
  void Refuse(const Error& /*error*/) override {}

  /// The mask of a step, once it has been sent.
  spec::TokenMask Wait(std::int64_t step) {
    std::unique_lock lock(mutex_);
    spec::TokenMask found;
    const bool came = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (const spec::TokenMask& mask : masks_) {
        if (mask.step == step) {
          found = mask;
          return true;
        }
      }
      return false;
    });
    EXPECT_TRUE(came) << "no mask for step " << step;
    return found;
  }

 private:
  rpc::Hello hello_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<spec::TokenMask> masks_;
};

class MaskMakerTest : public testing::Test {
 protected:
  void Make(std::uint64_t id, std::int64_t step, bool wanted = true) {
    maker_.Make({.id = id, .step = step, .group = 0, .row = 3, .wanted = wanted}, 5, peer_);
  }

  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::string>> failures_;  // guarded by mutex_
  std::shared_ptr<Peer> peer_ = std::make_shared<Peer>();
  MaskMaker maker_{2, kVocab, [this](std::uint64_t id, Error error) {
                     const std::lock_guard lock(mutex_);
                     failures_.emplace_back(id, error.message());
                   }};
};

TEST_F(MaskMakerTest, MasksFollowTheTokensOfEachSequence) {
  const auto pristine = std::make_shared<SumConstraint>();
  for (const std::uint64_t id : {1U, 2U}) {
    maker_.Add(id, pristine);
  }
  Make(1, 0);
  const spec::TokenMask first = peer_->Wait(0);
  EXPECT_EQ(first.generation, 5U);
  EXPECT_EQ(first.row, 3);
  EXPECT_EQ(first.kind, spec::TokenMask::Kind::kOnly);
  EXPECT_EQ(first.tokens, std::vector<std::int32_t>{0});
  maker_.TakeToken(1, 4);
  maker_.TakeToken(2, 9);
  maker_.TakeToken(1, 5);
  Make(1, 1);
  Make(2, 2);
  EXPECT_EQ(peer_->Wait(1).tokens, std::vector<std::int32_t>{9});
  EXPECT_EQ(peer_->Wait(2).tokens, std::vector<std::int32_t>{9});
  // A replay asks for the same position again.
  Make(1, 3);
  EXPECT_EQ(peer_->Wait(3).tokens, std::vector<std::int32_t>{9});
}

TEST_F(MaskMakerTest, WhatIsNotWantedAllowsEverything) {
  maker_.Add(1, std::make_shared<SumConstraint>());
  Make(1, 0, false);
  EXPECT_EQ(peer_->Wait(0).kind, spec::TokenMask::Kind::kAll);
  maker_.Remove(1);
  Make(1, 1);
  EXPECT_EQ(peer_->Wait(1).kind, spec::TokenMask::Kind::kAll);
}

TEST_F(MaskMakerTest, AFailureIsReportedOnceAndTheStepGoesOn) {
  maker_.Add(1, std::make_shared<SumConstraint>());
  maker_.Add(2, std::make_shared<SumConstraint>());
  maker_.TakeToken(1, 99);
  maker_.TakeToken(2, 98);
  maker_.TakeToken(2, 98);
  Make(1, 0);
  EXPECT_EQ(peer_->Wait(0).kind, spec::TokenMask::Kind::kAll);
  Make(1, 1);
  Make(2, 2);
  peer_->Wait(1);
  EXPECT_EQ(peer_->Wait(2).kind, spec::TokenMask::Kind::kAll);
  const std::lock_guard lock(mutex_);
  ASSERT_EQ(failures_.size(), 2U);
  EXPECT_EQ(failures_[0], std::pair(std::uint64_t{1}, std::string("99 is not taken")));
  EXPECT_EQ(failures_[1].first, 2U);
  EXPECT_NE(failures_[1].second.find("no token can follow"), std::string::npos);
}

}  // namespace
}  // namespace inferd::leader
