// SPDX-License-Identifier: Apache-2.0
// The memory that is planned for weights against what a device then allocates for them, byte by
// byte: every fixture, as stored and rounded while loading, whole and cut.
#include "model/weights.h"
#include "store/safetensors.h"
#include "unit/model/harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace inferd::model {
namespace {

namespace fs = std::filesystem;

// A GPU where there is one: tests/gpu/check.sh.
std::string Gpu() {
  const char* const device = std::getenv("INFERD_TEST_DEVICE");
  return device != nullptr ? device : "cuda-emu";
}

struct Case {
  std::string path;  // below the test data
  std::string quantization;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const std::string folder : {"", "/quantised"}) {
    for (const auto& entry : fs::directory_iterator(DataFolder() + folder)) {
      if (!fs::exists(entry.path() / "config.json")) {
        continue;
      }
      const std::string path = fs::relative(entry.path(), DataFolder()).string();
      cases.push_back({path, ""});
      for (const char* const file : {"model.gguf", "model-00001-of-00003.gguf"}) {
        if (fs::exists(entry.path() / file)) {
          cases.push_back({path + "/" + file, ""});
        }
      }
      const bool stored = !folder.empty() && path != "quantised/plain";
      for (const char* const quantization : {"fp8", "int8", "int4"}) {
        if (!stored) {
          cases.push_back({path, quantization});
        }
      }
    }
  }
  std::ranges::sort(cases, {}, [](const Case& c) { return c.path + ":" + c.quantization; });
  return cases;
}

class WeightBytes : public testing::TestWithParam<Case> {};

void Check(const Case& given, const std::string& device_name, const spec::ParallelSpec& parallel) {
  SCOPED_TRACE(fmt::format("{}, tp {}, ep {}", device_name, parallel.tp, parallel.ep));
  const bool cpu = device_name == "cpu";
  const auto device = ops::MakeDevice(device_name, 1, {});
  ASSERT_TRUE(device.ok()) << device.error().message();
  const auto kind = cpu ? ops::DeviceClass::kCpu : ops::DeviceClass::kGpu;
  EXPECT_EQ(ops::TakesScales(kind), (*device)->TakesScales());
  EXPECT_EQ(ops::TakesColumnOrder(kind), (*device)->TakesColumnOrder());
  const auto model =
      store::OpenModel(DataPath(given.path), given.quantization, (*device)->TakesScales());
  ASSERT_TRUE(model.ok()) << model.error().message();
  const auto shards = spec::PlanShards(model->spec, parallel, model->cut);
  const bool cut = parallel.tp > 1 || parallel.ep > 1;
  if (!shards.ok() && cut) {
    return;  // it cannot be cut so far
  }
  ASSERT_TRUE(shards.ok()) << shards.error().message();
  for (const spec::ShardPlan& shard : *shards) {
    const auto planned = WeightBytesOfShard(*model, shard, kind);
    const auto loaded = LoadWeights(*model, shard, **device, {});
    ASSERT_EQ(planned.ok(), loaded.ok());
    if (!loaded.ok() && cut) {
      continue;
    }
    ASSERT_TRUE(loaded.ok()) << loaded.error().message();
    std::int64_t held = loaded->bytes;
    if (cpu && shard.has_embedding) {  // read in its mapping
      held += static_cast<std::int64_t>(model->weights.Find(store::Slot::kEmbedding)
                                            ->Rows(shard.vocab.begin, shard.vocab.end)
                                            .bytes());
    }
    EXPECT_EQ(*planned, held) << "rank " << shard.rank;
  }
}

TEST_P(WeightBytes, PlannedAreThoseAllocated) {
  for (const std::string& device : {std::string("cpu"), Gpu()}) {
    Check(GetParam(), device, {});
    Check(GetParam(), device, {.tp = 2, .pp_partition = {}});
  }
  Check(GetParam(), Gpu(), {.ep = 2, .pp_partition = {}});
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.path + "_" + info.param.quantization;
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, WeightBytes, testing::ValuesIn(AllCases()), NameOf);

// Act-order: GPUs keep the 4 bits, CPUs cannot.
TEST(PackedBytes, ActOrderStaysPackedOnGpusOnly) {
  const auto model = store::OpenModel(DataPath("quantised/gptq-act-order"));
  ASSERT_TRUE(model.ok()) << model.error().message();
  const auto shards = spec::PlanShards(model->spec, {}, model->cut);
  ASSERT_TRUE(shards.ok());
  const auto gpu = WeightBytesOfShard(*model, shards->front(), ops::DeviceClass::kGpu);
  const auto cpu = WeightBytesOfShard(*model, shards->front(), ops::DeviceClass::kCpu);
  ASSERT_TRUE(gpu.ok() && cpu.ok());
  const std::int64_t tables = 2 * 288 * 128 * 2;  // embedding and head, F16
  EXPECT_LT(*gpu - tables, (*cpu - tables) * 45 / 100);
}

// GGUF's types, with and without a product on GPUs.
TEST(PackedBytes, OfEveryStoredType) {
  const auto quants = store::OpenSafetensors(DataPath("quants"));
  ASSERT_TRUE(quants.ok()) << quants.error().message();
  int types = 0;
  for (const std::string& name : {std::string("cpu"), Gpu()}) {
    const auto device = ops::MakeDevice(name, 1, {});
    ASSERT_TRUE(device.ok()) << device.error().message();
    const auto kind = name == "cpu" ? ops::DeviceClass::kCpu : ops::DeviceClass::kGpu;
    for (const store::TensorInfo& tensor : quants->tensors()) {
      const auto type = DTypeFromName(tensor.name.substr(0, tensor.name.find('.')));
      if (!tensor.name.ends_with(".raw") || !type) {
        continue;
      }
      SCOPED_TRACE(name + " " + tensor.name);
      const auto row_bytes = static_cast<std::int64_t>(tensor.row_bytes());
      const std::int64_t k = row_bytes / BlockBytes(*type) * BlockElements(*type);
      const auto rows = quants->Data(tensor);
      const auto packed = (*device)->Pack(*type, rows, tensor.rows(), k, tensor.row_bytes());
      ASSERT_TRUE(packed.ok()) << packed.error().message();
      EXPECT_EQ(static_cast<std::size_t>(ops::PackedBytes(kind, *type, tensor.rows(), k)),
                (*packed)->bytes());
      const auto table = (*device)->MakeTable(*type, rows, tensor.rows(), k);
      ASSERT_TRUE(table.ok()) << table.error().message();
      EXPECT_EQ(static_cast<std::size_t>(ops::TableBytes(kind, *type, tensor.rows(), k)),
                name == "cpu" ? rows.size() : table->copy.bytes());
      ++types;
    }
  }
  EXPECT_GE(types, 20);
}

}  // namespace
}  // namespace inferd::model
