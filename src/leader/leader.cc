// SPDX-License-Identifier: Apache-2.0
#include "leader/leader.h"

#include "base/error.h"
#include "base/log.h"
#include "engine/replica_router.h"
#include "leader/host_resources.h"
#include "leader/kv_event_publisher.h"
#include "leader/node_table.h"
#include "leader/place_ranks.h"
#include "leader/replica.h"
#include "leader/runtime_dir.h"
#include "leader/serving.h"
#include "leader/sizing.h"
#include "leader/sleeper.h"
#include "plan/placement.h"
#include "rpc/control_server.h"
#include "rpc/secret.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace inferd::leader {
namespace {

constexpr std::int32_t kPageTokens = 32;
constexpr std::int64_t kDefaultKvBytes = 4LL << 30;
constexpr std::chrono::milliseconds kWatchdogPeriod{100};
constexpr std::int64_t kWorkerGraceMs = 2'000;

class LeaderImpl : public Leader, public WorkerHost, public rpc::PeerListener {
 public:
  explicit LeaderImpl(LeaderOptions options)
      : options_(std::move(options)), hasher_(engine::PrefixHasher::Random(kPageTokens)) {}

  ~LeaderImpl() override { Stop(); }

  Result<> Start() {
    INFERD_TRY(spec::Validate(options_.model));
    INFERD_ASSIGN(shards_, spec::PlanShards(options_.model, options_.parallel, options_.cut));
    INFERD_TRY(Size());
    if (options_.secret.empty()) {
      if (options_.nnodes > 1) {
        return InvalidArgument(
            "--nnodes {} needs a cluster secret shared by all nodes: set --cluster-secret-file or "
            "INFERD_CLUSTER_SECRET",
            options_.nnodes);
      }
      options_.secret = rpc::RandomSecret();
    }
    if (options_.worker_binary.empty()) {
      INFERD_ASSIGN(options_.worker_binary, OwnBinary());
    }
    INFERD_TRY(OpenKvEvents());
    INFERD_ASSIGN(runtime_dir_, RuntimeDir::Make(options_.runtime_dir));
    rpc::ControlServerOptions control;
    control.unix_path = runtime_dir_.socket_path();
    control.tcp_address = options_.control_address;
    control.secret = options_.secret;
    INFERD_ASSIGN(control_, rpc::StartControlServer(control, this));
    LauncherOptions launcher;
    launcher.worker_binary = options_.worker_binary;
    launcher.leader_address = "unix:" + control.unix_path;
    launcher.secret = options_.secret;
    launcher.data_address = options_.nnodes > 1 ? options_.data_address : std::string();
    nodes_ = std::make_unique<NodeTable>(
        options_.nnodes, std::move(launcher), [this](std::uint64_t worker_id, std::string how) {
          if (Replica* replica = ReplicaOf(worker_id)) {
            replica->OnExit(worker_id, std::move(how));
          }
        });
    router_ = std::make_unique<engine::ReplicaRouter>(
        engine::RouterOptions{.num_replicas = options_.parallel.dp, .page_size = kPageTokens});
    starter_ = std::thread([this] { StartReplicas(); });
    return {};
  }

  // ---- InferenceService

  Result<> Submit(GenerateRequest request, Refusal* refusal) override {
    INFERD_TRY(CheckServing(phase(), refusal));
    INFERD_TRY(CheckLength(request));
    if (request.queue_deadline_ms == 0) {
      request.queue_deadline_ms = options_.default_queue_deadline_ms;
    }
    std::vector<engine::Hash128> keys;
    hasher_.Extend(request.prompt, request.cache_salt, &keys);
    const std::int64_t cost = static_cast<std::int64_t>(request.prompt.size()) +
                              std::int64_t{request.n} * request.max_tokens;
    const int index = Route(keys, cost, engine::SessionKey(request.tenant, request.session));
    if (index < 0) {
      return CheckServing(Phase::kLoading, refusal);  // of phases of their own, none for long
    }
    Result<> submitted = replicas_[static_cast<std::size_t>(index)]->Submit(
        std::move(request), std::move(keys), cost, refusal);
    if (!submitted.ok()) {
      const std::lock_guard lock(router_mutex_);
      router_->Finished(index, cost);
    }
    return submitted;
  }

