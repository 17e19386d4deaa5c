// SPDX-License-Identifier: Apache-2.0
#include "leader/rank_set.h"

#include "base/check.h"
#include "base/log.h"

#include <algorithm>
#include <utility>

namespace inferd::leader {
namespace {

constexpr std::int64_t kNever = INT64_MAX;
constexpr std::int64_t kMaxRespawnPauseMs = 5'000;

/// 0, 100, 200, 400, ... ms with up to a quarter of jitter, so that ranks do not come back in step.
std::int64_t RespawnPauseMs(int failures, std::uint64_t salt) {
  if (failures <= 1) {
    return 0;
  }
  const std::int64_t base =
      std::min<std::int64_t>(kMaxRespawnPauseMs, 50LL << std::min(failures - 1, 10));
  return base + static_cast<std::int64_t>(salt * 2654435761U % 256) * base / 1024;
}

}  // namespace

RankSet::RankSet(RankSetOptions options, WorkerHost* host, const base::Clock& clock)
    : options_(std::move(options)), host_(host), clock_(clock), ranks_(options_.loads.size()) {
  INFERD_CHECK(options_.loads.size() == options_.nodes.size());
  for (const spec::LoadRequest& load : options_.loads) {
    shards_.push_back(load.shard);
  }
}

RankSet::Rank* RankSet::Find(std::uint64_t worker_id) {
  return const_cast<Rank*>(std::as_const(*this).Find(worker_id));
}

const RankSet::Rank* RankSet::Find(std::uint64_t worker_id) const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return rank.state != RankState::kDead && rank.worker_id == worker_id;
  });
  return found == ranks_.end() ? nullptr : &*found;
}

int RankSet::RankOf(std::uint64_t worker_id) const {
  const Rank* rank = Find(worker_id);
  return rank == nullptr ? -1 : static_cast<int>(rank - ranks_.data());
}

void RankSet::SetState(Rank* rank, RankState state, std::int64_t deadline_ms) {
  rank->state = state;
  rank->deadline_ns = deadline_ms < 0 ? kNever : clock_.NowNs() + deadline_ms * base::kNsPerMs;
}

void RankSet::Advance(Rank* rank, std::int64_t bytes) {
  if (bytes > rank->bytes_most) {
    rank->bytes_most = bytes;
    advanced_ns_ = clock_.NowNs();
  }
}

void RankSet::OnHello(const std::shared_ptr<rpc::Peer>& peer) {
  Rank* rank = Find(peer->hello().worker_id);
  if (rank == nullptr || rank->state != RankState::kSpawned) {
    log::Warning("leader", "refused worker {}: no rank waits for it", peer->hello().worker_id);
    peer->Close();
    return;
  }
  rank->peer = peer;
  SetState(rank, RankState::kLoading, options_.load_stall_deadline_ms);
  peer->Send(options_.loads[static_cast<std::size_t>(rank - ranks_.data())]);
}

void RankSet::OnLoadProgress(std::uint64_t worker_id, const rpc::LoadProgress& progress) {
  if (Rank* rank = Find(worker_id); rank != nullptr && rank->state == RankState::kLoading) {
    rank->bytes_done = progress.bytes_done;
    rank->bytes_total = progress.bytes_total;
    Advance(rank, progress.bytes_done);
    SetState(rank, RankState::kLoading, options_.load_stall_deadline_ms);
  }
}

void RankSet::OnLoaded(std::uint64_t worker_id, const rpc::Loaded& loaded) {
  if (Rank* rank = Find(worker_id); rank != nullptr && rank->state == RankState::kLoading) {
    rank->bytes_done = rank->bytes_total;
    Advance(rank, kNever);
    SetState(rank, RankState::kIdle, -1);
    log::Info("leader",
              "replica {} rank {} loaded: {} ({:.1f} MiB of weights)",
              options_.replica,
              rank - ranks_.data(),
              loaded.device,
              static_cast<double>(loaded.weight_bytes) / (1 << 20));
  }
}

