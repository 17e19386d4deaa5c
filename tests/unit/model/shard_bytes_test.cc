// SPDX-License-Identifier: Apache-2.0
// What a shard says it reads of the files is all that it reads: everything else is overwritten with
// NaNs, which loading refuses.
#include "model/weights.h"
#include "unit/model/harness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace inferd::model {
namespace {

namespace fs = std::filesystem;

class Copy {
 public:
  explicit Copy(const std::string& from)
      : path_(fs::temp_directory_path() / ("inferd-shard-bytes-" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    for (const auto& entry : fs::directory_iterator(from)) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with(".gguf") && name != "golden.safetensors") {
        fs::copy(entry.path(), path_ / name);
      }
    }
  }
  ~Copy() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

/// Returns how many bytes of tensors were spoilt.
std::int64_t SpoilTheRest(const store::Model& model, const std::vector<store::FileRange>& kept) {
  std::int64_t spoilt = 0;
  const auto files = model.tensors.files();
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    std::vector<char> spoil(files[file].size(), 0);
    for (const store::TensorInfo& tensor : model.tensors.tensors()) {
      if (tensor.file == file && tensor.parts == nullptr) {
        std::fill_n(spoil.begin() + static_cast<std::ptrdiff_t>(tensor.offset), tensor.bytes, 1);
      }
    }
    for (const store::FileRange& range : kept) {
      if (range.file == file) {
        std::fill(spoil.begin() + range.begin, spoil.begin() + range.end, 0);
      }
    }
    std::fstream stream(files[file].path(), std::ios::binary | std::ios::in | std::ios::out);
    for (std::size_t i = 0; i < spoil.size(); ++i) {
      if (spoil[i] != 0) {
        stream.seekp(static_cast<std::streamoff>(i));
        stream.put('\xFF');
        ++spoilt;
      }
    }
  }
  return spoilt;
}

void Check(const std::string& name, const spec::ParallelSpec& parallel, bool all_needed = false) {
  const auto whole = store::OpenModel(DataPath(name));
  ASSERT_TRUE(whole.ok()) << whole.error().message();
  const auto plans = spec::PlanShards(whole->spec, parallel, whole->cut);
  ASSERT_TRUE(plans.ok()) << plans.error().message();
  const auto device = *ops::MakeCpuDevice({.threads = 1, .cpus = {}});
  for (const spec::ShardPlan& plan : *plans) {
    SCOPED_TRACE(name + " rank " + std::to_string(plan.rank));
    const Copy copy(DataPath(name));
    const auto before = store::OpenModel(copy.path());
    ASSERT_TRUE(before.ok()) << before.error().message();
    const auto ranges = RangesOfShard(*before, plan);
    ASSERT_TRUE(ranges.ok()) << ranges.error().message();
    EXPECT_EQ(SpoilTheRest(*before, *ranges) > 0, !all_needed);
    const auto after = store::OpenModel(copy.path());
    ASSERT_TRUE(after.ok()) << after.error().message();
    const auto weights = LoadWeights(*after, plan, *device, {});
    ASSERT_TRUE(weights.ok()) << weights.error().message();
    // And what was kept is needed: without one of the ranges it fails.
    auto fewer = *ranges;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(fewer.size() / 2));
    SpoilTheRest(*after, fewer);
    const auto spoilt = store::OpenModel(copy.path());
    ASSERT_TRUE(spoilt.ok());
    EXPECT_FALSE(LoadWeights(*spoilt, plan, *device, {}).ok());
  }
}

TEST(ShardBytes, Tensors) {
  Check("llama", {.tp = 1, .pp_partition = {}}, true);
  Check("qwen2", {.tp = 2, .pp_partition = {}});
  Check("llama", {.tp = 1, .pp = 2, .pp_partition = {}});
  Check("gemma3", {.tp = 1, .pp = 2, .pp_partition = {}});
  Check("phi3", {.tp = 2, .pp_partition = {}});
}

TEST(ShardBytes, ExpertsAndSeveralFiles) {
  Check("mixtral", {.tp = 1, .ep = 2, .pp_partition = {}});
  Check("mixtral", {.tp = 2, .pp = 2, .pp_partition = {}});
  Check("qwen2-moe", {.tp = 2, .pp_partition = {}});
}

}  // namespace
}  // namespace inferd::model
