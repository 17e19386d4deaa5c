// SPDX-License-Identifier: Apache-2.0
// GGUF headers that are cut, wrong or hostile are refused by name, before anything is read or
// allocated by them.
#include "store/gguf_file.h"

#include "store/model.h"
#include "unit/store/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>

namespace inferd::store {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Refusal(const std::string& path) {
  const auto file = GgufFile::Open(path);
  EXPECT_FALSE(file.ok()) << "was accepted";
  return file.ok() ? "" : file.error().message();
}

TEST(GgufFile, ReadsVersions2And3) {
  const TempDir dir;
  for (const std::uint32_t version : {2U, 3U}) {
    GgufSpec spec = TinyGgufLlama();
    spec.version = version;
    const auto model = OpenModel(dir.Write("good.gguf", spec.Encode()));
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_EQ(model->spec.hidden_size, 32);
    EXPECT_EQ(model->spec.head_dim, 16);
    EXPECT_TRUE(model->spec.rope_interleaved);
    EXPECT_EQ(model->weights.Find(Slot::kK, 0)->rows, 16);
    EXPECT_EQ(Weights::Data(model->tensors, *model->weights.Find(Slot::kK, 0)).size(),
              16U * 32 * 4);
  }
}

TEST(GgufFile, TellsTypedValues) {
  const TempDir dir;
  GgufSpec spec;
  spec.AddU32("number", 7);
  spec.AddF32("fraction", 0.5F);
  spec.AddString("text", "abc");
  spec.Add("flag", Bytes<std::uint32_t>(7) + "\x01");
  spec.AddStrings("list", {"a", "", "ccc"});
  const auto file = GgufFile::Open(dir.Write("a.gguf", spec.Encode()));
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(**file->Int("number"), 7);
  EXPECT_EQ(**file->Float("number"), 7);
  EXPECT_EQ(**file->Float("fraction"), 0.5);
  EXPECT_EQ(**file->String("text"), "abc");
  EXPECT_EQ(**file->Bool("flag"), true);
  EXPECT_THAT(*file->Strings("list", 10), testing::ElementsAre("a", "", "ccc"));
  EXPECT_FALSE(file->Int("absent")->has_value());
  EXPECT_FALSE(file->Int("text").ok());
  EXPECT_FALSE(file->String("number").ok());
  EXPECT_FALSE(file->Bool("number").ok());
  EXPECT_THAT(file->Strings("list", 2).error().message(),
              AllOf(HasSubstr("list"), HasSubstr("3 bytes")));
}

TEST(GgufFile, LoadsTensorsOutOfOrder) {
  const TempDir dir;
  GgufSpec spec = TinyGgufLlama();
  std::ranges::reverse(spec.tensors);
  EXPECT_TRUE(OpenModel(dir.Write("a.gguf", spec.Encode())).ok());
}

TEST(GgufFile, RefusesEveryCut) {
  const TempDir dir;
  const GgufSpec spec = TinyGgufLlama();
  const std::string whole = spec.Encode();
  std::vector<std::size_t> cuts = {0, 3, 4, 7, 8, 16, 23, 24, whole.size() - 1, whole.size() / 2};
  // Every byte of the header, since every section has its edge there.
  for (std::size_t cut = 24; cut <= spec.Header().size(); ++cut) {
    cuts.push_back(cut);
  }
  std::ranges::sort(cuts, std::greater());
  const std::string path = dir.Write("cut.gguf", whole);
  for (const std::size_t cut : cuts) {
    std::filesystem::resize_file(path, cut);
    EXPECT_THAT(Refusal(path), HasSubstr(path)) << "cut at " << cut;
  }
}

TEST(GgufFile, NamesTheTensorThatTheCutReaches) {
  const TempDir dir;
  const std::string whole = TinyGgufLlama().Encode();
  EXPECT_THAT(
      Refusal(dir.Write("cut.gguf", whole.substr(0, whole.size() - 1))),
      AllOf(HasSubstr("blk.0.ffn_down.weight needs 8192 bytes"), HasSubstr("bytes in all")));
}

struct Hostile {
  const char* name;
  const char* message;
  std::function<void(GgufSpec*)> spoil;
};

TEST(GgufFile, RefusesWhatIsWrongByName) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;
  const Hostile cases[] = {
      {"magic", "does not begin with", [](GgufSpec* s) { s->magic = "GGML"; }},
      {"swapped magic", "big-endian", [](GgufSpec* s) { s->magic = "FUGG"; }},
      {"swapped version", "big-endian", [](GgufSpec* s) { s->version = 0x03000000; }},
      {"version 0", "GGUF version 0", [](GgufSpec* s) { s->version = 0; }},
      {"version 1", "GGUF version 1", [](GgufSpec* s) { s->version = 1; }},
      {"version 99", "GGUF version 99", [](GgufSpec* s) { s->version = 99; }},
      {"key type",
       "key x has the unknown value type 99",
       [](GgufSpec* s) { s->Add("x", Bytes<std::uint32_t>(99)); }},
      {"array of arrays",
       "array of arrays",
       [](GgufSpec* s) {
         s->Add("x",
                Bytes<std::uint32_t>(9) + Bytes<std::uint32_t>(9) + Bytes<std::uint64_t>(1) +
                    std::string(16, '\0'));
       }},
      {"duplicate key",
       "llama.block_count occurs twice",
       [](GgufSpec* s) { s->AddU32("llama.block_count", 1); }},
      {"empty key", "is empty", [](GgufSpec* s) { s->AddU32("", 1); }},
      {"alignment 0",
       "general.alignment is 0",
       [](GgufSpec* s) { s->AddU32("general.alignment", 0); }},
      {"alignment 3",
       "general.alignment is 3",
       [](GgufSpec* s) { s->AddU32("general.alignment", 3); }},
      {"alignment type",
       "general.alignment is not",
       [](GgufSpec* s) { s->AddString("general.alignment", "32"); }},
      {"unknown tensor type", "tensor type 77", [](GgufSpec* s) { s->tensors[4].type = 77; }},
      {"unsupported tensor type",
       "tensor type IQ2_XXS",
       [](GgufSpec* s) { s->tensors[4].type = 16; }},
      {"removed tensor type",
       "tensor type 4 is not a known",
       [](GgufSpec* s) { s->tensors[4].type = 4; }},
      {"unaligned",
       "not a multiple of the alignment 32",
       [](GgufSpec* s) { s->tensors[4].offset += 4; }},
      {"overlap", "overlap", [](GgufSpec* s) { s->tensors[4].offset = s->tensors[1].offset; }},
      {"offset wraps",
       "blk.0.attn_q.weight needs 4096 bytes",
       [](GgufSpec* s) { s->tensors[4].offset = ~std::uint64_t{31}; }},
      {"dimension 0", "dimension 0", [](GgufSpec* s) { s->tensors[4].dims[0] = 0; }},
      {"dimension over 2^31",
       "outside 1 to 2^31",
       [](GgufSpec* s) { s->tensors[4].dims[1] = (1ULL << 31) + 1; }},
      {"product wraps",
       "more elements than 64 bits",
       [](GgufSpec* s) { s->tensors[4].dims = {1ULL << 31, 1ULL << 31, 8}; }},
      {"bytes wrap",
       "more bytes than 64 bits",
       [](GgufSpec* s) { s->tensors[4].dims = {1ULL << 31, 1ULL << 31, 2}; }},
      {"larger than the file",
       "bytes in all",
       [](GgufSpec* s) { s->tensors[4].dims = {1ULL << 31, 1ULL << 20}; }},
      {"five dimensions",
       "has 5 dimensions",
       [](GgufSpec* s) { s->tensors[4].dims = {1, 1, 1, 1, 1}; }},
      {"no dimensions", "has 0 dimensions", [](GgufSpec* s) { s->tensors[4].dims = {}; }},
      {"rows not whole blocks",
       "not whole Q4_K blocks of 256",
       [](GgufSpec* s) { s->tensors[4].type = 12; }},
      {"tensor name too long",
       "limit is 512",
       [](GgufSpec* s) { s->tensors[4].name = std::string(600, 'x'); }},
      {"tensor without a name", "empty name", [](GgufSpec* s) { s->tensors[4].name = ""; }},
      {"key count", "keys are promised", [kHuge](GgufSpec* s) { s->num_pairs = kHuge; }},
      {"tensor count", "tensors are promised", [kHuge](GgufSpec* s) { s->num_tensors = kHuge; }},
      {"string count",
       "has 1152921504606846976 strings",
       [kHuge](GgufSpec* s) {
         s->Add("x", Bytes<std::uint32_t>(9) + Bytes<std::uint32_t>(8) + Bytes(kHuge));
       }},
      {"number count",
       "has 2305843009213693952 values",
       [kHuge](GgufSpec* s) {
         s->Add("x", Bytes<std::uint32_t>(9) + Bytes<std::uint32_t>(10) + Bytes(2 * kHuge));
       }},
      {"number count wraps",
       "has 2305843009213693953 values",
       [kHuge](GgufSpec* s) {
         s->Add("x", Bytes<std::uint32_t>(9) + Bytes<std::uint32_t>(10) + Bytes(2 * kHuge + 1));
       }},
      {"string length",
       "has a length of 1152921504606846976",
       [kHuge](GgufSpec* s) { s->Add("x", Bytes<std::uint32_t>(8) + Bytes(kHuge)); }},
  };
  const TempDir dir;
  for (const Hostile& test : cases) {
    GgufSpec spec = TinyGgufLlama();
    test.spoil(&spec);
    const std::string path = dir.Write("bad.gguf", spec.Encode());
    EXPECT_THAT(Refusal(path), AllOf(HasSubstr(test.message), HasSubstr(path))) << test.name;
  }
}

