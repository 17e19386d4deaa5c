// SPDX-License-Identifier: Apache-2.0
// What another host of a group reads of a model in an object store, and what it then sees of it.
#include "store/partial_model.h"

#include "store/fetch.h"
#include "store/quantised.h"
#include "store/quantised_parts.h"
#include "store/resolve.h"
#include "unit/store/environment.h"
#include "unit/store/files.h"
#include "unit/store/s3_store.h"
#include "unit/store/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace inferd::store {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kHead = 1 << 20;  // read of every file
const std::string kLayer = "model.layers.0.mlp.up_proj";

class PartialModelTest : public S3StoreTest {
 protected:
  /// Fetches one of the quantised models as the leader does, and returns its path. All its tensors
  /// are behind the head of its file, but for one that nobody needs.
  Result<std::string> FetchQuantised(const std::string& variant,
                                     const std::function<void(SafetensorsFile*)>& change) {
    const std::string folder = std::string(INFERD_TEST_DATA) + "/quantised/" + variant + "/";
    SafetensorsFile file = SafetensorsFile::Read(folder + "model.safetensors");
    change(&file);
    file.PutFirst("model.layers.0.self_attn.rotary_emb.inv_freq", kHead / sizeof(float));
    std::map<std::string, std::string> objects = {{"tiny/model.safetensors", file.Bytes()}};
    for (const std::string name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
      objects["tiny/" + name] = ReadAll(folder + name);
    }
    Serve("tiny%2F", objects);
    return Fetch("s3://models/tiny", options_);
  }
};

TEST_F(PartialModelTest, AnotherHostReadsWhatItNeeds) {
  auto tensors = TinyHfTensors();
  // So large that the head of the file is not all of it; of those tensors that nobody needs.
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1 << 20}});
  tensors_ = F32File(tensors);
  ServeTiny();
  const auto path = Fetch("s3://models/tiny", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  const std::string name = SharedName("s3://models/tiny", *path);
  EXPECT_EQ(name, "s3://models/tiny#" + std::filesystem::path(*path).filename().string());
  EXPECT_EQ(SharedName("org/tiny", "/some/path"), "/some/path");
  // This host has it whole.
  auto whole = PartialModel::Open(name, "", nullptr);
  ASSERT_TRUE(whole.ok()) << whole.error().message();
  EXPECT_TRUE(whole->whole());
  EXPECT_TRUE(whole->Provide({{0, 0, 1}}).ok());
  // Another one has nothing.
  TempDir other;
  const SetEnvironment cache("INFERD_CACHE", other.path());
  const std::size_t before = Gets().size();
  auto partial = PartialModel::Open(name, "", nullptr);
  ASSERT_TRUE(partial.ok()) << partial.error().message();
  EXPECT_FALSE(partial->whole());
  const std::string mapped = partial->model().tensors.files()[0].path();
  EXPECT_TRUE(mapped.starts_with(other.path()));
  EXPECT_EQ(ReadAll(mapped).substr(0, kHead), tensors_.substr(0, kHead));
  EXPECT_FALSE(ResolveModel("s3://models/tiny").ok());  // it is not there for others
  const std::size_t opened = Gets().size();
  EXPECT_EQ(opened, before + 2);
  ASSERT_TRUE(
      partial->Provide({{0, kHead + 500, kHead + 1000}, {0, kHead + 2000, kHead + 2500}}).ok());
  ASSERT_EQ(Gets().size(), opened + 1);  // the gap between them is small
  EXPECT_THAT(Gets().back(), HasSubstr("Range: bytes=1049076-1051075"));
  // A second rank of the host finds it there.
  auto second = PartialModel::Open(name, "", nullptr);
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(second->Provide({{0, kHead + 600, kHead + 700}}).ok());
  EXPECT_EQ(Gets().size(), opened + 1);
}

