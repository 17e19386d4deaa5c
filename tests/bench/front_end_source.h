// SPDX-License-Identifier: Apache-2.0
// A stand-in for the leader: every running stream gets one token per step. Stream k (its request's
// seed) leaves the time of each token in memory shared with the client.
#pragma once

#include "leader/inference_service.h"
#include "text/tokenizer.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace inferd::bench {

inline constexpr int kMaxStreams = 10'000;
inline constexpr int kStamps = 256;  // per stream; a client further behind gets no delay counted

struct Shared {
  std::atomic<std::int64_t> live;  // streams that the source serves
  std::atomic<bool> go;            // tokens are made
  std::array<std::array<std::int64_t, kStamps>, kMaxStreams> made_ns;
};

class TokenSource final : public leader::InferenceService {
 public:
  /// `rate`: tokens per second over all streams; 0: as fast as they are taken.
  TokenSource(const spec::ModelSpec& model,
              const text::Tokenizer& tokenizer,
              std::int64_t rate,
              Shared* shared);

  /// Makes tokens for ever.
  [[noreturn]] void Run();

  Result<> Submit(leader::GenerateRequest request, leader::Refusal* refusal) override;
  void Cancel(leader::StreamId stream, std::int32_t choice) override;
  Result<> Sleep(int, leader::SleepMode) override { return {}; }
  Result<> WakeUp() override { return {}; }
  int sleep_level() const override { return 0; }
  leader::Phase phase() const override { return leader::Phase::kReady; }
  std::optional<leader::Stall> stall() const override { return std::nullopt; }
  leader::LoadProgress load_progress() const override { return {}; }
  std::vector<leader::ReplicaStats> stats() const override { return {}; }
  const spec::ModelSpec& model() const override { return model_; }
  std::int64_t max_model_len() const override { return 1 << 20; }
  std::int64_t max_choices() const override { return 1 << 30; }

 private:
  struct Live {
    leader::StreamId id;
    leader::EventSink* sink = nullptr;
    std::size_t number = 0;
    std::int64_t made = 0;
    std::int64_t wanted = 0;
  };
  void TakeInbox();
  void Step();
  void WaitUntilTaken();

  const spec::ModelSpec& model_;
  const std::int64_t rate_;
  Shared* const shared_;
  std::vector<std::int32_t> words_;  // tokens whose text is a blank and a word
  std::vector<Live> live_;
  std::vector<leader::OutputEvent> events_;
  std::mutex mutex_;
  std::vector<leader::GenerateRequest> submitted_;
  std::vector<leader::StreamId> cancelled_;
};

}  // namespace inferd::bench