  void Cancel(StreamId stream, std::int32_t choice) override {
    if (!started_.load()) {
      return;  // Nothing can have been submitted.
    }
    // The replica that has it acts, the others do not know the stream.
    for (const auto& replica : replicas_) {
      replica->Cancel(stream, choice);
    }
  }

  Phase phase() const override {
    if (stopped_.load()) {
      return Phase::kStopped;
    }
    if (draining_.load()) {
      return Phase::kDraining;
    }
    if (failed_.load()) {
      return Phase::kFailed;
    }
    if (!started_.load()) {
      return Phase::kStarting;
    }
    if (const Sleeper::State sleep = sleeper_.state(); sleep != Sleeper::State::kAwake) {
      return sleep == Sleeper::State::kWaking ? Phase::kLoading : Phase::kAsleep;
    }
    // One replica that serves is enough; else the state of the one furthest from serving.
    Phase worst = Phase::kReady;
    bool any_ready = false;
    for (const auto& replica : replicas_) {
      const Phase one = replica->phase();
      any_ready = any_ready || one == Phase::kReady;
      if (one != Phase::kReady) {
        worst = one;
      }
    }
    if (worst == Phase::kReady) {
      was_ready_.store(true);
    }
    return was_ready_.load() && any_ready ? Phase::kReady : worst;
  }

  std::optional<Stall> stall() const override {
    std::optional<Stall> longest;
    for (std::size_t i = 0; started_.load() && i < replicas_.size(); ++i) {
      const std::int64_t ms = replicas_[i]->stalled_ms();
      if (ms > 0 && (!longest || ms > longest->ms)) {
        longest = {static_cast<std::int64_t>(i), ms};
      }
    }
    return longest;
  }

  Result<> Sleep(int level, SleepMode mode) override {
    INFERD_TRY(MaySleep());
    return sleeper_.Sleep(level, mode);
  }
  Result<> WakeUp() override {
    INFERD_TRY(MaySleep());
    return sleeper_.WakeUp();
  }
  int sleep_level() const override { return sleeper_.level(); }

  LoadProgress load_progress() const override {
    LoadProgress sum;
    if (started_.load()) {
      for (const auto& replica : replicas_) {
        const LoadProgress one = replica->load_progress();
        sum.bytes_done += one.bytes_done;
        sum.bytes_total += one.bytes_total;
      }
    }
    return sum;
  }

  std::vector<ReplicaStats> stats() const override {
    std::vector<ReplicaStats> all;
    const spec::KvDtype kv = spec::ResolvedKvDtype(options_.kv_dtype, options_.model);
    if (started_.load()) {
      for (const auto& replica : replicas_) {
        all.push_back(replica->stats());
        all.back().kv_dtype = spec::KvDtypeName(kv);
      }
    }
    return all;
  }

  const spec::ModelSpec& model() const override { return options_.model; }
  std::int64_t max_model_len() const override { return sizing_.max_model_len; }
  std::int64_t max_choices() const override {
    return MaxWaiting() * static_cast<std::int64_t>(replicas_.size());
  }

  // ---- Leader

  Result<> WaitUntilReady(const std::function<void(const LoadProgress&)>& progress,
                          const std::function<bool()>& give_up) override {
    for (;;) {
      const Phase now = phase();
      if (now == Phase::kReady) {
        progress(load_progress());
        return {};
      }
      if (now == Phase::kFailed) {
        return Failure();
      }
      if (give_up()) {
        return Cancelled("stopped while the model was loading");
      }
      progress(load_progress());
      std::unique_lock lock(wait_mutex_);
      wait_.wait_for(lock, kWatchdogPeriod, [this] { return stopped_.load(); });
    }
  }

  void BeginDrain() override { draining_.store(true); }

  bool Idle() const override {
    const std::vector<ReplicaStats> all = stats();
    return std::all_of(all.begin(), all.end(), [](const ReplicaStats& s) {
      return s.running == 0 && s.waiting == 0;
    });
  }

  void Stop() override {
    if (stopped_.exchange(true)) {
      return;
    }
    wait_.notify_all();
    if (starter_.joinable()) {
      starter_.join();
    }
    for (const auto& replica : replicas_) {
      replica->Stop();
    }
    if (nodes_ != nullptr) {
      nodes_->Stop(kWorkerGraceMs);
    }
    if (control_ != nullptr) {
      control_->Stop();
    }
    runtime_dir_.Remove();
  }

  const spec::MemoryLedger& ledger() const override { return sizing_.ledger; }
  int control_port() const override { return control_ == nullptr ? 0 : control_->tcp_port(); }

