// SPDX-License-Identifier: Apache-2.0
// A real control server and real clients over a Unix socket and over loopback TCP with mutual TLS.
#include "rpc/control_client.h"
#include "rpc/control_server.h"
#include "rpc/secret.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace inferd::rpc {
namespace {

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";
constexpr auto kWait = std::chrono::seconds(10);

class Recorder : public PeerListener {
 public:
  void OnHello(const std::shared_ptr<Peer>& peer) override {
    const std::lock_guard lock(mutex_);
    peers_.push_back(peer);
    changed_.notify_all();
  }
  void OnMessage(const std::shared_ptr<Peer>&, FromWorker message) override {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }
  void OnClosed(const std::shared_ptr<Peer>&) override {
    const std::lock_guard lock(mutex_);
    ++closed_;
    changed_.notify_all();
  }

  std::shared_ptr<Peer> WaitForPeer() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kWait, [this] { return !peers_.empty(); });
    return peers_.empty() ? nullptr : peers_.back();
  }
  bool WaitForMessages(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kWait, [&] { return messages_.size() >= count; });
  }
  bool WaitForClosed(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kWait, [&] { return closed_ >= count; });
  }
  FromWorker message(std::size_t i) {
    const std::lock_guard lock(mutex_);
    return messages_[i];
  }
  std::size_t num_peers() {
    const std::lock_guard lock(mutex_);
    return peers_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Peer>> peers_;
  std::vector<FromWorker> messages_;
  int closed_ = 0;
};

class ControlTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/inferd-control-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    ControlServerOptions options{folder_ + "/control.sock", "127.0.0.1:0", kSecret};
    auto server = StartControlServer(options, &recorder_);
    ASSERT_TRUE(server.ok()) << server.error().message();
    server_ = *std::move(server);
    ASSERT_GT(server_->tcp_port(), 0);
  }
  void TearDown() override {
    server_->Stop();
    ::unlink((folder_ + "/control.sock").c_str());
    ::rmdir(folder_.c_str());
  }

  std::string UnixAddress() const { return "unix:" + folder_ + "/control.sock"; }
  std::string TcpAddress() const { return "127.0.0.1:" + std::to_string(server_->tcp_port()); }

  /// Every form of a mask, and what a row says about its samples.
  static void ExpectMasksArrive(Peer& peer, ControlClient& client) {
    using Kind = spec::TokenMask::Kind;
    for (const Kind kind : {Kind::kAll, Kind::kOnly, Kind::kAllBut, Kind::kBits}) {
      spec::TokenMask mask;
      mask.generation = 3;
      mask.step = 12;
      mask.group = 1;
      mask.row = 4;
      mask.kind = kind;
      mask.tokens = {1, 70'000};
      mask.bits = {0x80000001U, 0x12345678U};
      ASSERT_TRUE(peer.Send(mask));
      Result<ToWorker> received = client.Receive();
      ASSERT_TRUE(received.ok());
      const auto& got = std::get<spec::TokenMask>(*received);
      EXPECT_EQ(got.generation, 3U);
      EXPECT_EQ(got.step, 12);
      EXPECT_EQ(got.group, 1);
      EXPECT_EQ(got.row, 4);
      EXPECT_EQ(got.kind, kind);
      EXPECT_EQ(got.tokens, mask.tokens);
      EXPECT_EQ(got.bits, mask.bits);
    }
    spec::StepPlan plan;
    spec::OpenRow& open = plan.open_rows.emplace_back();
    open.constrained = true;
    open.sampling.allowed_tokens = {3, 5};
    open.sampling.bad_words = {{7}, {8, 9}};
    open.sampling.min_tokens = 6;
    open.sampling.end_tokens = {2};
    open.sampling.typical_p = 0.9;
    open.sampling.xtc_probability = 0.2;
    open.sampling.xtc_threshold = 0.3;
    open.sampling.dynatemp_range = 0.4;
    open.sampling.dynatemp_exponent = 1.5;
    open.sampling.dry_multiplier = 0.8;
    open.sampling.dry_base = 1.6;
    open.sampling.dry_allowed_length = 3;
    open.sampling.dry_last_n = 64;
    open.sampling.dry_breakers = {4, 11};
    open.sampling.samplers = {spec::SamplerKind::kXtc, spec::SamplerKind::kTopK};
    ASSERT_TRUE(peer.Send(plan));
    Result<ToWorker> received = client.Receive();
    ASSERT_TRUE(received.ok());
    const spec::OpenRow& got = std::get<spec::StepPlan>(*received).open_rows.at(0);
    EXPECT_TRUE(got.constrained);
    EXPECT_EQ(got.sampling.allowed_tokens, open.sampling.allowed_tokens);
    EXPECT_EQ(got.sampling.bad_words, open.sampling.bad_words);
    EXPECT_EQ(got.sampling.min_tokens, 6);
    EXPECT_EQ(got.sampling.end_tokens, open.sampling.end_tokens);
    EXPECT_EQ(got.sampling.typical_p, 0.9);
    EXPECT_EQ(got.sampling.xtc_probability, 0.2);
    EXPECT_EQ(got.sampling.xtc_threshold, 0.3);
    EXPECT_EQ(got.sampling.dynatemp_range, 0.4);
    EXPECT_EQ(got.sampling.dynatemp_exponent, 1.5);
    EXPECT_EQ(got.sampling.dry_multiplier, 0.8);
    EXPECT_EQ(got.sampling.dry_base, 1.6);
    EXPECT_EQ(got.sampling.dry_allowed_length, 3);
    EXPECT_EQ(got.sampling.dry_last_n, 64);
    EXPECT_EQ(got.sampling.dry_breakers, open.sampling.dry_breakers);
    EXPECT_EQ(got.sampling.samplers, open.sampling.samplers);
  }

  static void ExpectALoadArrives(Peer& peer, ControlClient& client) {
    spec::LoadRequest load;
    load.device = "cuda-emu:1";
    load.max_model_len = 64;
    load.kv_pages = 8;
    load.kv_dtype = spec::KvDtype::kF32;
    load.comm = spec::CommBackend::kHost;
    load.cuda_graph_sizes = {1, 8};
    load.batch_invariant = true;
    ASSERT_TRUE(peer.Send(load));
    Result<ToWorker> received = client.Receive();
    ASSERT_TRUE(received.ok()) << received.error().message();
    const auto& got = std::get<spec::LoadRequest>(*received);
    EXPECT_EQ(got.device, load.device);
    EXPECT_EQ(got.kv_dtype, load.kv_dtype);
    EXPECT_EQ(got.comm, load.comm);
    EXPECT_EQ(got.cuda_graph_sizes, load.cuda_graph_sizes);
    EXPECT_TRUE(got.batch_invariant);
  }

  void RoundTrip(const std::string& address) {
    Hello hello;
    hello.worker_id = 7;
    auto client = Attach({address, kSecret}, hello);
    ASSERT_TRUE(client.ok()) << client.error().message();
    const std::shared_ptr<Peer> peer = recorder_.WaitForPeer();
    ASSERT_NE(peer, nullptr);
    EXPECT_EQ(peer->hello().worker_id, 7U);
    ExpectALoadArrives(*peer, **client);
    spec::StepPlan plan;
    plan.generation = 3;
    plan.step = 11;
    plan.work.push_back({.row = 2,
                         .start = 5,
                         .count = 3,
                         .sample = true,
                         .draft = {8, 9},
                         .input_step = 10,
                         .new_pages = {4}});
    ASSERT_TRUE(peer->Send(plan));
    Result<ToWorker> received = (*client)->Receive();
    ASSERT_TRUE(received.ok());
    const auto& got = std::get<spec::StepPlan>(*received);
    EXPECT_EQ(got.step, 11);
    ASSERT_EQ(got.work.size(), 1U);
    EXPECT_EQ(got.work[0].input_step, 10);
    EXPECT_EQ(got.work[0].draft, (std::vector<std::int32_t>{8, 9}));
    EXPECT_EQ(got.work[0].new_pages, std::vector<std::int32_t>{4});
    ExpectMasksArrive(*peer, **client);
    spec::StepResult result;
    result.step = 11;
    result.sampled.push_back(
        {.row = 2, .token = 99, .logprob = -0.5F, .rank = 1, .top = {{99, -0.5F}}});
    ASSERT_TRUE((*client)->Send(result));
    ASSERT_TRUE(recorder_.WaitForMessages(1));
    EXPECT_EQ(std::get<spec::StepResult>(recorder_.message(0)).sampled[0].token, 99);
    client->reset();
    EXPECT_TRUE(recorder_.WaitForClosed(1));
    EXPECT_FALSE(peer->Send(Shutdown{}));
  }

  std::string folder_;
  Recorder recorder_;
  std::unique_ptr<ControlServer> server_;
};