TEST(GgufFile, RefusesATensorThatOccursTwice) {
  const TempDir dir;
  GgufSpec spec = TinyGgufLlama();
  spec.AddTensor("blk.0.attn_q.weight", {32, 32});
  const auto model = OpenModel(dir.Write("bad.gguf", spec.Encode()));
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.error().message(), HasSubstr("blk.0.attn_q.weight occurs a second time"));
}

TEST(GgufFile, AllocatesLittleForASmallFileThatClaimsMuch) {
  const TempDir dir;
  const std::string path = dir.Write(
      "bad.gguf",
      "GGUF" + Bytes<std::uint32_t>(3) + Bytes<std::uint64_t>(1) + Bytes(std::uint64_t{1} << 60));
  const auto peak_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long before = peak_kib();
  Refusal(path);
  EXPECT_LT(peak_kib() - before, 1024);
}

TEST(GgufFile, RefusesTokensTooLongAndListsOfUnequalLength) {
  const TempDir dir;
  GgufSpec spec = TinyGgufLlama();
  spec.AddStrings("tokenizer.ggml.tokens", {"a", std::string(70'000, 'b')});
  auto model = OpenModel(dir.Write("bad.gguf", spec.Encode()));
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.error().message(),
              AllOf(HasSubstr("tokenizer.ggml.tokens"), HasSubstr("70000")));

  spec = TinyGgufLlama();
  spec.AddStrings("tokenizer.ggml.tokens", {"a", "b"});
  spec.Add(
      "tokenizer.ggml.scores",
      Bytes<std::uint32_t>(9) + Bytes<std::uint32_t>(6) + Bytes<std::uint64_t>(1) + Bytes(1.0F));
  model = OpenModel(dir.Write("bad.gguf", spec.Encode()));
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.error().message(), HasSubstr("1 entries for 2 tokens"));
}

// --- Split models. ---

// Parts of the tiny model: keys and the first tensors, then the rest.
std::vector<GgufSpec> SplitTiny(std::size_t count) {
  const GgufSpec whole = TinyGgufLlama();
  std::vector<GgufSpec> parts(count);
  parts[0].pairs = whole.pairs;
  for (std::size_t i = 0; i < count; ++i) {
    parts[i].AddU16("split.no", static_cast<std::uint16_t>(i));
    parts[i].AddU16("split.count", static_cast<std::uint16_t>(count));
    parts[i].AddU32("split.tensors.count", static_cast<std::uint32_t>(whole.tensors.size()));
  }
  for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
    parts[i * count / whole.tensors.size()].AddTensor(whole.tensors[i].name, whole.tensors[i].dims);
  }
  return parts;
}