void RankSet::OnJoined(std::uint64_t worker_id, const rpc::Joined& joined) {
  Rank* rank = Find(worker_id);
  if (rank == nullptr || rank->state != RankState::kJoining || joined.generation != generation_) {
    return;
  }
  SetState(rank, RankState::kRunning, -1);
  running_ = std::all_of(
      ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.state == RankState::kRunning; });
  if (running_) {
    for (Rank& each : ranks_) {
      each.failures = 0;
      each.bytes_most = 0;
    }
  }
}

void RankSet::OnIdle(std::uint64_t worker_id, const rpc::Idle& idle) {
  Rank* rank = Find(worker_id);
  if (rank != nullptr && rank->state == RankState::kAborting && idle.generation < generation_) {
    SetState(rank, RankState::kIdle, -1);
  }
}

void RankSet::OnLost(std::uint64_t worker_id, std::string_view why, bool exited) {
  const int rank = RankOf(worker_id);
  if (rank < 0) {
    return;
  }
  const auto index = static_cast<std::size_t>(rank);
  if (ranks_[index].state == RankState::kLeaving) {
    if (exited) {
      End(&ranks_[index], 0);
    }  // Else its stream went first.
  } else if (asleep_ && !exited) {
    ++restarts_;
    KillAndWait(&ranks_[index], why);
  } else {
    Lose(index, why);
  }
}

/// Asleep, a worker is gone when its process is: until then its memory is taken.
void RankSet::KillAndWait(Rank* rank, std::string_view why) {
  log::Warning("leader",
               "replica {} rank {} (worker {}) is killed: {}",
               options_.replica,
               rank - ranks_.data(),
               rank->worker_id,
               why);
  rank->killed = true;
  host_->KillWorker(rank->worker_id,
                    options_.nodes[static_cast<std::size_t>(rank - ranks_.data())]);
  SetState(rank, RankState::kLeaving, options_.exit_deadline_ms);
}

void RankSet::Lose(std::size_t index, std::string_view why) {
  Rank& rank = ranks_[index];
  log::Warning("leader",
               "replica {} rank {} (worker {}) lost: {}",
               options_.replica,
               index,
               rank.worker_id,
               why);
  generation_broken_ =
      generation_broken_ || rank.state == RankState::kRunning || rank.state == RankState::kJoining;
  running_ = false;
  ++rank.failures;
  ++restarts_;
  End(&rank, RespawnPauseMs(rank.failures, rank.worker_id));
}

void RankSet::End(Rank* rank, std::int64_t respawn_pause_ms) {
  host_->KillWorker(rank->worker_id,
                    options_.nodes[static_cast<std::size_t>(rank - ranks_.data())]);
  if (rank->peer != nullptr) {
    rank->peer->Close();
    rank->peer.reset();
  }
  rank->killed = false;
  SetState(rank, RankState::kDead, respawn_pause_ms);
}

void RankSet::BeginGeneration(std::uint64_t generation) {
  const std::uint64_t old = generation_;
  generation_ = generation;
  generation_broken_ = false;
  running_ = false;
  for (Rank& rank : ranks_) {
    if (rank.state == RankState::kRunning || rank.state == RankState::kJoining ||
        rank.state == RankState::kAborting) {
      SetState(&rank, RankState::kAborting, options_.abort_deadline_ms);
      rank.peer->Send(rpc::Abort{old});
    }
  }
}

