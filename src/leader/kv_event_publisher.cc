// SPDX-License-Identifier: Apache-2.0
#include "leader/kv_event_publisher.h"

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace inferd::leader {
namespace {

constexpr int kLingerMs = 1'000;
constexpr std::chrono::milliseconds kStopTime{1'000};
/// A request is eight bytes and a subscription a topic: nobody needs to send more.
constexpr std::int64_t kMaxMessageBytes = 4'096;
constexpr std::size_t kRequestFrames = 3;
constexpr std::chrono::minutes kWarningPeriod{1};
constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};

using Number = std::array<std::uint8_t, 8>;  // big endian

Number ToNumber(std::uint64_t value) {
  Number bytes{};
  for (std::size_t i = bytes.size(); i-- > 0; value >>= 8) {
    bytes[i] = static_cast<std::uint8_t>(value & 0xff);
  }
  return bytes;
}

std::uint64_t FromNumber(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    value = (value << 8) | bytes[i];
  }
  return value;
}

struct Frame {
  const void* data = nullptr;
  std::size_t size = 0;
};

/// All frames or none: only the first send can refuse.
bool Send(void* socket, std::span<const Frame> frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    if (::zmq_send(socket, frames[i].data, frames[i].size, more | ZMQ_DONTWAIT) < 0) {
      return false;
    }
  }
  return true;
}

class Publisher : public KvEventPublisher {
 public:
  Publisher(KvEventsOptions options, std::int32_t replica, std::int32_t page_tokens)
      : options_(std::move(options)), replica_(replica), page_tokens_(page_tokens) {}

  ~Publisher() override { Stop(); }

  Result<> Start() {
    context_ = ::zmq_ctx_new();
    wake_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (context_ == nullptr || wake_ < 0) {
      return Internal("cannot start ZeroMQ: {}", ::zmq_strerror(::zmq_errno()));
    }
    INFERD_ASSIGN(const std::string endpoint, KvEndpointOf(options_.endpoint, replica_));
    INFERD_TRY(OpenSocket(ZMQ_PUB, options_.hwm, &events_));
    const bool binds = endpoint.find('*') != std::string::npos ||
                       endpoint.find("::") != std::string::npos || endpoint.starts_with("ipc://");
    INFERD_TRY(Attach(events_, endpoint, binds));
    if (!options_.replay_endpoint.empty()) {
      INFERD_ASSIGN(const std::string replay, KvEndpointOf(options_.replay_endpoint, replica_));
      // Room for a whole answer: a ROUTER drops what goes beyond.
      INFERD_TRY(OpenSocket(ZMQ_ROUTER, options_.buffer_steps + 1, &replay_));
      INFERD_TRY(Attach(replay_, replay, true));
    }
    thread_ = std::thread([this] {
      try {
        Loop();
      } catch (const std::exception& error) {  // only a bug or an exhausted heap gets here
        base::CheckFailed("KV event publisher", error.what());
      }
    });
    return {};
  }