  // ---- WorkerHost (engine threads)

  std::uint64_t SpawnWorker(int replica, int /*rank*/, std::int32_t node) override {
    std::uint64_t id = 0;
    {
      const std::lock_guard lock(workers_mutex_);
      id = next_worker_++;
      worker_replica_[id] = replica;
    }
    nodes_->Spawn(id, node);
    return id;
  }

  void KillWorker(std::uint64_t worker_id, std::int32_t node) override {
    nodes_->Kill(worker_id, node);
  }

  // ---- rpc::PeerListener (stream threads)

  void OnHello(const std::shared_ptr<rpc::Peer>& peer) override {
    if (peer->hello().kind == rpc::Hello::Kind::kNodeAgent) {
      nodes_->OnAgentHello(peer);
    } else if (Replica* replica = ReplicaOf(peer->hello().worker_id)) {
      replica->OnHello(peer);
    } else {
      peer->Close();
    }
  }

  void OnMessage(const std::shared_ptr<rpc::Peer>& peer, rpc::FromWorker message) override {
    if (peer->hello().kind == rpc::Hello::Kind::kNodeAgent) {
      nodes_->OnAgentMessage(peer, message);
    } else if (Replica* replica = ReplicaOf(peer->hello().worker_id)) {
      replica->OnMessage(peer->hello().worker_id, std::move(message));
    }
  }

  void OnClosed(const std::shared_ptr<rpc::Peer>& peer) override {
    if (peer->hello().kind == rpc::Hello::Kind::kNodeAgent) {
      nodes_->OnAgentClosed(peer);
    } else if (Replica* replica = ReplicaOf(peer->hello().worker_id)) {
      replica->OnClosed(peer->hello().worker_id);
    }
  }

 private:
  Result<> MaySleep() const {
    if (!options_.enable_sleep_mode) {
      return NotFound("sleeping is not enabled; start the server with --enable-sleep-mode");
    }
    if (!was_ready_.load() || draining_.load()) {
      return Unavailable("the server is not ready; ask /readyz and try again");
    }
    return {};
  }

  Result<> OpenKvEvents() {
    kv_events_.resize(static_cast<std::size_t>(options_.parallel.dp));
    if (options_.kv_events.enabled && !options_.prefix_cache) {
      log::Warning("leader", "there will be no KV events: the prefix cache is off");
    } else if (options_.kv_events.enabled) {
      for (int r = 0; r < options_.parallel.dp; ++r) {
        INFERD_ASSIGN(kv_events_[static_cast<std::size_t>(r)],
                      KvEventPublisher::Open(options_.kv_events, r, kPageTokens));
      }
    }
    return {};
  }

  Result<> Size() {
    const int ranks_here =
        std::max(1, options_.parallel.dp * options_.parallel.ranks_per_replica() / options_.nnodes);
    std::int64_t host_bytes = options_.kv_cache_bytes;
    if (host_bytes == 0) {
      host_bytes = std::min(kDefaultKvBytes, AvailableMemoryBytes() / 4);
    }
    SizingInput input;
    input.model = &options_.model;
    input.shards = &shards_;
    input.bytes_per_weight = spec::BytesPerWeight(options_.model, options_.weight_bytes);
    input.weight_bytes = options_.shard_weight_bytes;
    input.kv_bytes_per_value = spec::KvBytesPerValue(options_.kv_dtype, options_.model);
    input.page_tokens = kPageTokens;
    input.max_num_seqs = options_.max_num_seqs;
    input.max_batched_tokens = options_.max_num_batched_tokens;
    input.max_model_len = options_.max_model_len;
    input.kv_cache_bytes = host_bytes / ranks_here;
    if (options_.kv_cache_bytes == 0) {
      input.device_bytes = options_.device_bytes;
    }
    INFERD_ASSIGN(sizing_, SizeKvCache(input));
    return {};
  }

  Result<> CheckLength(GenerateRequest& request) const {
    const auto prompt = static_cast<std::int64_t>(request.prompt.size());
    if (prompt == 0) {
      return InvalidArgument("the prompt is empty");
    }
    const bool only_prompt = request.max_tokens == 0;
    if (prompt > max_model_len() || (prompt == max_model_len() && !only_prompt)) {
      return InvalidArgument(
          "the prompt has {} tokens and this server's context length is {}; shorten the prompt or "
          "start with a larger --max-model-len",
          prompt,
          max_model_len());
    }
    request.max_tokens = static_cast<std::int32_t>(
        std::min<std::int64_t>(request.max_tokens, max_model_len() - prompt));
    return {};
  }