std::string PartName(int i, int count) {
  return "m-0000" + std::to_string(i) + "-of-0000" + std::to_string(count) + ".gguf";
}

std::string OpenError(const std::string& path) {
  const auto model = OpenModel(path);
  EXPECT_FALSE(model.ok());
  return model.ok() ? "" : model.error().message();
}

class SplitGguf : public testing::Test {
 protected:
  SplitGguf() : parts_(SplitTiny(3)) { WriteAll(); }
  void WriteAll() {
    for (int i : {2, 3, 1}) {
      Write(i);
    }
  }
  void Write(int i) {
    dir_.Write(PartName(i, 3), parts_[static_cast<std::size_t>(i - 1)].Encode());
  }
  std::string Path(int i) const { return dir_.path() + "/" + PartName(i, 3); }

  TempDir dir_;
  std::vector<GgufSpec> parts_;
};

TEST_F(SplitGguf, OpensFromAnyPartAndFromTheFolder) {
  for (const std::string& path : {Path(1), Path(2), Path(3), dir_.path()}) {
    const auto model = OpenModel(path);
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_EQ(model->tensors.tensors().size(), 12U);
    EXPECT_EQ(model->weights.Find(Slot::kDown, 0)->tensor->file, 2U);
  }
}

TEST_F(SplitGguf, NamesAbsentParts) {
  std::filesystem::remove(Path(2));
  EXPECT_THAT(OpenError(Path(1)), AllOf(HasSubstr("absent"), HasSubstr(PartName(2, 3))));
  EXPECT_THAT(OpenError(dir_.path()), HasSubstr(PartName(2, 3)));
  std::filesystem::remove(Path(1));
  EXPECT_THAT(OpenError(dir_.path()), AllOf(HasSubstr(PartName(1, 3)), HasSubstr(PartName(2, 3))));
}

