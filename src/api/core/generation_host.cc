// SPDX-License-Identifier: Apache-2.0
#include "api/core/generation_host.h"

#include "api/core/event_ring.h"
#include "api/core/refusal.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

constexpr int kTickMs = 1000;

}  // namespace

struct GenerationHost::Impl {
  struct Hosted {
    Ticket ticket = 0;
    std::unique_ptr<Generation> generation;
    GenerationListener* listener = nullptr;
    std::vector<leader::StreamId> streams;  // [prompts]
    bool queued = false;                    // in dirty
  };

  struct Slot {  // of a stream
    std::uint64_t generation = 0;
    Ticket ticket = 0;  // 0: free
    std::size_t prompt = 0;
  };

  struct Command {
    enum class Kind { kSubmit, kCancel, kResume };
    Kind kind = Kind::kSubmit;
    Ticket ticket = 0;
    std::unique_ptr<Generation> generation;  // kSubmit
    GenerationListener* listener = nullptr;  // kSubmit
  };

  Impl(const GenerationHostOptions& host_options,
       leader::InferenceService* host_service,
       Metrics* host_metrics)
      : options(host_options),
        service(host_service),
        metrics(host_metrics),
        wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    INFERD_CHECK_MSG(wake.valid(), "eventfd failed: out of file descriptors at start-up");
  }

  void Post(Command command);
  void Run();
  void Wait();
  void TakeCommands();
  void TakeEvents();
  void Open(Command command);
  void End(Hosted* hosted, bool client_left);
  void MarkDirty(Hosted* hosted);
  void Progress(std::int64_t now_ms);
  leader::StreamId OpenStream(Ticket ticket, std::size_t prompt);
  void CloseStream(leader::StreamId id);
  Hosted* Find(Ticket ticket);
  Hosted* FindStream(leader::StreamId id, std::size_t* prompt);

  const GenerationHostOptions options;
  leader::InferenceService* const service;
  Metrics* const metrics;
  EventInbox inbox;
  base::UniqueFd wake;  // for commands
  std::atomic<std::size_t> num_open{0};
  std::atomic<Ticket> next_ticket{1};

  std::mutex mutex;
  std::vector<Command> commands;  // at most one submit and few others per open generation
  bool stop = false;

  // The thread's own.
  std::unordered_map<Ticket, Hosted> hosted;
  std::vector<Slot> slots;
  std::vector<std::uint32_t> free_slots;
  std::vector<Ticket> dirty;
  std::int64_t ticked_ms = 0;
  std::thread thread;
};

// ---- any thread

void GenerationHost::Impl::Post(Command command) {
  {
    const std::lock_guard lock(mutex);
    commands.push_back(std::move(command));
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n =
      write(wake.get(), &one, sizeof one);  // cannot fail: the counter is far from full
}

GenerationHost::GenerationHost(const GenerationHostOptions& options,
                               leader::InferenceService* service,
                               Metrics* metrics)
    : impl_(std::make_unique<Impl>(options, service, metrics)) {
  impl_->thread = std::thread([impl = impl_.get()] {
    try {
      impl->Run();
    } catch (const std::exception& error) {  // only a bug or an exhausted heap gets here
      base::CheckFailed("generation host", error.what());
    }
  });
}

GenerationHost::~GenerationHost() { Stop(); }

std::size_t GenerationHost::open() const { return impl_->num_open.load(std::memory_order_acquire); }

Result<GenerationHost::Ticket> GenerationHost::Submit(std::unique_ptr<Generation> generation,
                                                      GenerationListener* listener) {
  if (impl_->num_open.fetch_add(1, std::memory_order_acq_rel) >= impl_->options.max_generations) {
    impl_->num_open.fetch_sub(1, std::memory_order_acq_rel);
    return ResourceExhausted("{} requests run already; try again soon",
                             impl_->options.max_generations);
  }
  const Ticket ticket = impl_->next_ticket.fetch_add(1, std::memory_order_relaxed);
  {
    // Under the lock with the check, so that Stop finds every generation that was taken.
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stop) {
      impl_->num_open.fetch_sub(1, std::memory_order_acq_rel);
      return Unavailable("The server is shutting down; send the request to another one");
    }
    impl_->commands.push_back(
        {Impl::Command::Kind::kSubmit, ticket, std::move(generation), listener});
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(impl_->wake.get(), &one, sizeof one);
  return ticket;
}

void GenerationHost::Cancel(Ticket ticket) {
  impl_->Post({Impl::Command::Kind::kCancel, ticket, nullptr, nullptr});
}

void GenerationHost::Resume(Ticket ticket) {
  impl_->Post({Impl::Command::Kind::kResume, ticket, nullptr, nullptr});
}

void GenerationHost::Stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(impl_->wake.get(), &one, sizeof one);
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
}

// ---- streams

leader::StreamId GenerationHost::Impl::OpenStream(Ticket ticket, std::size_t prompt) {
  if (free_slots.empty()) {
    free_slots.push_back(static_cast<std::uint32_t>(slots.size()));
    slots.emplace_back();
  }
  const std::uint32_t index = free_slots.back();
  free_slots.pop_back();
  Slot& slot = slots[index];
  ++slot.generation;
  slot.ticket = ticket;
  slot.prompt = prompt;
  return {options.index, index, slot.generation};
}

void GenerationHost::Impl::CloseStream(leader::StreamId id) {
  slots[id.slot].ticket = 0;
  free_slots.push_back(id.slot);
}

