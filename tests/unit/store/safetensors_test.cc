// SPDX-License-Identifier: Apache-2.0
// Safetensors files and their index: cut, overlapping, absent and misplaced ones are refused by
// name.
#include "store/safetensors.h"

#include "store/model.h"
#include "unit/store/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inferd::store {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Refusal(const std::string& folder) {
  const auto source = OpenSafetensors(folder);
  EXPECT_FALSE(source.ok()) << "was accepted";
  return source.ok() ? "" : source.error().message();
}

std::string Entry(const std::string& name,
                  const std::string& shape,
                  const std::string& range,
                  const std::string& dtype = "F32") {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + range + "}";
}

TEST(Safetensors, ReadsAFile) {
  const TempDir dir;
  dir.Write("model.safetensors", F32File({{"a", {2, 3}}, {"b", {4}}, {"none", {0, 5}}}));
  const auto source = OpenSafetensors(dir.path());
  ASSERT_TRUE(source.ok()) << source.error().message();
  const TensorInfo* a = source->Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_THAT(a->shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(a->row_bytes(), 12U);
  EXPECT_EQ(source->Data(*a).size(), 24U);
  EXPECT_EQ(source->Find("none")->bytes, 0U);
  EXPECT_EQ(source->Find("c"), nullptr);
}

TEST(Safetensors, LeavesOutBuffersOfWholeNumbers) {
  const TempDir dir;
  dir.Write("model.safetensors",
            Safetensors("{" + Entry("ids", "[2]", "[0,16]", "I64") + "," +
                            Entry("w", "[2]", "[16,24]") + "}",
                        24));
  const auto source = OpenSafetensors(dir.path());
  ASSERT_TRUE(source.ok()) << source.error().message();
  EXPECT_EQ(source->Find("ids"), nullptr);
  EXPECT_NE(source->Find("w"), nullptr);
}

TEST(Safetensors, RefusesWhatIsWrongByName) {
  struct Hostile {
    std::string content;
    const char* message;
  };
  const std::string whole = F32File({{"k", {2, 3}}, {"v", {4}}});
  const Hostile cases[] = {
      {"", "too few"},
      {whole.substr(0, 7), "too few"},
      {whole.substr(0, 20), "header claims"},
      {whole.substr(0, whole.size() - 1),
       "tensor v ends at data byte 40, but the file has only 39"},
      {whole + "x", "1 bytes follow the last tensor"},
      {Bytes(std::uint64_t{1} << 63) + "{}", "header claims 9223372036854775808"},
      {Bytes(std::uint64_t{101'000'000}) + "{}", "header claims 101000000"},
      {Safetensors("[1,2]", 0), "not a JSON object"},
      {Safetensors("{\"a\":", 0), "malformed JSON"},
      {Safetensors("{" + Entry("k", "[2]", "[0,8]") + "," + Entry("v", "[2]", "[0,8]") + "}", 8),
       "inside"},
      {Safetensors("{" + Entry("k", "[2]", "[0,8]") + "," + Entry("v", "[2]", "[4,12]") + "}", 12),
       "tensor v begins at data byte 4, inside k, which ends at 8"},
      {Safetensors("{" + Entry("k", "[2]", "[0,8]") + "," + Entry("v", "[2]", "[12,20]") + "}", 20),
       "data bytes 8 to 12 before tensor v belong to no tensor"},
      {Safetensors("{" + Entry("k", "[2]", "[8,0]") + "}", 8),
       "tensor k: data_offsets [8, 0] are not a range"},
      {Safetensors("{" + Entry("k", "[2]", "[-8,0]") + "}", 8), "not a range"},
      {Safetensors("{" + Entry("k", "[3]", "[0,8]") + "}", 8),
       "tensor k has 8 bytes in the file, but its shape and type need 12"},
      {Safetensors("{" + Entry("k", "[2]", "[0,8]") + "," + Entry("k", "[2]", "[8,16]") + "}", 16),
       "key k occurs twice"},
      {Safetensors("{" + Entry("k", "[-2]", "[0,8]") + "}", 8), "dimension -2"},
      {Safetensors("{" + Entry("k", "[2147483648,2147483648,8]", "[0,8]") + "}", 8),
       "more elements than 64 bits"},
      {Safetensors("{" + Entry("k", "[99999999999]", "[0,8]") + "}", 8), "dimension 99999999999"},
      {Safetensors("{" + Entry("k", "[2]", "[0,8]", "F64") + "}", 8), "type F64 is not supported"},
      {Safetensors("{" + Entry("k", "[2]", "[0,8]", "Q4_K") + "}", 8),
       "type Q4_K is not supported"},
      {Safetensors("{\"k\":{\"dtype\":\"F32\"}}", 0), "tensor k lacks"},
      {Safetensors("{\"k\":7}", 0), "tensor k is not a JSON object"},
      {Safetensors("{\"k\":" + std::string(100, '[') + std::string(100, ']') + "}", 0),
       "nested deeper"},
  };
  const TempDir dir;
  for (const Hostile& test : cases) {
    dir.Write("model.safetensors", test.content);
    EXPECT_THAT(Refusal(dir.path()),
                AllOf(HasSubstr(test.message), HasSubstr("model.safetensors")));
  }
}

// --- Shards. ---

class Shards : public testing::Test {
 protected:
  Shards() {
    dir_.Write(Name(1), F32File({{"a", {2}}}));
    dir_.Write(Name(2), F32File({{"b", {2}}}));
    dir_.Write(Name(3), F32File({{"c", {2}}}));
    WriteIndex(R"("a":")" + Name(1) + R"(","b":")" + Name(2) + R"(","c":")" + Name(3) + "\"");
  }
  static std::string Name(int i) {
    return "model-0000" + std::to_string(i) + "-of-00003.safetensors";
  }
  std::string Path(int i) const { return dir_.path() + "/" + Name(i); }
  void WriteIndex(const std::string& map) {
    dir_.Write("model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":{" + map + "}}");
  }
  TempDir dir_;
};