TEST_F(SplitGguf, RefusesPartsThatDisagree) {
  parts_[1].pairs[1] = {"split.count", Bytes<std::uint32_t>(2) + Bytes<std::uint16_t>(4)};
  Write(2);
  EXPECT_THAT(OpenError(Path(1)), AllOf(HasSubstr(PartName(2, 3)), HasSubstr("split.count is 4")));
  parts_ = SplitTiny(3);
  parts_[1].pairs[0] = {"split.no", Bytes<std::uint32_t>(2) + Bytes<std::uint16_t>(2)};
  Write(2);
  EXPECT_THAT(OpenError(Path(1)), AllOf(HasSubstr(PartName(2, 3)), HasSubstr("split.no is 2")));
  parts_ = SplitTiny(3);
  parts_[1].pairs[2] = {"split.tensors.count", Bytes<std::uint32_t>(4) + Bytes<std::uint32_t>(99)};
  Write(2);
  EXPECT_THAT(OpenError(Path(1)), AllOf(HasSubstr(PartName(2, 3)), HasSubstr("another model")));
}

TEST_F(SplitGguf, RefusesAPartOfAnotherModel) {
  // As many tensors, but those of part 3.
  parts_[1].tensors = parts_[2].tensors;
  parts_[1].data_bytes = parts_[2].data_bytes;
  Write(2);
  EXPECT_THAT(
      OpenError(Path(1)),
      AllOf(HasSubstr(PartName(3, 3)), HasSubstr("a second time"), HasSubstr(PartName(2, 3))));
  // Its own tensors, one fewer than promised.
  parts_ = SplitTiny(3);
  parts_[1].tensors.pop_back();
  Write(2);
  EXPECT_THAT(OpenError(Path(1)), HasSubstr("split.tensors.count is 12, but the 3 parts hold 11"));
}

TEST_F(SplitGguf, RefusesARenamedPart) {
  std::filesystem::rename(Path(1), dir_.path() + "/other.gguf");
  EXPECT_THAT(OpenError(dir_.path() + "/other.gguf"), HasSubstr("restore the parts' names"));
}

TEST(GgufFolder, RefusesToChooseBetweenModels) {
  const TempDir dir;
  dir.Write("a-q4.gguf", TinyGgufLlama().Encode());
  dir.Write("b-q8.gguf", TinyGgufLlama().Encode());
  EXPECT_THAT(OpenError(dir.path()), AllOf(HasSubstr("a-q4.gguf"), HasSubstr("b-q8.gguf")));
  std::filesystem::rename(dir.path() + "/b-q8.gguf", dir.path() + "/mmproj-b.gguf");
  EXPECT_TRUE(OpenModel(dir.path()).ok());
}

}  // namespace
}  // namespace inferd::store
