// SPDX-License-Identifier: Apache-2.0
// Runs generations that no HTTP connection owns (gRPC, batches): one thread that submits them,
// takes their events and tells their listener. HTTP's twin is http/io_thread.h.
#pragma once

#include "api/core/generation.h"
#include "api/core/metrics.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace inferd::api {

/// Who reads a generation. Called on the host's thread only; must not block, and must live until
/// OnEnd.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;

  /// After each turn that brought something, after Resume and about once a second: render what is
  /// wanted (RenderStream, or RenderFull once done() without failure()), or leave it in the
  /// generation for later; pending_bytes() says how much waits there. False: this was all; what
  /// still runs is cancelled.
  virtual bool OnProgress(Generation* generation, std::int64_t now_ms) = 0;
  /// The last call, made exactly once: after OnProgress gave false, after Cancel, or because the
  /// host stops (then the generation has a failure, unless it was done). The generation is gone
  /// after it.
  virtual void OnEnd(Generation* generation) = 0;
};

struct GenerationHostOptions {
  /// Distinguishes the host's streams from those of other hosts and of I/O threads, whose numbers
  /// are small.
  std::uint32_t index = 0;
  std::size_t max_generations = 4096;  // open at once; beyond: kResourceExhausted
};

/// Submit, Cancel and Resume may be called by any thread. Must outlive the service's calls of its
/// inbox: destroy it after the service has stopped.
class GenerationHost {
 public:
  using Ticket = std::uint64_t;  // names a generation; never 0, never used twice

  GenerationHost(const GenerationHostOptions& options,
                 leader::InferenceService* service,
                 Metrics* metrics);
  ~GenerationHost();
  GenerationHost(const GenerationHost&) = delete;
  GenerationHost& operator=(const GenerationHost&) = delete;

  /// Takes the generation over, also one that is done already. An error (too many, stopped) leaves
  /// the listener uncalled; errors of the engine come as the generation's failure.
  Result<Ticket> Submit(std::unique_ptr<Generation> generation, GenerationListener* listener);
  /// Ends it as a client that left would: its KV is free within a step. No-op when it has ended.
  void Cancel(Ticket ticket);
  /// Asks for a call of OnProgress: the reader that was behind has caught up.
  void Resume(Ticket ticket);

  std::size_t open() const;

  /// Ends all generations, then the thread. Call before the service is destroyed.
  void Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferd::api
