// SPDX-License-Identifier: Apache-2.0
#include "api/http/io_thread.h"

#include "api/core/event_ring.h"
#include "api/http/connection.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace inferd::api {
namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using ErrorCode = boost::system::error_code;

namespace {

constexpr std::size_t kFlushesPerTurn =
    512;  // then sockets are looked at: bounds the delay of accepts and cancels
constexpr auto kTick = std::chrono::milliseconds(250);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

std::int64_t NowMs() { return base::SteadyClock::Get().NowMs(); }

}  // namespace

// ---- streams

leader::StreamId IoState::OpenStream(const std::shared_ptr<Connection>& connection,
                                     std::size_t prompt) {
  if (free_streams.empty()) {
    free_streams.push_back(static_cast<std::uint32_t>(streams.size()));
    streams.emplace_back();
  }
  const std::uint32_t slot = free_streams.back();
  free_streams.pop_back();
  Stream& stream = streams[slot];
  ++stream.generation;
  stream.connection = connection;
  stream.prompt = prompt;
  stream.open = true;
  return {index, slot, stream.generation};
}

void IoState::CloseStream(leader::StreamId id) {
  if (Stream* const stream = FindStream(id)) {
    stream->open = false;
    stream->connection.reset();
    free_streams.push_back(id.slot);
  }
}

IoState::Stream* IoState::FindStream(leader::StreamId id) {
  if (id.slot >= streams.size()) {
    return nullptr;
  }
  Stream& stream = streams[id.slot];
  return stream.open && stream.generation == id.generation ? &stream : nullptr;
}

// ---- the loop

struct IoThread::Impl {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
  asio::basic_socket_acceptor<Protocol> acceptor{context};
  asio::posix::stream_descriptor wake{context};
  asio::steady_timer tick{context};
  asio::steady_timer accept_pause{context};
  IoState state;
  std::uint64_t next_connection = 1;

  void Accept();
  void OnAccepted(StreamSocket socket);
  void WaitForEvents();
  void TakeEvents();
  void FlushSome();
  void StartTick();
  void CloseAll();
};

void IoThread::Impl::Accept() {
  acceptor.async_accept([this](const ErrorCode& ec, StreamSocket socket) {
    if (!acceptor.is_open()) {
      return;
    }
    if (!ec) {
      OnAccepted(std::move(socket));
      return Accept();
    }
    if (ec == asio::error::connection_aborted) {
      return Accept();
    }
    // Out of descriptors or memory: what is there goes on, and may free some.
    log::Warning("api", "cannot accept a connection: {}", ec.message());
    accept_pause.expires_after(kAcceptPause);
    accept_pause.async_wait([this](const ErrorCode& stopped) {
      if (!stopped) {
        Accept();
      }
    });
  });
}

void IoThread::Impl::OnAccepted(StreamSocket socket) {
  if (state.connections.size() >= state.options.max_connections) {
    state.metrics->connections_refused.fetch_add(1, std::memory_order_relaxed);
    return;  // the socket closes here
  }
  state.metrics->connections_accepted.fetch_add(1, std::memory_order_relaxed);
  state.metrics->connections_open.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t id = next_connection++;
  auto connection = std::make_shared<Connection>(&state, std::move(socket), id);
  state.connections.emplace(id, connection);
  connection->Begin();
}

void IoThread::Impl::WaitForEvents() {
  wake.async_wait(asio::posix::stream_descriptor::wait_read, [this](const ErrorCode& ec) {
    if (ec) {
      return;
    }
    state.inbox.ClearWake();
    TakeEvents();
  });
}

/// Runs until the inbox is empty and armed; gives sockets a turn between rounds.
void IoThread::Impl::TakeEvents() {
  const std::int64_t now_ns = base::SteadyClock::Get().NowNs();
  state.inbox.Drain([&](leader::OutputEvent& event) {
    IoState::Stream* const stream = state.FindStream(event.stream);
    if (stream == nullptr) {
      return;  // cancelled meanwhile
    }
    if (const auto connection = stream->connection.lock()) {
      connection->OnEvent(stream->prompt, std::move(event), now_ns);
    }
  });
  for (const leader::StreamId lost : state.inbox.TakeLost()) {
    IoState::Stream* const stream = state.FindStream(lost);
    if (const auto connection = stream == nullptr ? nullptr : stream->connection.lock()) {
      connection->OnLost();
    }
  }
  FlushSome();
}

