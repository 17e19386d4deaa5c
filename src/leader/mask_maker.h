// SPDX-License-Identifier: Apache-2.0
// MaskMaker: follows the constrained sequences of a replica and makes their token masks on threads
// of its own, while the devices run the steps that will sample under them.
#pragma once

#include "engine/request.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "rpc/control_server.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace inferd::leader {

/// Owner: the replica's engine thread, which calls everything. A mask goes straight to the
/// sampler's stream from the thread that made it. Jobs are bounded by the samples in flight.
class MaskMaker {
 public:
  /// `failed` is called on any thread, before the mask that lets the step go on is sent: the
  /// sequence is to end with the error.
  using Failed = std::function<void(std::uint64_t sequence, Error error)>;
  MaskMaker(int num_threads, std::int64_t vocab_size, Failed failed);
  ~MaskMaker();
  MaskMaker(const MaskMaker&) = delete;
  MaskMaker& operator=(const MaskMaker&) = delete;

  void Add(std::uint64_t sequence, std::shared_ptr<const TokenConstraint> constraint);
  /// A token that was given out. Unknown sequences are ignored, here and below.
  void TakeToken(std::uint64_t sequence, std::int32_t token);
  void Remove(std::uint64_t sequence);
  /// Makes the mask of a request of `generation` and sends it. For an unknown sequence, and when
  /// it is not wanted, it allows everything.
  void Make(const engine::MaskRequest& request,
            std::uint64_t generation,
            std::shared_ptr<rpc::Peer> sampler);
  /// Drops the jobs left and joins the threads.
  void Stop();

 private:
  struct Sequence {
    std::uint64_t id = 0;
    std::shared_ptr<const TokenConstraint> pristine;
    std::mutex tokens_mutex;
    std::vector<std::int32_t> tokens;  // given out, not taken by `own` yet; guarded by tokens_mutex
    std::mutex own_mutex;              // held while a mask is made
    std::unique_ptr<TokenConstraint> own;  // guarded by own_mutex; null before the first mask
    bool failed = false;                   // guarded by own_mutex
  };
  struct Job {
    std::shared_ptr<Sequence> sequence;  // null: allow everything
    spec::TokenMask mask;                // named, still empty
    std::shared_ptr<rpc::Peer> sampler;
  };

  void Loop();
  void Run(Job* job, std::vector<std::uint32_t>* words);
  Result<> Fill(Sequence* sequence, std::vector<std::uint32_t>* words);

  const std::int64_t vocab_size_;
  const Failed failed_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Sequence>> sequences_;  // engine thread only
  std::mutex jobs_mutex_;
  std::condition_variable jobs_changed_;
  std::deque<Job> jobs_;  // guarded by jobs_mutex_
  bool stop_ = false;     // guarded by jobs_mutex_
  std::vector<std::thread> threads_;
};

}  // namespace inferd::leader