  bool Publish(KvEventBatch batch) override {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t number = next_number_++;
      if (static_cast<std::int64_t>(queue_.size()) >= options_.max_queue_size) {
        return false;
      }
      was_empty = queue_.empty();
      queue_.push_back({number, std::move(batch)});
    }
    if (was_empty) {
      Wake();
    }
    return true;
  }

  void Stop() override {
    if (thread_.joinable()) {
      stop_.store(true);
      Wake();
      thread_.join();
    }
    for (void** socket : {&events_, &replay_}) {
      if (*socket != nullptr) {
        ::zmq_close(std::exchange(*socket, nullptr));
      }
    }
    if (context_ != nullptr) {
      ::zmq_ctx_term(std::exchange(context_, nullptr));  // at most the linger time
    }
    if (wake_ >= 0) {
      ::close(std::exchange(wake_, -1));
    }
  }

 private:
  struct Waiting {
    std::uint64_t number = 0;
    KvEventBatch batch;
  };
  struct Sent {
    std::uint64_t number = 0;
    std::vector<std::uint8_t> payload;
  };

  Result<> OpenSocket(int type, std::int64_t hwm, void** out) {
    *out = ::zmq_socket(context_, type);
    if (*out == nullptr) {
      return Internal("cannot make a ZeroMQ socket: {}", ::zmq_strerror(::zmq_errno()));
    }
    const int high_water = static_cast<int>(hwm);
    const int linger = kLingerMs;
    const int ipv6 = 1;
    const std::int64_t most = kMaxMessageBytes;
    if (::zmq_setsockopt(*out, ZMQ_SNDHWM, &high_water, sizeof high_water) != 0 ||
        ::zmq_setsockopt(*out, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        ::zmq_setsockopt(*out, ZMQ_IPV6, &ipv6, sizeof ipv6) != 0 ||
        ::zmq_setsockopt(*out, ZMQ_MAXMSGSIZE, &most, sizeof most) != 0) {
      return Internal("cannot set up a ZeroMQ socket: {}", ::zmq_strerror(::zmq_errno()));
    }
    return {};
  }

  Result<> Attach(void* socket, const std::string& endpoint, bool bind) const {
    const int done =
        bind ? ::zmq_bind(socket, endpoint.c_str()) : ::zmq_connect(socket, endpoint.c_str());
    if (done != 0) {
      return FailedPrecondition("--kv-events-config: cannot {} {}: {}",
                                bind ? "bind" : "connect to",
                                endpoint,
                                ::zmq_strerror(::zmq_errno()));
    }
    std::array<char, 256> real{};
    std::size_t size = real.size();
    ::zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, real.data(), &size);
    log::Info("leader",
              "KV events of replica {}: {} {}",
              replica_,
              socket == replay_ ? "replay at"
              : bind            ? "published at"
                                : "published to",
              real.data());
    return {};
  }

  void Wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  }

  void Loop() {
    std::deque<Waiting> batches;
    while (!stop_.load()) {
      std::array<zmq_pollitem_t, 2> items{};
      items[0] = {nullptr, wake_, ZMQ_POLLIN, 0};
      items[1] = {replay_, 0, ZMQ_POLLIN, 0};
      ::zmq_poll(items.data(), replay_ == nullptr ? 1 : 2, 1'000);
      std::uint64_t woken = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_, &woken, sizeof woken);
      TakeQueue(&batches);
      for (const Waiting& waiting : batches) {
        SendBatch(waiting);
      }
      if (replay_ != nullptr && (items[1].revents & ZMQ_POLLIN) != 0) {
        AnswerReplay();
      }
    }
    const auto deadline = std::chrono::steady_clock::now() + kStopTime;
    TakeQueue(&batches);
    for (const Waiting& waiting : batches) {
      if (std::chrono::steady_clock::now() > deadline) {
        break;
      }
      SendBatch(waiting);
    }
  }

  void TakeQueue(std::deque<Waiting>* batches) {
    batches->clear();
    const std::lock_guard lock(mutex_);
    batches->swap(queue_);
  }

  void SendBatch(const Waiting& waiting) {
    Sent sent{waiting.number,
              EncodeKvEvents(waiting.batch, replica_, page_tokens_, options_.array_events)};
    const Number number = ToNumber(sent.number);
    const std::array<Frame, 3> frames = {Frame{options_.topic.data(), options_.topic.size()},
                                         Frame{number.data(), number.size()},
                                         Frame{sent.payload.data(), sent.payload.size()}};
    Send(events_, frames);  // a subscriber that is too slow misses it and can ask again
    if (replay_ != nullptr && options_.buffer_steps > 0) {
      Keep(std::move(sent));
    }
  }

  /// The newest one in any case.
  void Keep(Sent sent) {
    kept_bytes_ += static_cast<std::int64_t>(sent.payload.size());
    kept_.push_back(std::move(sent));
    while (kept_.size() > 1 && (static_cast<std::int64_t>(kept_.size()) > options_.buffer_steps ||
                                kept_bytes_ > options_.buffer_bytes)) {
      kept_bytes_ -= static_cast<std::int64_t>(kept_.front().payload.size());
      kept_.pop_front();
    }
  }

  void WarnOfRequest(std::size_t num_frames) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_warning_) {
      return;
    }
    next_warning_ = now + kWarningPeriod;
    log::Warning("leader", "a KV event replay request of {} frames is not one", num_frames);
  }

  /// One request of [who, "", number]; others are read and forgotten.
  void AnswerReplay() {
    std::array<std::vector<std::uint8_t>, kRequestFrames> frames;
    std::size_t num_frames = 0;
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      ::zmq_msg_init(&message);
      if (::zmq_msg_recv(&message, replay_, ZMQ_DONTWAIT) < 0) {
        ::zmq_msg_close(&message);
        return;
      }
      if (num_frames < frames.size()) {
        const auto* data = static_cast<const std::uint8_t*>(::zmq_msg_data(&message));
        frames[num_frames].assign(data, data + ::zmq_msg_size(&message));
      }
      ++num_frames;
      more = ::zmq_msg_more(&message);
      ::zmq_msg_close(&message);
    }
    if (num_frames != kRequestFrames || frames[2].size() != sizeof(Number)) {
      WarnOfRequest(num_frames);
      return;
    }
    const std::uint64_t first = FromNumber(frames[2].data());
    const Frame who{frames[0].data(), frames[0].size()};
    const auto answer = [&](std::uint64_t number, std::span<const std::uint8_t> payload) {
      const Number bytes = ToNumber(number);
      const std::array<Frame, 4> reply = {
          who, Frame{}, Frame{bytes.data(), bytes.size()}, Frame{payload.data(), payload.size()}};
      Send(replay_, reply);
    };
    const auto begin = std::find_if(
        kept_.begin(), kept_.end(), [first](const Sent& sent) { return sent.number >= first; });
    for (auto sent = begin; sent != kept_.end(); ++sent) {
      answer(sent->number, sent->payload);
    }
    answer(kEndOfReplay, {});
  }

  const KvEventsOptions options_;
  const std::int32_t replica_;
  const std::int32_t page_tokens_;
  void* context_ = nullptr;
  int wake_ = -1;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::deque<Waiting> queue_;      // guarded by mutex_
  std::uint64_t next_number_ = 0;  // guarded by mutex_
  // The thread's own, once it runs:
  void* events_ = nullptr;
  void* replay_ = nullptr;  // null: no replay
  std::deque<Sent> kept_;
  std::int64_t kept_bytes_ = 0;
  std::chrono::steady_clock::time_point next_warning_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Open(const KvEventsOptions& options,
                                                                 std::int32_t replica,
                                                                 std::int32_t page_tokens) {
  auto publisher = std::make_unique<Publisher>(options, replica, page_tokens);
  INFERD_TRY(publisher->Start());
  return std::unique_ptr<KvEventPublisher>(std::move(publisher));
}

}  // namespace inferd::leader