GenerationHost::Impl::Hosted* GenerationHost::Impl::Find(Ticket ticket) {
  const auto it = hosted.find(ticket);
  return it == hosted.end() ? nullptr : &it->second;
}

GenerationHost::Impl::Hosted* GenerationHost::Impl::FindStream(leader::StreamId id,
                                                               std::size_t* prompt) {
  if (id.slot >= slots.size() || slots[id.slot].generation != id.generation) {
    return nullptr;  // cancelled meanwhile
  }
  *prompt = slots[id.slot].prompt;
  return Find(slots[id.slot].ticket);
}

// ---- the host's thread

void GenerationHost::Impl::MarkDirty(Hosted* one) {
  if (!one->queued) {
    one->queued = true;
    dirty.push_back(one->ticket);
  }
}

void GenerationHost::Impl::Open(Command command) {
  Hosted& one = hosted[command.ticket];
  one.ticket = command.ticket;
  one.generation = std::move(command.generation);
  one.listener = command.listener;
  metrics->generations_open.fetch_add(1, std::memory_order_relaxed);
  std::vector<leader::GenerateRequest> requests = one.generation->TakeRequests();
  for (std::size_t prompt = 0; prompt < requests.size(); ++prompt) {
    requests[prompt].stream = OpenStream(one.ticket, prompt);
    requests[prompt].sink = &inbox;
    one.streams.push_back(requests[prompt].stream);
    leader::Refusal refusal;
    auto submitted = service->Submit(std::move(requests[prompt]), &refusal);
    if (!submitted.ok()) {
      Fault fault = RefusedFor(refusal, submitted.error());
      one.generation->Fail(std::move(submitted).error(), std::move(fault));
      break;
    }
  }
  MarkDirty(&one);
}

/// Ends the streams on the engine side, books the outcome and forgets the generation.
void GenerationHost::Impl::End(Hosted* one, bool client_left) {
  const bool complete = one->generation->done() && !one->generation->failure();
  for (const leader::StreamId stream : one->streams) {
    if (!complete) {
      service->Cancel(stream, -1);
    }
    CloseStream(stream);
  }
  if (client_left) {
    metrics->clients_left.fetch_add(1, std::memory_order_relaxed);
  }
  one->generation->Record(base::SteadyClock::Get().NowNs(), client_left);
  metrics->generations_open.fetch_sub(1, std::memory_order_relaxed);
  auto node = hosted.extract(one->ticket);
  num_open.fetch_sub(1, std::memory_order_acq_rel);
  Hosted& last = node.mapped();
  last.listener->OnEnd(last.generation.get());
}

void GenerationHost::Impl::TakeCommands() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(wake.get(), &count, sizeof count);
  std::vector<Command> taken;
  {
    const std::lock_guard lock(mutex);
    taken.swap(commands);
  }
  for (Command& command : taken) {
    if (command.kind == Command::Kind::kSubmit) {
      Open(std::move(command));
      continue;
    }
    Hosted* const one = Find(command.ticket);
    if (one == nullptr) {
      continue;
    }
    if (command.kind == Command::Kind::kResume) {
      MarkDirty(one);
      continue;
    }
    one->generation->Fail(Error(Code::kCancelled, "The request was cancelled"));
    End(one, true);
  }
}

void GenerationHost::Impl::TakeEvents() {
  const std::int64_t now_ns = base::SteadyClock::Get().NowNs();
  std::size_t prompt = 0;
  inbox.Drain([&](leader::OutputEvent& event) {
    Hosted* const one = FindStream(event.stream, &prompt);
    if (one == nullptr) {
      return;
    }
    const leader::StreamId stream = event.stream;
    if (const auto choice = one->generation->OnEvent(prompt, std::move(event), now_ns)) {
      service->Cancel(stream, *choice);  // a stop string was found
    }
    MarkDirty(one);
  });
  for (const leader::StreamId lost : inbox.TakeLost()) {
    if (Hosted* const one = FindStream(lost, &prompt)) {
      metrics->events_lost.fetch_add(1, std::memory_order_relaxed);
      one->generation->Fail(Unavailable("The server fell behind; try again"));
      MarkDirty(one);
    }
  }
}

void GenerationHost::Impl::Progress(std::int64_t now_ms) {
  if (now_ms - ticked_ms >= kTickMs) {
    ticked_ms = now_ms;
    for (auto& [ticket, one] : hosted) {
      MarkDirty(&one);
    }
  }
  const std::vector<Ticket> batch = std::exchange(dirty, {});
  for (const Ticket ticket : batch) {
    Hosted* const one = Find(ticket);
    if (one == nullptr) {
      continue;
    }
    one->queued = false;
    if (!one->listener->OnProgress(one->generation.get(), now_ms)) {
      End(one, false);
    }
  }
}

void GenerationHost::Impl::Wait() {
  pollfd watched[] = {{wake.get(), POLLIN, 0}, {inbox.wake_fd(), POLLIN, 0}};
  poll(watched, 2, kTickMs);
  if ((watched[1].revents & POLLIN) != 0) {
    inbox.ClearWake();
  }
}

void GenerationHost::Impl::Run() {
  for (;;) {
    TakeCommands();
    TakeEvents();
    Progress(base::SteadyClock::Get().NowMs());
    {
      const std::lock_guard lock(mutex);
      if (stop && commands.empty()) {
        break;
      }
    }
    if (inbox.Arm()) {
      Wait();
    }
  }
  while (!hosted.empty()) {
    Hosted* const one = &hosted.begin()->second;
    one->generation->Fail(Unavailable("The server is shutting down; try another one"));
    End(one, false);
  }
}

}  // namespace inferd::api