TEST_F(Shards, AreReadWithAndWithoutAnIndex) {
  for (int round = 0; round < 2; ++round) {
    const auto source = OpenSafetensors(dir_.path());
    ASSERT_TRUE(source.ok()) << source.error().message();
    EXPECT_EQ(source->tensors().size(), 3U);
    EXPECT_EQ(source->FileOf(*source->Find("b")), Path(2));
    std::filesystem::remove(dir_.path() + "/model.safetensors.index.json");
  }
}

TEST_F(Shards, AbsentOnesAreListed) {
  std::filesystem::remove(Path(2));
  std::filesystem::remove(Path(3));
  EXPECT_THAT(Refusal(dir_.path()), AllOf(HasSubstr(Name(2)), HasSubstr(Name(3))));
  std::filesystem::remove(dir_.path() + "/model.safetensors.index.json");
  EXPECT_THAT(Refusal(dir_.path()), AllOf(HasSubstr(Name(2)), HasSubstr(Name(3))));
}

TEST_F(Shards, RenamedAndEmptyOnesAreRefused) {
  std::filesystem::rename(Path(2), dir_.path() + "/renamed.safetensors");
  EXPECT_THAT(Refusal(dir_.path()), HasSubstr(Name(2)));
  dir_.Write(Name(2), "");
  EXPECT_THAT(Refusal(dir_.path()), AllOf(HasSubstr(Name(2)), HasSubstr("too few")));
}

TEST_F(Shards, MustAgreeWithTheIndex) {
  WriteIndex(R"("a":")" + Name(1) + R"(","b":")" + Name(2) + R"(","c":")" + Name(3) + R"(","d":")" +
             Name(3) + "\"");
  EXPECT_THAT(Refusal(dir_.path()),
              AllOf(HasSubstr("tensor d"), HasSubstr("absent"), HasSubstr(Name(3))));
  WriteIndex(R"("a":")" + Name(1) + R"(","b":")" + Name(3) + R"(","c":")" + Name(3) + R"(","x":")" +
             Name(2) + "\"");
  EXPECT_THAT(Refusal(dir_.path()),
              AllOf(HasSubstr("tensor b is here"), HasSubstr("places it in " + Name(3))));
  WriteIndex(R"("a":")" + Name(1) + R"(","b":")" + Name(2) + R"(","x":")" + Name(3) + "\"");
  EXPECT_THAT(Refusal(dir_.path()),
              AllOf(HasSubstr("tensor c is here"), HasSubstr("does not name it")));
}

TEST_F(Shards, StayInTheFolder) {
  for (const char* name : {"../secret", "/etc/passwd", "sub/x.safetensors", "", ".."}) {
    WriteIndex(std::string(R"("a":")") + name + "\"");
    EXPECT_THAT(Refusal(dir_.path()),
                AllOf(HasSubstr("tensor a"), HasSubstr("not a file of the folder")));
  }
}

TEST_F(Shards, TwoWithTheSameTensorAreRefused) {
  std::filesystem::remove(dir_.path() + "/model.safetensors.index.json");
  dir_.Write(Name(3), F32File({{"a", {2}}}));
  EXPECT_THAT(
      Refusal(dir_.path()),
      AllOf(HasSubstr("tensor a occurs a second time"), HasSubstr(Name(1)), HasSubstr(Name(3))));
}

// --- Every place of the decoder is filled exactly once. ---

std::string ModelRefusal(const std::vector<std::pair<std::string, std::vector<int>>>& tensors) {
  const TempDir dir;
  dir.Write("config.json", TinyHfConfig());
  dir.Write("model.safetensors", F32File(tensors));
  const auto model = OpenModel(dir.path());
  EXPECT_FALSE(model.ok());
  return model.ok() ? "" : model.error().message();
}

TEST(HfModel, OpensACompleteOne) {
  const TempDir dir;
  dir.Write("config.json", TinyHfConfig());
  dir.Write("model.safetensors", F32File(TinyHfTensors()));
  const auto model = OpenModel(dir.path());
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_EQ(model->weights.size(), 12U);
  EXPECT_EQ(model->spec.weight_dtype, DType::kF32);
  EXPECT_FALSE(model->spec.rope_interleaved);
}

TEST(HfModel, RefusesAnAbsentTensor) {
  for (std::size_t i = 0; i < TinyHfTensors().size(); ++i) {
    auto tensors = TinyHfTensors();
    const std::string name = tensors[i].first;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(ModelRefusal(tensors), AllOf(HasSubstr(name), HasSubstr("absent")));
  }
}

TEST(HfModel, RefusesAWrongShape) {
  auto tensors = TinyHfTensors();
  tensors[4].second = {16, 32};
  EXPECT_THAT(ModelRefusal(tensors),
              AllOf(HasSubstr("q_proj"), HasSubstr("[16, 32]"), HasSubstr("[32, 32]")));
}

TEST(HfModel, RefusesATensorWithoutAPlace) {
  auto tensors = TinyHfTensors();
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", {32}});
  EXPECT_THAT(ModelRefusal(tensors), AllOf(HasSubstr("q_proj.bias"), HasSubstr("no place")));
}

}  // namespace
}  // namespace inferd::store