void RankSet::Sleep(std::uint64_t generation, bool end_processes) {
  const std::uint64_t old = generation_;
  generation_ = generation;
  generation_broken_ = false;
  running_ = false;
  asleep_ = true;
  for (Rank& rank : ranks_) {
    if (rank.state == RankState::kDead || rank.state == RankState::kLeaving) {
      continue;
    }
    if (rank.peer != nullptr) {
      rank.peer->Send(rpc::Abort{old, true});
    }
    if (rank.state == RankState::kSpawned || rank.state == RankState::kLoading || end_processes) {
      if (rank.peer != nullptr) {
        rank.peer->Send(rpc::Shutdown{});
      }
      SetState(&rank, RankState::kLeaving, options_.abort_deadline_ms);
    } else {
      SetState(&rank,
               RankState::kAborting,
               std::min(options_.sleep_deadline_ms, options_.step_deadline_ms));
    }
  }
}

void RankSet::Wake() {
  asleep_ = false;
  for (Rank& rank : ranks_) {
    rank.bytes_most = 0;
    if (rank.state == RankState::kDead) {
      SetState(&rank, RankState::kDead, 0);
    }
  }
}

bool RankSet::at_rest() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.state == RankState::kIdle || rank.state == RankState::kDead;
  });
}

bool RankSet::Tick() {
  const std::int64_t now_ns = clock_.NowNs();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (now_ns < rank.deadline_ns || (asleep_ && rank.state == RankState::kDead)) {
      continue;
    }
    switch (rank.state) {
      case RankState::kDead:
        rank.worker_id =
            host_->SpawnWorker(options_.replica, static_cast<int>(i), options_.nodes[i]);
        rank.bytes_done = 0;
        SetState(&rank, RankState::kSpawned, options_.hello_deadline_ms);
        break;
      case RankState::kSpawned:
        Lose(i, "it did not attach in time");
        break;
      case RankState::kLoading:
        Lose(i, "loading made no progress");
        break;
      case RankState::kAborting:
        if (asleep_) {
          ++restarts_;
          KillAndWait(&rank, "it did not leave its step in time");
        } else {
          Lose(i, "it did not leave its step in time");
        }
        break;
      case RankState::kJoining:
        Lose(i, "it did not join its group in time");
        break;
      case RankState::kLeaving:
        if (rank.killed) {
          End(&rank, 0);
        } else {
          KillAndWait(&rank, "it did not end by itself");
        }
        break;
      case RankState::kIdle:
      case RankState::kRunning:
        break;  // These have no deadline.
    }
  }
  if (!asleep_ && !generation_broken_ &&
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
        return rank.state == RankState::kIdle;
      })) {
    JoinAll();
  }
  return generation_broken_;
}

void RankSet::JoinAll() {
  std::vector<RankPlace> places;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    places.push_back({options_.nodes[i], ranks_[i].peer->hello().data_endpoint});
  }
  const std::vector<spec::JoinRequest> joins =
      PlanJoins(shards_,
                places,
                options_.server_id + "-r" + std::to_string(options_.replica),
                generation_,
                options_.step_deadline_ms);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    SetState(&ranks_[i], RankState::kJoining, options_.join_deadline_ms);
    ranks_[i].peer->Send(joins[i]);
  }
}

bool RankSet::Broadcast(const rpc::ToWorker& message) {
  bool ok = true;
  for (const Rank& rank : ranks_) {
    ok = rank.peer != nullptr && rank.peer->Send(message) && ok;
  }
  return ok;
}

std::shared_ptr<rpc::Peer> RankSet::SamplerOf(std::int32_t group) const {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (shards_[i].is_sampler() && shards_[i].group == group) {
      return ranks_[i].peer;
    }
  }
  return nullptr;
}

void RankSet::Shutdown() {
  for (const Rank& rank : ranks_) {
    if (rank.peer != nullptr) {
      rank.peer->Send(rpc::Shutdown{});
    }
  }
}

std::int64_t RankSet::bytes_done() const {
  std::int64_t sum = 0;
  for (const Rank& rank : ranks_) {
    sum += rank.bytes_done;
  }
  return sum;
}

std::int64_t RankSet::bytes_total() const {
  std::int64_t sum = 0;
  for (const Rank& rank : ranks_) {
    sum += rank.bytes_total;
  }
  return sum;
}

}  // namespace inferd::leader
