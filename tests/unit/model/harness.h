// SPDX-License-Identifier: Apache-2.0
// Runs a model cut into shards on threads of this process, and reads the golden outputs of the
// families.
#pragma once

#include "comm/communicator.h"
#include "model/rank.h"
#include "model/shard.h"
#include "ops/device.h"
#include "spec/parallel.h"
#include "store/model.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace inferd::model {

/// Of the sources the test was built from, or what INFERD_TEST_DATA says on another machine
/// (tests/gpu/bundle.sh).
std::string DataFolder();
/// "<test data>/<family>/<file>".
std::string DataPath(const std::string& family, const std::string& file = {});

/// Outputs of the reference for a family; floats and integers both as stored.
struct Golden {
  std::map<std::string, std::vector<float>> floats;
  std::map<std::string, std::vector<std::int32_t>> ints;
  float tolerance = 0;
};
Golden ReadGolden(const std::string& family);

/// Communicators of every rank of a replica, as spec::JoinRequest groups them.
std::vector<RankComms> MakeComms(const std::vector<spec::ShardPlan>& plans);

/// One piece of work of one step: positions [start, start + count) of a sequence.
struct Piece {
  std::size_t sequence = 0;
  std::int64_t start = 0;
  std::int64_t count = 0;
};
using Schedule = std::vector<std::vector<Piece>>;  // by step
/// All sequences one after the other, in steps of at most `chunk` tokens of one sequence.
Schedule InChunks(const std::vector<std::vector<std::int32_t>>& sequences, std::int64_t chunk);

struct ShardSetOptions {
  spec::ParallelSpec parallel;
  std::int64_t max_model_len = 0;  // 0: the model's
  int threads = 1;
  std::string device = "cpu";
  spec::KvDtype kv_dtype = spec::KvDtype::kAuto;  // kF32: only the stored weights are rounded
  bool bf16_dot = false;                          // CPU: activations of BF16 weights are rounded
  std::string quantization;
};

/// The shards of one replica. Sequence s belongs to expert group s % ep.
class ShardSet {
 public:
  static Result<std::unique_ptr<ShardSet>> Make(const std::string& path,
                                                const ShardSetOptions& options);

  /// Runs the schedule from empty caches; logits of every position, per sequence [tokens, vocab].
  Result<std::vector<std::vector<float>>> Run(
      const std::vector<std::vector<std::int32_t>>& sequences, const Schedule& schedule);
  const spec::ModelSpec& model() const { return model_->spec; }
  /// Of all ranks, as their devices hold them.
  std::int64_t weight_bytes() const;
  const std::vector<spec::ShardPlan>& plans() const { return plans_; }

 private:
  Result<> RunRank(std::size_t rank,
                   const std::vector<std::vector<std::int32_t>>& sequences,
                   const Schedule& schedule,
                   std::vector<std::vector<float>>* logits);

  std::unique_ptr<store::Model> model_;
  std::vector<spec::ShardPlan> plans_;
  std::vector<std::unique_ptr<ops::Device>> devices_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<RankComms> comms_;
};

/// Calls fn(rank) for every rank on a thread of its own; on an error all communicators are aborted.
/// The first error.
Result<> OnThreads(std::size_t ranks,
                   std::vector<RankComms>* comms,
                   const std::function<Result<>(std::size_t)>& fn);

}  // namespace inferd::model
