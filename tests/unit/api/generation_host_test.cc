// SPDX-License-Identifier: Apache-2.0
#include "api/core/generation_host.h"

#include "api/core/generate_params.h"
#include "base/error.h"
#include "fake_service.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

namespace inferd::api {
namespace {

/// Text as it is; "<end>" where a stream ends.
class PlainFormat final : public ReplyFormat {
 public:
  void AppendOpening(const ReplyPiece& /*piece*/, std::string* /*out*/) override {}
  void AppendPiece(const ReplyPiece& piece, std::string* out) override { *out += piece.text; }
  void AppendEnd(const Usage& /*usage*/, bool /*asked*/, std::string* out) override {
    *out += "<end>";
  }
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& /*usage*/,
                  std::string* out) override {
    for (const ReplyPiece& choice : choices) {
      *out += choice.text;
    }
  }
};

class Reader final : public GenerationListener {
 public:
  bool OnProgress(Generation* generation, std::int64_t /*now_ms*/) override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    changed_.notify_all();
    if (behind_) {
      held_bytes_ = generation->pending_bytes();
      return true;
    }
    if (generation->failure()) {
      return false;
    }
    if (generation->stream()) {
      generation->RenderStream(&text_);
    } else if (generation->done()) {
      generation->RenderFull(&text_);
    }
    return !generation->done() && text_.size() < enough_;
  }
  void OnEnd(Generation* generation) override {
    const std::lock_guard lock(mutex_);
    ++ends_;
    if (generation->failure()) {
      code_ = generation->failure()->code();
    }
    changed_.notify_all();
  }

  bool WaitEnd() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [this] { return ends_ > 0; });
  }
  bool WaitHeld(std::size_t bytes) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return held_bytes_ >= bytes; });
  }
  void SetBehind(bool behind) {
    const std::lock_guard lock(mutex_);
    behind_ = behind;
  }
  void SetEnough(std::size_t bytes) { enough_ = bytes; }

  const std::string& text() const { return text_; }
  std::optional<Code> code() const { return code_; }
  int ends() const { return ends_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::optional<Code> code_;
  std::size_t held_bytes_ = 0;
  std::size_t enough_ = 1U << 20;
  int calls_ = 0;
  int ends_ = 0;
  bool behind_ = false;
};

class GenerationHostTest : public testing::Test {
 protected:
  void Start(std::size_t max_generations = 16) {
    host_ = std::make_unique<GenerationHost>(
        GenerationHostOptions{.index = 1000, .max_generations = max_generations},
        &service_,
        &metrics_);
  }
  void TearDown() override {
    if (host_ != nullptr) {
      host_->Stop();
    }
    service_.Stop();
  }

  std::unique_ptr<Generation> Make(bool stream, std::int64_t max_tokens = 100) {
    const ServerContext context{.model = *model_, .service = service_, .metrics = metrics_};
    GenerateParams params = DefaultParams(*model_);
    params.stream = stream;
    GenerationSpec spec;
    leader::GenerateRequest prototype;
    Fault fault;
    EXPECT_TRUE(ApplyParams(context, params, &spec, &prototype).ok());
    EXPECT_TRUE(
        AddPrompts(context, {Bytes("hi")}, prototype, max_tokens, 16, "prompt", &spec, &fault)
            .ok());
    spec.echoes.emplace_back();
    spec.format = std::make_unique<PlainFormat>();
    return std::make_unique<Generation>(std::move(spec));
  }

  std::shared_ptr<const ServedModel> model_ = TestModel();
  FakeInferenceService service_;  // outlives the host's use of it
  Metrics metrics_;
  std::unique_ptr<GenerationHost> host_;
};

TEST_F(GenerationHostTest, AWholeAnswerAndAStreamSayTheSame) {
  Start();
  Reader whole;
  Reader stream;
  ASSERT_TRUE(host_->Submit(Make(false), &whole).ok());
  ASSERT_TRUE(host_->Submit(Make(true), &stream).ok());
  ASSERT_TRUE(whole.WaitEnd());
  ASSERT_TRUE(stream.WaitEnd());
  EXPECT_EQ(whole.text(), "Hello");
  EXPECT_EQ(stream.text(), "Hello<end>");
  EXPECT_EQ(host_->open(), 0U);
  EXPECT_EQ(metrics_.generations_open.load(), 0);
}

TEST_F(GenerationHostTest, CancelFreesTheEngineAndEndsOnce) {
  Start();
  service_.Pause(true);
  Reader reader;
  const auto ticket = host_->Submit(Make(true), &reader);
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(service_.WaitRunning(1));
  host_->Cancel(*ticket);
  ASSERT_TRUE(reader.WaitEnd());
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_EQ(reader.code(), Code::kCancelled);
  host_->Cancel(*ticket);  // stale
  host_->Resume(*ticket);
  Reader canary;
  service_.Pause(false);
  ASSERT_TRUE(host_->Submit(Make(false), &canary).ok());
  ASSERT_TRUE(canary.WaitEnd());
  EXPECT_EQ(canary.text(), "Hello");
  EXPECT_EQ(reader.ends(), 1);
}

TEST_F(GenerationHostTest, AReaderBehindLeavesTextInTheGenerationAndGetsItOnResume) {
  Start();
  Reader slow;
  slow.SetBehind(true);
  const auto ticket = host_->Submit(Make(true), &slow);
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(slow.WaitHeld(5));
  Reader other;
  ASSERT_TRUE(host_->Submit(Make(false), &other).ok());
  EXPECT_TRUE(other.WaitEnd()) << "a slow reader must not block others";
  slow.SetBehind(false);
  host_->Resume(*ticket);
  ASSERT_TRUE(slow.WaitEnd());
  EXPECT_EQ(slow.text(), "Hello<end>");
}

TEST_F(GenerationHostTest, AListenerThatHasEnoughStopsTheEngine) {
  Start();
  service_.SetScripts({Bytes("abc")});  // never ends
  Reader reader;
  reader.SetEnough(10);
  ASSERT_TRUE(host_->Submit(Make(true, 900), &reader).ok());
  ASSERT_TRUE(reader.WaitEnd());
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_GE(reader.text().size(), 10U);
}

TEST_F(GenerationHostTest, RefusesBeyondItsLimitAndPassesTheEnginesRefusalOn) {
  Start(1);
  service_.Pause(true);
  Reader first;
  ASSERT_TRUE(host_->Submit(Make(true), &first).ok());
  Reader second;
  const auto refused = host_->Submit(Make(true), &second);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(second.ends(), 0);
  service_.Pause(false);
  ASSERT_TRUE(first.WaitEnd());
  service_.FailNextSubmit(ResourceExhausted("the queue is full"));
  Reader third;
  ASSERT_TRUE(host_->Submit(Make(true), &third).ok());
  ASSERT_TRUE(third.WaitEnd());
  EXPECT_EQ(third.code(), Code::kResourceExhausted);
}

TEST_F(GenerationHostTest, StopEndsWhatRuns) {
  Start();
  service_.Pause(true);
  Reader reader;
  ASSERT_TRUE(host_->Submit(Make(true), &reader).ok());
  host_->Stop();
  EXPECT_EQ(reader.ends(), 1);
  EXPECT_EQ(reader.code(), Code::kUnavailable);
  Reader late;
  const auto refused = host_->Submit(Make(true), &late);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace inferd::api
