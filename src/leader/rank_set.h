// SPDX-License-Identifier: Apache-2.0
// RankSet: the worker processes of one replica, from spawning to a running generation and back
// after a fault.
#pragma once

#include "base/clock.h"
#include "inferd/result.h"
#include "leader/join_plan.h"
#include "rpc/control_server.h"
#include "rpc/messages.h"
#include "spec/worker_config.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::leader {

/// Where workers come from; implemented by the leader. Thread-safe.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  /// Starts a process for (replica, rank) on a node; its Hello carries the returned id.
  virtual std::uint64_t SpawnWorker(int replica, int rank, std::int32_t node) = 0;
  virtual void KillWorker(std::uint64_t worker_id, std::int32_t node) = 0;
};

struct RankSetOptions {
  int replica = 0;
  std::string server_id;
  std::vector<spec::LoadRequest> loads;  // per rank
  std::vector<std::int32_t> nodes;       // per rank
  std::int64_t step_deadline_ms = 30'000;
  std::int64_t hello_deadline_ms = 30'000;        // from spawn to Hello
  std::int64_t load_stall_deadline_ms = 120'000;  // without progress
  std::int64_t abort_deadline_ms = 2'000;         // from Abort to Idle
  /// The same on the way to sleep, where nobody waits for the ranks: a long step may end first.
  std::int64_t sleep_deadline_ms = 20'000;
  std::int64_t exit_deadline_ms = 10'000;  // asleep, from killing a worker to its exit
  /// From Join to Joined. A backstop: a worker gives each of its four groups ten seconds on host
  /// memory and ten to start NCCL, and reports by itself when they have passed.
  std::int64_t join_deadline_ms = 85'000;
};

/// State of one rank:
///   kDead -> (respawn time) -> kSpawned -> (Hello; Load sent) -> kLoading -> (Loaded) -> kIdle
///   kIdle -> (all idle; Join sent) -> kJoining -> (Joined) -> kRunning
///   kJoining, kRunning -> (fault anywhere; Abort sent) -> kAborting -> (Idle) -> kIdle
///   any -> (exit, stream lost, deadline: killed) -> kDead
///   any -> (put to sleep for good; Shutdown sent) -> kLeaving -> (exit) -> kDead
///   kAborting, asleep -> (stream lost, deadline: killed) -> kLeaving; kLeaving that does not end
///   is killed, and given up for kDead when even that does not end it
/// Asleep, nothing leaves kIdle or kDead.
enum class RankState : std::uint8_t {
  kDead,
  kSpawned,
  kLoading,
  kIdle,
  kJoining,
  kRunning,
  kAborting,
  kLeaving
};

/// Owner: the replica's engine thread.
class RankSet {
 public:
  RankSet(RankSetOptions options, WorkerHost* host, const base::Clock& clock);

  /// Handlers of what happens to workers; messages of ids that are not current are ignored.
  void OnHello(const std::shared_ptr<rpc::Peer>& peer);
  void OnLoadProgress(std::uint64_t worker_id, const rpc::LoadProgress& progress);
  void OnLoaded(std::uint64_t worker_id, const rpc::Loaded& loaded);
  void OnJoined(std::uint64_t worker_id, const rpc::Joined& joined);
  void OnIdle(std::uint64_t worker_id, const rpc::Idle& idle);
  /// The worker is gone or must go: kills it if it lives, and respawns it after a pause that grows.
  /// `exited`: its process has ended. On the way to sleep that alone means that its memory is free.
  void OnLost(std::uint64_t worker_id, std::string_view why, bool exited = false);

  /// Respawns, sends Join when all are idle, applies deadlines. True when a rank of a joining or
  /// running generation has been lost, that is, when the replica must begin a new generation.
  bool Tick();

  /// A new generation: ranks that take part in the old one are aborted. Tick joins them anew.
  void BeginGeneration(std::uint64_t generation);

  /// As BeginGeneration, but the ranks are not joined, nor lost ones replaced, until Wake(). They
  /// give back their KV caches, or with `end_processes` everything.
  void Sleep(std::uint64_t generation, bool end_processes);
  void Wake();
  /// True when nothing is left to be given back.
  bool at_rest() const;

  bool running() const { return running_; }
  bool Owns(std::uint64_t worker_id) const { return Find(worker_id) != nullptr; }
  int RankOf(std::uint64_t worker_id) const;
  /// False when a stream broke; the loss itself is reported by OnLost.
  bool Broadcast(const rpc::ToWorker& message);
  /// The peer of the rank that samples for a group; null when it is not there.
  std::shared_ptr<rpc::Peer> SamplerOf(std::int32_t group) const;
  /// Sends Shutdown to all that live.
  void Shutdown();

  std::int64_t bytes_done() const;
  std::int64_t bytes_total() const;
  /// When a rank loaded further than ever since all ran; 0: none has yet. A worker that dies again
  /// and again at the same place does not move it.
  std::int64_t advanced_ns() const { return advanced_ns_; }
  std::uint64_t restarts() const { return restarts_; }

 private:
  struct Rank {
    RankState state = RankState::kDead;
    std::uint64_t worker_id = 0;
    std::shared_ptr<rpc::Peer> peer;
    std::int64_t deadline_ns = 0;  // of the present state; kDead: when to respawn
    std::int64_t bytes_done = 0, bytes_total = 0;
    std::int64_t bytes_most = 0;  // of any worker since it last ran
    int failures = 0;             // deaths since it last ran
    bool killed = false;          // and its exit is waited for
  };

  Rank* Find(std::uint64_t worker_id);
  const Rank* Find(std::uint64_t worker_id) const;
  void Advance(Rank* rank, std::int64_t bytes);
  void SetState(Rank* rank, RankState state, std::int64_t deadline_ms);
  void Lose(std::size_t index, std::string_view why);
  void End(Rank* rank, std::int64_t respawn_pause_ms);
  void KillAndWait(Rank* rank, std::string_view why);
  void JoinAll();

  const RankSetOptions options_;
  WorkerHost* const host_;
  const base::Clock& clock_;
  std::vector<spec::ShardPlan> shards_;
  std::vector<Rank> ranks_;
  std::int64_t advanced_ns_ = 0;
  std::uint64_t generation_ = 0;
  bool running_ = false;
  bool generation_broken_ = false;
  bool asleep_ = false;
  std::uint64_t restarts_ = 0;
};

}  // namespace inferd::leader