TEST_F(ControlTest, RoundTripOverUnixSocket) { RoundTrip(UnixAddress()); }
TEST_F(ControlTest, RoundTripOverTls) { RoundTrip(TcpAddress()); }

TEST_F(ControlTest, WrongSecretIsRefusedOnTheUnixSocket) {
  auto client = Attach({UnixAddress(), "ffffffffffffffffffffffffffffffff"}, Hello{});
  if (client.ok()) {
    EXPECT_EQ((*client)->Receive().error().code(), Code::kUnauthenticated);
  }
  EXPECT_EQ(recorder_.num_peers(), 0U);
}

TEST_F(ControlTest, WrongSecretCannotFinishTheTlsHandshake) {
  auto client = Attach(
      {TcpAddress(), "ffffffffffffffffffffffffffffffff", std::chrono::milliseconds(500)}, Hello{});
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.error().code(), Code::kUnavailable);
  EXPECT_EQ(recorder_.num_peers(), 0U);
}

TEST_F(ControlTest, CloseEndsAReceiveThatWaits) {
  auto client = Attach({UnixAddress(), kSecret}, Hello{});
  ASSERT_TRUE(client.ok());
  const auto peer = recorder_.WaitForPeer();
  ASSERT_NE(peer, nullptr);
  peer->Close();
  EXPECT_FALSE((*client)->Receive().ok());
  EXPECT_TRUE(recorder_.WaitForClosed(1));
}

TEST(SecretTest, ShortSecretsAreRefusedAndProofsDiffer) {
  EXPECT_FALSE(CheckSecret("short").ok());
  EXPECT_TRUE(CheckSecret(RandomSecret()).ok());
  EXPECT_TRUE(SameProof(ControlProof(kSecret), ControlProof(kSecret)));
  EXPECT_FALSE(SameProof(ControlProof(kSecret), ControlProof(RandomSecret())));
}

}  // namespace
}  // namespace inferd::rpc
