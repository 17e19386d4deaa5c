// SPDX-License-Identifier: Apache-2.0
// The publisher before a real ZeroMQ subscriber, over a socket file.
#include "leader/kv_event_publisher.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace inferd::leader {
namespace {

using Frames = std::vector<std::string>;

constexpr int kTimeoutMs = 20'000;

std::string Number(std::uint64_t value) {
  std::string bytes(8, '\0');
  for (std::size_t i = 8; i-- > 0; value >>= 8) {
    bytes[i] = static_cast<char>(value & 0xff);
  }
  return bytes;
}

class Client {
 public:
  Client(void* context, int type, const std::string& endpoint)
      : socket_(::zmq_socket(context, type)) {
    ::zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &kTimeoutMs, sizeof kTimeoutMs);
    const int linger = 0;
    ::zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    EXPECT_EQ(::zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~Client() { ::zmq_close(socket_); }

  void Subscribe(const std::string& topic) {
    ::zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, topic.data(), topic.size());
  }
  void Send(const Frames& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      ASSERT_GE(::zmq_send(socket_, frames[i].data(), frames[i].size(), more), 0);
    }
  }
  bool Ready(int timeout_ms) {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    return ::zmq_poll(&item, 1, timeout_ms) > 0;
  }
  Frames Receive() {
    Frames frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      ::zmq_msg_init(&message);
      if (::zmq_msg_recv(&message, socket_, 0) < 0) {
        ADD_FAILURE() << "no message in time";
        return Frames(4);
      }
      frames.emplace_back(static_cast<const char*>(::zmq_msg_data(&message)),
                          ::zmq_msg_size(&message));
      more = ::zmq_msg_more(&message);
      ::zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  void* socket_;
};

class KvEventPublisherTest : public testing::Test {
 protected:
  KvEventPublisherTest() {
    std::string folder = "/tmp/kv-XXXXXX";  // short: a socket's path has 107 bytes at most
    folder_ = ::mkdtemp(folder.data());
    options_.endpoint = "ipc://" + folder_ + "/events";
    options_.replay_endpoint = "ipc://" + folder_ + "/replay";
    options_.topic = "kv@here@toy";
  }
  ~KvEventPublisherTest() override {
    publisher_.reset();
    ::zmq_ctx_term(context_);
    std::filesystem::remove_all(folder_);
  }

  void Open(std::int32_t replica = 0) {
    auto opened = KvEventPublisher::Open(options_, replica, 32);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    publisher_ = std::move(*opened);
  }

  static KvEventBatch Removed(std::uint64_t hash) { return {0, {KvBlocksRemoved{{hash}}}}; }
  static std::uint64_t HashOf(const std::string& payload) {
    return nlohmann::json::from_msgpack(payload)[1][0]["block_hashes"][0].get<std::uint64_t>();
  }

  std::string folder_;
  void* context_ = ::zmq_ctx_new();
  KvEventsOptions options_;
  std::unique_ptr<KvEventPublisher> publisher_;
};

TEST_F(KvEventPublisherTest, ReplaysWhatIsKeptFromANumberOn) {
  options_.buffer_steps = 3;
  Open();
  for (std::uint64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(publisher_->Publish(Removed(100 + i)));
  }
  Client client(context_, ZMQ_DEALER, options_.replay_endpoint);
  client.Send({"", "not a number"});  // is read and forgotten
  client.Send({"", Number(3), "and", "more"});
  client.Send({"", Number(3)});
  // The publisher may see the request before the batches: ask until the last one is there.
  Frames first = client.Receive();
  while (first[2].empty()) {
    client.Send({"", Number(3)});
    first = client.Receive();
  }
  EXPECT_EQ(first[1], Number(3));
  EXPECT_EQ(HashOf(first[2]), 103U);
  const Frames second = client.Receive();
  EXPECT_EQ(second[1], Number(4));
  EXPECT_EQ(HashOf(second[2]), 104U);
  EXPECT_EQ(client.Receive(), (Frames{"", Number(~std::uint64_t{0}), ""}));
  client.Send({"", Number(0)});
  EXPECT_EQ(client.Receive()[1], Number(2)) << "three are kept";
}

TEST_F(KvEventPublisherTest, WhatIsKeptIsBoundedInBytesToo) {
  options_.buffer_bytes = 1;
  Open();
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(publisher_->Publish(Removed(100 + i)));
  }
  Client client(context_, ZMQ_DEALER, options_.replay_endpoint);
  Frames first;
  do {  // until the publisher has sent the last one
    client.Send({"", Number(2)});
    first = client.Receive();
  } while (first[2].empty());
  EXPECT_EQ(client.Receive()[1], Number(~std::uint64_t{0}));
  client.Send({"", Number(0)});
  EXPECT_EQ(client.Receive()[1], Number(2)) << "the newest is kept";
}

TEST_F(KvEventPublisherTest, ASubscriberGetsTopicNumberAndPayload) {
  Open(1);
  Client client(context_, ZMQ_SUB, options_.endpoint + "_dp1");
  client.Subscribe("kv@");
  // A subscription takes a moment to arrive; until then messages are nobody's. Publish until one is
  // seen, then all are.
  for (std::uint64_t sent = 0; sent < 20'000 && !client.Ready(1); ++sent) {
    publisher_->Publish(Removed(sent));
  }
  const Frames frames = client.Receive();
  ASSERT_EQ(frames.size(), 3U);
  EXPECT_EQ(frames[0], "kv@here@toy");
  EXPECT_EQ(frames[1], Number(HashOf(frames[2])));
}

TEST_F(KvEventPublisherTest, AFullQueueRefusesAndTheNumberIsGone) {
  options_.max_queue_size = 1;
  Open();
  // Faster than the thread can take them.
  KvBlocksStored large;
  large.hashes.assign(4'000, 1);
  large.tokens.assign(128'000, 1);
  std::uint64_t sent = 0;
  std::vector<std::uint64_t> refused;
  while (refused.empty() && sent < 1'000) {
    if (!publisher_->Publish({0, {large}})) {
      refused.push_back(sent);
    }
    ++sent;
  }
  ASSERT_FALSE(refused.empty());
  Client client(context_, ZMQ_DEALER, options_.replay_endpoint);
  for (;;) {  // until all that was taken is sent
    client.Send({"", Number(0)});
    std::vector<std::string> numbers;
    for (Frames frames = client.Receive(); !frames[2].empty(); frames = client.Receive()) {
      numbers.push_back(frames[1]);
    }
    if (numbers.size() == sent - 1) {
      EXPECT_EQ(std::count(numbers.begin(), numbers.end(), Number(refused[0])), 0);
      break;
    }
    ASSERT_LT(numbers.size(), sent);
  }
}

TEST_F(KvEventPublisherTest, AnAddressThatCannotBeHadIsAnError) {
  options_.endpoint = "tcp://host:x";
  EXPECT_FALSE(KvEventPublisher::Open(options_, 0, 32).ok());
  options_.endpoint = "ipc:///no/such/folder/socket";
  const auto other = KvEventPublisher::Open(options_, 0, 32);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message().find("cannot bind ipc:///no/such/folder/socket"),
            std::string::npos)
      << other.error().message();
}

}  // namespace
}  // namespace inferd::leader