// The leader takes a rank that says nothing for dead.
TEST_F(PartialModelTest, AnotherHostIsAliveWhileItLists) {
  ServeTiny();
  const std::string name = SharedName("s3://models/tiny", *Fetch("s3://models/tiny", options_));
  TempDir other;
  const SetEnvironment cache("INFERD_CACHE", other.path());
  store_.FailNext({{.drop_after = 10, .stall = true}});
  const auto partial = PartialModel::Open(name, "", [] { return false; });
  ASSERT_FALSE(partial.ok());
  EXPECT_EQ(partial.error().code(), Code::kCancelled);
}

TEST_F(PartialModelTest, AnotherHostRefusesAnotherVersion) {
  ServeTiny();
  const std::string name = SharedName("s3://models/tiny", *Fetch("s3://models/tiny", options_));
  tensors_ += '\n';
  ServeTiny();
  TempDir other;
  const SetEnvironment cache("INFERD_CACHE", other.path());
  const auto partial = PartialModel::Open(name, "", nullptr);
  ASSERT_FALSE(partial.ok());
  EXPECT_EQ(partial.error().code(), Code::kAborted);
  EXPECT_THAT(partial.error().message(), HasSubstr("s3://models/tiny was changed in the store"));
}

// The types and the order of columns depend on values that are not in the head of the file.
TEST_F(PartialModelTest, QuantisedLayersAreThoseOfTheLeader) {
  const auto as_it_is = [](SafetensorsFile*) {};
  const auto small = [](SafetensorsFile* file) { file->MakeScaleSmall(kLayer); };
  for (const auto& [variant, change] :
       std::vector<std::pair<std::string, std::function<void(SafetensorsFile*)>>>{
           {"gptq-act-order", as_it_is},
           {"gptq", as_it_is},
           {"gptq-8bit", as_it_is},
           {"compressed-int8", small}}) {
    SCOPED_TRACE(variant);
    const auto path = FetchQuantised(variant, change);
    ASSERT_TRUE(path.ok()) << path.error().message();
    const auto whole = OpenModel(*path);
    ASSERT_TRUE(whole.ok()) << whole.error().message();
    TempDir other;
    const SetEnvironment cache("INFERD_CACHE", other.path());
    auto partial = PartialModel::Open(SharedName("s3://models/tiny", *path), "", nullptr);
    ASSERT_TRUE(partial.ok()) << partial.error().message();
    ASSERT_FALSE(partial->whole());
    const Model& model = partial->model();
    int quantised = 0;
    for (const TensorInfo& wanted : whole->tensors.tensors()) {
      SCOPED_TRACE(wanted.name);
      const TensorInfo* const tensor = model.tensors.Find(wanted.name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->dtype, wanted.dtype);
      ASSERT_EQ(tensor->parts == nullptr, wanted.parts == nullptr);
      if (tensor->parts == nullptr) {
        continue;
      }
      ++quantised;
      EXPECT_EQ(tensor->parts->group_index.has_value(), wanted.parts->group_index.has_value());
      const auto order = GroupColumns(model.tensors, *tensor, 0, tensor->cols());
      const auto wanted_order = GroupColumns(whole->tensors, wanted, 0, wanted.cols());
      ASSERT_EQ(order.has_value(), wanted_order.has_value());
      EXPECT_TRUE(!order || order->columns == wanted_order->columns);
    }
    EXPECT_EQ(quantised, 7);
  }
}

TEST_F(PartialModelTest, RefusesGroupsThatThereAreNot) {
  for (const std::int32_t group : {4, -1, 1'000'000'000}) {
    const auto path = FetchQuantised("gptq-act-order", [&](SafetensorsFile* file) {
      file->data.replace(file->At(kLayer + ".g_idx") + 4, 4, Bytes(group));
    });
    ASSERT_TRUE(path.ok()) << path.error().message();
    TempDir other;
    const SetEnvironment cache("INFERD_CACHE", other.path());
    const auto partial = PartialModel::Open(SharedName("s3://models/tiny", *path), "", nullptr);
    ASSERT_FALSE(partial.ok()) << group;
    EXPECT_EQ(partial.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(
        partial.error().message(),
        HasSubstr(kLayer + ".g_idx puts input 1 into group " + std::to_string(group) + "; there"));
  }
}

}  // namespace
}  // namespace inferd::store
