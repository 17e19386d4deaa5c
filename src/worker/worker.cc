// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "cost/sim_device.h"
#include "model/rank.h"
#include "rpc/control_client.h"
#include "worker/groups.h"
#include "worker/sim_rank.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace inferd::worker {
namespace {

/// Plans in flight are few (stages + 1); a leader that sends more than this is broken.
constexpr std::size_t kMaxQueuedMessages = 1024;
constexpr std::int64_t kProgressPeriodMs = 100;
/// With a step under way the main thread yields between looks for this long (most steps are
/// shorter), then sleeps.
constexpr std::chrono::milliseconds kYieldFor{20};
constexpr std::chrono::microseconds kLookPeriod{100};

/// A device that hangs has nothing freed by ops, but NCCL's end of a communicator may wait for it
/// for ever; the process's end does not.
void LeaveToTheProcess(std::unique_ptr<model::Rank> rank) {
  [[maybe_unused]] static model::Rank* volatile left = nullptr;
  left = rank.release();
}

class Worker {
 public:
  Worker(const WorkerOptions& options,
         std::unique_ptr<rpc::ControlClient> client,
         std::unique_ptr<comm::TcpListener> listener)
      : options_(options), client_(std::move(client)), listener_(std::move(listener)) {}

  Result<> Run() {
    std::thread reader([this] { ReadLoop(); });
    Result<> result = WorkLoop();
    client_->Close();
    reader.join();
    if (rank_ != nullptr) {
      rank_->Drop();
      if (rank_->broken()) {
        LeaveToTheProcess(std::move(rank_));
      }
    }
    return result;
  }

 private:
  // ---- reader thread

  void ReadLoop() {
    for (;;) {
      Result<rpc::ToWorker> message = client_->Receive();
      if (!message.ok()) {
        const std::lock_guard lock(error_mutex_);
        stream_error_ = std::move(message).error();
        break;
      }
      if (const auto* abort = std::get_if<rpc::Abort>(&*message)) {
        AbortGeneration(abort->generation);
      }
      if (auto* mask = std::get_if<spec::TokenMask>(&*message)) {
        GiveMask(std::move(*mask));  // The step that waits for it is running.
        continue;
      }
      if (!inbox_.TryPush(*std::move(message))) {
        const std::lock_guard lock(error_mutex_);
        stream_error_ =
            Internal("more than {} messages from the leader are waiting", kMaxQueuedMessages);
        break;
      }
    }
    AbortGeneration(~0ULL);  // Nobody waits for the step any more: leave it.
    inbox_.Close();
  }

  void AbortGeneration(std::uint64_t generation) {
    aborted_generation_.store(generation);
    const std::lock_guard lock(rank_mutex_);
    if (rank_ != nullptr) {
      rank_->Abort();
    }
  }

  void GiveMask(spec::TokenMask mask) {
    const std::lock_guard lock(rank_mutex_);
    if (rank_ != nullptr) {
      rank_->GiveMask(std::move(mask));
    }
  }

  // ---- main thread

  Result<> WorkLoop() {
    for (;;) {
      INFERD_ASSIGN(std::optional<rpc::ToWorker> message, NextMessage());
      if (!message) {
        if (!inbox_.closed()) {
          continue;
        }
        const std::lock_guard lock(error_mutex_);
        return stream_error_.value_or(Unavailable("the control stream ended"));
      }
      if (std::holds_alternative<rpc::Shutdown>(*message)) {
        return {};
      }
      INFERD_TRY(std::visit([this](auto& m) { return Handle(m); }, *message));
    }
  }

  /// Nothing: none came for long, or none will come. Finishes steps meanwhile, but a plan that is
  /// there goes first: the device should have it before it is done with the step before.
  Result<std::optional<rpc::ToWorker>> NextMessage() {
    auto began = std::chrono::steady_clock::now();
    while (rank_ != nullptr && rank_->num_under_way() > 0) {
      std::optional<rpc::ToWorker> message = inbox_.TryPop();
      if (message || inbox_.closed()) {
        return message;
      }
      if (rank_->IsDone()) {
        INFERD_TRY(FinishStep());
        began = std::chrono::steady_clock::now();
      } else if (std::chrono::steady_clock::now() - began < kYieldFor) {
        ::sched_yield();
      } else if (message = inbox_.PopFor(kLookPeriod); message) {
        return message;
      }
    }
    return inbox_.PopFor(std::chrono::hours(1));
  }

  Result<> FinishStep() {
    Result<std::optional<spec::StepResult>> result = rank_->Finish();
    if (!result.ok()) {
      return ReportFault(result.error());
    }
    if (result->has_value()) {
      client_->Send(**std::move(result));
    }
    return {};
  }

  Result<> Handle(const spec::LoadRequest& load) {
    std::int64_t last_ms = 0;
    const auto progress = [&](std::int64_t done, std::int64_t total) {
      const std::int64_t now_ms = base::SteadyClock::Get().NowMs();
      if (done == total || now_ms - last_ms >= kProgressPeriodMs) {
        last_ms = now_ms;
        client_->Send(rpc::LoadProgress{done, total});
      }
    };
    Result<std::unique_ptr<model::Rank>> rank =
        cost::IsSimDevice(load.device) ? MakeSimRank(load) : model::Rank::Load(load, progress);
    if (!rank.ok()) {
      const Error& error = rank.error();
      client_->Send(rpc::Fault{0, error.code(), error.message(), true});
      return error;
    }
    shard_ = load.shard;
    backend_ = load.comm;
    {
      const std::lock_guard lock(rank_mutex_);
      rank_ = *std::move(rank);
    }
    const model::RankMemory memory = rank_->memory();
    log::Debug("worker", "{}", rank_->Describe());
    client_->Send(rpc::Loaded{memory.weight_bytes, memory.kv_bytes, rank_->Describe()});
    return {};
  }

