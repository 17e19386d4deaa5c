// SPDX-License-Identifier: Apache-2.0
// Loading of slices: sizes, progress, and damaged files refused by tensor name.
#include "model/weights.h"

#include "base/float_bits.h"
#include "model/stored_values.h"
#include "store/quantised_parts.h"
#include "unit/model/harness.h"
#include "unit/store/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace inferd::model {
namespace {

std::unique_ptr<ops::Device> MakeDevice() {
  auto device = ops::MakeCpuDevice({.threads = 1, .cpus = {}});
  EXPECT_TRUE(device.ok());
  return *std::move(device);
}

TEST(WeightsTest, EveryRankHoldsItsShareAndProgressReachesTheTotal) {
  auto model = store::OpenModel(DataPath("qwen3"));
  ASSERT_TRUE(model.ok()) << model.error().message();
  const auto device = MakeDevice();
  std::vector<std::int64_t> bytes;
  for (const int tp : {1, 2}) {
    auto plans = spec::PlanShards(model->spec, {.tp = tp, .pp_partition = {}}, model->cut);
    ASSERT_TRUE(plans.ok());
    for (const spec::ShardPlan& plan : *plans) {
      std::int64_t last = 0;
      std::int64_t total = 0;
      LoadWeightsOptions options;
      options.progress = [&](std::int64_t done, std::int64_t all) {
        EXPECT_GT(done, last);
        last = done;
        total = all;
      };
      auto weights = LoadWeights(*model, plan, *device, options);
      ASSERT_TRUE(weights.ok()) << weights.error().message();
      EXPECT_EQ(last, total);
      EXPECT_GT(total, 0);
      bytes.push_back(weights->bytes);
    }
  }
  ASSERT_EQ(bytes.size(), 3U);
  // A little more than half: norms are whole on every rank, and rows are padded to whole panels.
  EXPECT_LT(bytes[1], bytes[0] * 7 / 10);
  EXPECT_LT(bytes[2], bytes[0] * 7 / 10);
}

TEST(WeightsTest, SlicesHaveTheShapesOfThePlan) {
  auto model = store::OpenModel(DataPath("qwen2"));
  ASSERT_TRUE(model.ok());
  const auto device = MakeDevice();
  auto plans = spec::PlanShards(model->spec, {.tp = 3, .pp_partition = {}}, model->cut);
  ASSERT_TRUE(plans.ok());
  std::int64_t out = 0;
  for (const spec::ShardPlan& plan : *plans) {
    auto weights = LoadWeights(*model, plan, *device, {});
    ASSERT_TRUE(weights.ok());
    const LayerWeights& layer = weights->layers[0];
    const std::int64_t q = plan.q_heads.size() * model->spec.head_dim;
    EXPECT_EQ(static_cast<std::int64_t>(layer.q_bias.size()), q);
    EXPECT_EQ(layer.q->n(), q);
    EXPECT_EQ(layer.o->n(), spec::HiddenRows(model->spec, plan).size());
    EXPECT_EQ(layer.o->k(), model->spec.num_heads * model->spec.head_dim);
    EXPECT_EQ(layer.down->n(), layer.o->n());
    EXPECT_EQ(layer.down->k(), model->spec.intermediate_size);
    EXPECT_EQ(layer.gate->n(), plan.ffn.size());
    EXPECT_EQ(weights->embedding.count, plan.vocab.size());
    EXPECT_EQ(weights->head->n(), plan.vocab.size());
    out += layer.o->n();
  }
  EXPECT_EQ(out, model->spec.hidden_size);
}

// A copy of the llama fixture with one value of a tensor replaced by NaN.
class DamagedModel {
 public:
  explicit DamagedModel(const std::string& tensor) {
    folder_ = std::filesystem::temp_directory_path() /
              ("inferd-weights-test-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(DataPath("llama"), folder_);
    std::filesystem::remove(folder_ / "model.gguf");
    auto model = store::OpenModel(folder_.string());
    EXPECT_TRUE(model.ok());
    const store::TensorInfo* info = model->tensors.Find(tensor);
    EXPECT_NE(info, nullptr) << tensor;
    std::fstream file(model->tensors.FileOf(*info),
                      std::ios::in | std::ios::out | std::ios::binary);
    const std::uint32_t nan = 0x7FC00000;
    file.seekp(static_cast<std::streamoff>(info->offset + 4 * 5));
    file.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
  }
  ~DamagedModel() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

TEST(WeightsTest, NanIsRefusedByTensorName) {
  const auto device = MakeDevice();
  for (const std::string tensor : {"model.embed_tokens.weight",
                                   "model.norm.weight",
                                   "lm_head.weight",
                                   "model.layers.1.self_attn.k_proj.weight",
                                   "model.layers.0.mlp.down_proj.weight",
                                   "model.layers.1.input_layernorm.weight"}) {
    const DamagedModel damaged(tensor);
    auto model = store::OpenModel(damaged.path());
    ASSERT_TRUE(model.ok()) << model.error().message();
    auto plans = spec::PlanShards(model->spec, {}, model->cut);
    ASSERT_TRUE(plans.ok());
    auto weights = LoadWeights(*model, (*plans)[0], *device, {});
    ASSERT_FALSE(weights.ok()) << tensor;
    EXPECT_NE(weights.error().message().find(tensor), std::string::npos)
        << weights.error().message();
    EXPECT_EQ(weights.error().code(), Code::kDataLoss);
  }
}

// The order of groups is checked when the model is opened; here its file changes later.
TEST(WeightsTest, GroupsThatThereAreNotAreRefusedByTensorName) {
  for (const std::string name : {"cpu", "cuda-emu"}) {
    SCOPED_TRACE(name);
    const store::TempDir folder;
    std::filesystem::copy(DataPath("quantised/gptq-act-order"), folder.path());
    auto model = store::OpenModel(folder.path());
    ASSERT_TRUE(model.ok()) << model.error().message();
    const std::string tensor = "model.layers.0.mlp.down_proj.weight";
    const store::TensorInfo& index = *model->tensors.Find(tensor)->parts->group_index;
    {
      std::fstream file(model->tensors.FileOf(index),
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(index.offset + 4 * 5));
      file << store::Bytes<std::int32_t>(1'000'000'000);
    }
    const auto device = ops::MakeDevice(name, 1, {});
    ASSERT_TRUE(device.ok()) << device.error().message();
    const auto plans = spec::PlanShards(model->spec, {}, model->cut);
    ASSERT_TRUE(plans.ok());
    const auto weights = LoadWeights(*model, plans->front(), **device, {});
    ASSERT_FALSE(weights.ok());
    EXPECT_EQ(weights.error().code(), Code::kDataLoss);
    EXPECT_NE(weights.error().message().find(tensor), std::string::npos)
        << weights.error().message();
  }
}

TEST(StoredValuesTest, HalfAndBf16) {
  EXPECT_EQ(HalfToFloat(0x3C00), 1.0F);
  EXPECT_EQ(HalfToFloat(0xC000), -2.0F);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24F);
  EXPECT_EQ(HalfToFloat(0x7BFF), 65504.0F);
  EXPECT_EQ(Bf16ToFloat(0x3F80), 1.0F);
  EXPECT_EQ(Bf16ToFloat(0xC040), -3.0F);
}

TEST(StoredValuesTest, FindsTheFirstBadValue) {
  std::vector<std::uint16_t> values(700, 0x3C00);
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_EQ(FirstNonFinite(DType::kF16, bytes), std::nullopt);
  values[600] = 0xFC00;  // -infinity
  values[650] = 0x7E00;
  EXPECT_EQ(FirstNonFinite(DType::kF16, bytes), 600);
  EXPECT_EQ(FirstNonFinite(DType::kBF16, bytes), std::nullopt)
      << "0xFC00 is a large number in bf16";
}

}  // namespace
}  // namespace inferd::model