  /// Replica for a request, -1 when none serves. The router learns here who serves.
  int Route(const std::vector<engine::Hash128>& keys, std::int64_t cost, std::uint64_t session) {
    const std::lock_guard lock(router_mutex_);
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      const Phase one = replicas_[i]->phase();
      // While the only replica recovers it still takes requests: they wait with the others.
      const bool serves =
          one == Phase::kReady || (one == Phase::kRecovering && replicas_.size() == 1);
      if (serves != (available_[i] != 0)) {
        available_[i] = serves ? 1 : 0;
        router_->SetAvailable(static_cast<std::int32_t>(i), serves);
      }
    }
    int choice = router_->Route(keys, cost, session).replica;
    if (choice < 0) {
      // All recover: queue at the first that may come back.
      for (std::size_t i = 0; i < replicas_.size() && choice < 0; ++i) {
        if (replicas_[i]->phase() == Phase::kRecovering && !replicas_[i]->lost_for_good()) {
          available_[i] = 1;
          router_->SetAvailable(static_cast<std::int32_t>(i), true);
          choice = router_->Route(keys, cost, session).replica;
        }
      }
    }
    return choice;
  }

  void StartReplicas() {
    if (options_.nnodes > 1) {
      if (Result<> joined =
              nodes_->WaitForAgents(options_.nodes_deadline_ms, [this] { return stopped_.load(); });
          !joined.ok()) {
        Fail(joined.error());
        return;
      }
    }
    Result<std::vector<plan::RankPlacement>> places = PlaceAllRanks(options_, nodes_->AgentCpus());
    if (!places.ok()) {
      Fail(places.error());
      return;
    }
    Result<std::vector<std::string>> devices = DevicesOf(options_, *places);
    if (!devices.ok()) {
      Fail(devices.error());
      return;
    }
    const int per_replica = options_.parallel.ranks_per_replica();
    const std::string server_id =
        "inferd-" + std::to_string(::getpid()) + "-" + rpc::RandomSecret().substr(0, 8);
    for (int r = 0; r < options_.parallel.dp; ++r) {
      ReplicaOptions replica;
      replica.ranks.replica = r;
      replica.ranks.server_id = server_id;
      replica.ranks.step_deadline_ms = options_.step_deadline_ms;
      for (int k = 0; k < per_replica; ++k) {
        const auto at = static_cast<std::size_t>(r * per_replica + k);
        const plan::RankPlacement& place = (*places)[at];
        replica.ranks.loads.push_back(MakeLoad(
            options_, sizing_, shards_[static_cast<std::size_t>(k)], place, (*devices)[at]));
        replica.ranks.nodes.push_back(place.node);
      }
      replica.scheduler = MakeSchedulerOptions();
      replica.eos_tokens = options_.model.eos_ids;
      replica.num_speculative_tokens = options_.num_speculative_tokens;
      replica.vocab_size = options_.model.vocab_size;
      replica.keeps_weights_asleep = options_.device.kind == spec::DeviceKind::kCpu ||
                                     options_.device.kind == spec::DeviceKind::kSim;
      replica.max_waiting_tokens = options_.max_waiting_tokens;
      replica.max_predicted_wait_ms = options_.max_predicted_wait_ms;
      replica.recovery_deadline_ms = options_.recovery_deadline_ms;
      replica.stall_deadline_ms = options_.stall_deadline_ms;
      replicas_.push_back(std::make_unique<Replica>(
          std::move(replica),
          this,
          &hasher_,
          [this, r](std::int64_t cost) {
            const std::lock_guard lock(router_mutex_);
            router_->Finished(r, cost);
          },
          std::move(kv_events_[static_cast<std::size_t>(r)])));
    }
    available_.assign(replicas_.size(), 1);
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      router_->SetAvailable(static_cast<std::int32_t>(i), true);
    }
    started_.store(true);
    for (const auto& replica : replicas_) {
      replica->Start();
    }
    Watch();
  }

  /// Of a replica. The bound that clients feel is Replica::Submit's; a burst passes through the
  /// waiting queue on its way to rows.
  std::int64_t MaxWaiting() const {
    return options_.max_waiting + std::int64_t{options_.max_num_seqs} * options_.parallel.ep;
  }

  engine::SchedulerOptions MakeSchedulerOptions() const {
    engine::SchedulerOptions scheduler;
    scheduler.num_groups = options_.parallel.ep;
    scheduler.num_stages = options_.parallel.pp;
    scheduler.max_in_flight = options_.parallel.pp + 1;
    scheduler.page_size = kPageTokens;
    scheduler.num_pages = sizing_.kv_pages;
    scheduler.max_num_seqs = options_.max_num_seqs;
    scheduler.max_batched_tokens = options_.max_num_batched_tokens;
    scheduler.target_itl_ns = options_.target_itl_ns;
    scheduler.max_model_len = sizing_.max_model_len;
    scheduler.max_waiting = MaxWaiting();
    scheduler.prefix_cache = options_.prefix_cache;
    scheduler.prompt_lookup = options_.prompt_lookup;
    return scheduler;
  }

  /// The starter thread goes on as the watchdog of sends that are stuck.
  void Watch() {
    std::unique_lock lock(wait_mutex_);
    while (!stopped_.load()) {
      wait_.wait_for(lock, kWatchdogPeriod, [this] { return stopped_.load(); });
      for (const auto& replica : replicas_) {
        replica->CheckStuckSend();
      }
      sleeper_.Settle();
      if (const std::int32_t node = nodes_->LostNode(options_.peer_deadline_ms);
          node > 0 && !failed_.load()) {
        Fail(Unavailable("node {} has been away for {} ms", node, options_.peer_deadline_ms));
      }
      const bool all_lost =
          std::all_of(replicas_.begin(), replicas_.end(), [](const auto& replica) {
            return replica->lost_for_good();
          });
      if (all_lost && !failed_.load()) {
        Fail(DataLoss("workers were lost and could not be replaced; the log above says why"));
      }
    }
  }

  void Fail(const Error& error) {
    const std::lock_guard lock(failure_mutex_);
    failure_ = error;
    failed_.store(true);
  }

  Error Failure() const {
    {
      const std::lock_guard lock(failure_mutex_);
      if (failure_) {
        return *failure_;
      }
    }
    for (const auto& replica : replicas_) {
      if (replica->phase() == Phase::kFailed) {
        return replica->failure();
      }
    }
    return Internal("the server failed without saying why");
  }

  Replica* ReplicaOf(std::uint64_t worker_id) {
    const std::lock_guard lock(workers_mutex_);
    const auto found = worker_replica_.find(worker_id);
    if (found == worker_replica_.end() || !started_.load()) {
      return nullptr;
    }
    return replicas_[static_cast<std::size_t>(found->second)].get();
  }

  LeaderOptions options_;
  const engine::PrefixHasher hasher_;
  std::vector<spec::ShardPlan> shards_;
  Sizing sizing_;
  RuntimeDir runtime_dir_;

  std::atomic<bool> started_{false};  // replicas_ is complete and never changes again
  mutable std::atomic<bool> was_ready_{
      false};  // all replicas have served at once; later one is enough
  std::atomic<bool> draining_{false}, failed_{false}, stopped_{false};
  std::vector<std::unique_ptr<Replica>> replicas_;
  Sleeper sleeper_{&replicas_, [this] { return draining_.load() || stopped_.load(); }};
  std::vector<std::unique_ptr<KvEventPublisher>> kv_events_;  // [replica], until it exists

  std::mutex router_mutex_;
  std::unique_ptr<engine::ReplicaRouter> router_;  // guarded by router_mutex_
  std::vector<char> available_;                    // guarded by router_mutex_

  std::mutex workers_mutex_;
  std::uint64_t next_worker_ = 1;
  std::map<std::uint64_t, int> worker_replica_;

  mutable std::mutex failure_mutex_;
  std::optional<Error> failure_;

  std::mutex wait_mutex_;
  std::condition_variable wait_;
  std::unique_ptr<rpc::ControlServer> control_;
  std::unique_ptr<NodeTable> nodes_;
  std::thread starter_;
};

}  // namespace

Result<std::unique_ptr<Leader>> Leader::Start(LeaderOptions options) {
  auto leader = std::make_unique<LeaderImpl>(std::move(options));
  INFERD_TRY(leader->Start());
  return std::unique_ptr<Leader>(std::move(leader));
}

}  // namespace inferd::leader