void IoThread::Impl::FlushSome() {
  std::vector<std::shared_ptr<Connection>> batch;
  if (state.dirty.size() <= kFlushesPerTurn) {
    batch.swap(state.dirty);
  } else {
    batch.assign(std::make_move_iterator(state.dirty.begin()),
                 std::make_move_iterator(state.dirty.begin() + kFlushesPerTurn));
    state.dirty.erase(state.dirty.begin(), state.dirty.begin() + kFlushesPerTurn);
  }
  for (const auto& connection : batch) {
    connection->queued = false;
    connection->Flush();
  }
  if (!state.dirty.empty()) {
    asio::post(context, [this] { FlushSome(); });
  } else if (state.inbox.Arm()) {
    WaitForEvents();
  } else {
    asio::post(context, [this] { TakeEvents(); });
  }
}

void IoThread::Impl::StartTick() {
  tick.expires_after(kTick);
  tick.async_wait([this](const ErrorCode& ec) {
    if (ec) {
      return;
    }
    const std::int64_t now_ms = NowMs();
    std::vector<std::shared_ptr<Connection>> all;  // a tick may close, which changes the map
    all.reserve(state.connections.size());
    for (const auto& [id, connection] : state.connections) {
      all.push_back(connection);
    }
    for (const auto& connection : all) {
      connection->Tick(now_ms);
    }
    StartTick();
  });
}

void IoThread::Impl::CloseAll() {
  ErrorCode ignored;  // on the way out
  acceptor.close(ignored);
  accept_pause.cancel();
  tick.cancel();
  wake.cancel(ignored);
  auto all = std::exchange(state.connections, {});
  for (const auto& [id, connection] : all) {
    connection->Close(false);
  }
  work.reset();
  context.stop();
}

IoThread::IoThread(std::uint32_t index,
                   const HttpOptions& options,
                   Dispatcher* dispatcher,
                   leader::InferenceService* service,
                   Metrics* metrics)
    : impl_(std::make_unique<Impl>()) {
  impl_->state.thread = this;
  impl_->state.index = index;
  impl_->state.options = options;
  impl_->state.body_limits = {options.max_body_bytes, options.max_upload_bytes, dispatcher};
  impl_->state.dispatcher = dispatcher;
  impl_->state.service = service;
  impl_->state.metrics = metrics;
  impl_->state.read_buffer.resize(64U << 10);
}

IoThread::~IoThread() {
  if (impl_->wake.is_open()) {
    impl_->wake.release();  // the inbox owns the descriptor
  }
}

Result<> IoThread::Adopt(Listener listener) {
  ErrorCode ec;
  impl_->acceptor.assign(Protocol(listener.family, 0), listener.fd.get(), ec);
  if (ec) {
    return Internal("cannot watch the listening socket: {}", ec.message());
  }
  listener.fd.Release();  // the acceptor owns it now
  impl_->wake.assign(impl_->state.inbox.wake_fd(), ec);
  if (ec) {
    return Internal("cannot watch the event descriptor: {}", ec.message());
  }
  return {};
}

void IoThread::Run() {
  asio::post(impl_->context, [this] {
    impl_->Accept();
    impl_->StartTick();
    impl_->TakeEvents();
  });
  impl_->context.run();
}

void IoThread::Stop() {
  asio::post(impl_->context, [this] { impl_->CloseAll(); });
}

void IoThread::Post(std::move_only_function<void()> work) {
  // Asio's handlers of io_context may be move-only.
  asio::post(impl_->context, [work = std::move(work)]() mutable { work(); });
}

void IoThread::Respond(RequestKey key, HttpResponse response, std::string more) {
  const auto it = impl_->state.connections.find(key.connection);
  if (it != impl_->state.connections.end()) {
    const auto connection = it->second;  // stays alive if this closes it
    connection->Respond(key.serial, std::move(response), std::move(more));
  }
}

void IoThread::Start(RequestKey key, std::unique_ptr<Generation> generation, std::string more) {
  const auto it = impl_->state.connections.find(key.connection);
  if (it != impl_->state.connections.end()) {
    const auto connection = it->second;
    connection->Start(key.serial, std::move(generation), std::move(more));
  }
}

void IoThread::Abort(RequestKey key) {
  const auto it = impl_->state.connections.find(key.connection);
  if (it != impl_->state.connections.end()) {
    const auto connection = it->second;
    connection->Abort(key.serial);
  }
}

}  // namespace inferd::api