  Result<> Handle(const spec::JoinRequest& join) {
    if (rank_ == nullptr) {
      return FailedPrecondition("the leader asked to join before loading");
    }
    if (IsAborted(join.generation)) {
      return {};
    }
    generation_ = join.generation;
    Result<model::RankComms> comms =
        JoinGroups(join, shard_.rank, listener_.get(), options_.secret, backend_, rank_->queue());
    if (!comms.ok()) {
      return ReportFault(comms.error());
    }
    comms->step_deadline_ms = join.step_deadline_ms;
    if (Result<> joined = rank_->Join(join.generation, *std::move(comms)); !joined.ok()) {
      return ReportFault(joined.error());
    }
    if (IsAborted(join.generation)) {
      rank_->Abort();  // The abort came while the old communicators were still in place.
    }
    client_->Send(rpc::Joined{join.generation});
    return {};
  }

  Result<> Handle(const spec::StepPlan& plan) {
    if (rank_ == nullptr || plan.generation != generation_ || IsAborted(plan.generation)) {
      return {};
    }
    while (!faulted_ && !rank_->MayBegin(plan)) {
      INFERD_TRY(FinishStep());
    }
    if (faulted_) {
      return {};
    }
    if (Result<> begun = rank_->Begin(plan); !begun.ok()) {
      return ReportFault(begun.error().WithContext(fmt::format("step {}", plan.step)));
    }
    while (rank_->num_under_way() > 0 && rank_->IsDone()) {
      INFERD_TRY(FinishStep());
    }
    return {};
  }

  Result<> Handle(const rpc::Abort& abort) {
    faulted_ = false;
    if (rank_ != nullptr) {
      rank_->Drop();
      if (rank_->broken()) {
        return ReportFault(Unavailable("the device did not come to the end of its steps"));
      }
      if (abort.release_memory) {
        rank_->ReleaseMemory();
      }
    }
    client_->Send(rpc::Idle{abort.generation});
    return {};
  }

  Result<> Handle(const spec::TokenMask&) { return {}; }  // The reader takes them.
  Result<> Handle(const rpc::Shutdown&) { return {}; }
  Result<> Handle(const rpc::SpawnWorker&) {
    return InvalidArgument("a worker cannot spawn workers");
  }
  Result<> Handle(const rpc::KillWorker&) {
    return InvalidArgument("a worker cannot kill workers");
  }

  /// The generation is over for this rank; it waits for Abort and a new Join. An abort's own echo
  /// is not a fault. A device that failed for good ends the worker: the leader starts another one.
  Result<> ReportFault(const Error& error) {
    faulted_ = true;
    if (rank_->broken()) {
      client_->Send(rpc::Fault{generation_, error.code(), error.message(), false});
      return error;
    }
    if (!IsAborted(generation_)) {
      log::Warning("worker", "rank {}: {}", shard_.rank, error.message());
      client_->Send(rpc::Fault{generation_, error.code(), error.message(), false});
    }
    return {};
  }

  bool IsAborted(std::uint64_t generation) const {
    const std::uint64_t aborted = aborted_generation_.load();
    return aborted != kNone && generation <= aborted;
  }

  static constexpr std::uint64_t kNone = ~0ULL - 1;

  const WorkerOptions options_;
  const std::unique_ptr<rpc::ControlClient> client_;
  const std::unique_ptr<comm::TcpListener> listener_;
  base::BoundedQueue<rpc::ToWorker> inbox_{kMaxQueuedMessages};
  std::atomic<std::uint64_t> aborted_generation_{kNone};
  std::mutex rank_mutex_;  // guards the pointer against the reader's Abort and GiveMask; the main
                           // thread alone uses the rest of the rank
  std::unique_ptr<model::Rank> rank_;
  std::mutex error_mutex_;
  std::optional<Error> stream_error_;
  // Main thread only:
  spec::ShardPlan shard_;
  spec::CommBackend backend_ = spec::CommBackend::kAuto;
  std::uint64_t generation_ = 0;
  bool faulted_ = false;
};

}  // namespace

Result<> RunWorker(const WorkerOptions& options) {
  std::unique_ptr<comm::TcpListener> listener;
  if (!options.data_address.empty()) {
    INFERD_ASSIGN(listener, comm::ListenTcp(options.data_address));
  }
  rpc::Hello hello;
  hello.worker_id = options.worker_id;
  hello.node_rank = options.node_rank;
  hello.pid = ::getpid();
  hello.data_endpoint = listener == nullptr ? std::string() : listener->endpoint();
  rpc::ControlClientOptions client_options;
  client_options.leader = options.leader;
  client_options.secret = options.secret;
  client_options.connect_deadline = std::chrono::milliseconds(options.connect_deadline_ms);
  INFERD_ASSIGN(auto client, rpc::Attach(client_options, std::move(hello)));
  Worker worker(options, std::move(client), std::move(listener));
  return worker.Run();
}

}  // namespace inferd::worker
