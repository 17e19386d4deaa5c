// SPDX-License-Identifier: Apache-2.0
// Thousands of seeded mutations of good files: each either opens or is refused, and every tensor
// that comes out can be read to its last byte. Run it with the asan preset to see reads that stray.
#include "store/model.h"
#include "unit/store/files.h"

#include <gtest/gtest.h>

#include <random>

namespace inferd::store {
namespace {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  /// Changes one to four places within the first `limit` bytes: flips, extreme numbers, cuts and
  /// repeats.
  std::string Mutate(std::string text, std::size_t limit) {
    const int count = static_cast<int>(Below(4)) + 1;
    for (int i = 0; i < count && text.size() > 16; ++i) {
      const std::size_t at = Below(std::min(limit, text.size() - 8));
      switch (Below(6)) {
        case 0:
          text[at] = static_cast<char>(Below(256));
          break;
        case 1:
          text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
          break;
        case 2:
          text.replace(at, 8, Bytes(kExtremes[Below(std::size(kExtremes))]));
          break;
        case 3:
          text.replace(
              at, 4, Bytes(static_cast<std::uint32_t>(kExtremes[Below(std::size(kExtremes))])));
          break;
        case 4:
          text.erase(at, Below(16));
          break;
        default:
          text.insert(at, text.substr(at, Below(16)));
      }
    }
    return text;
  }
  std::size_t Below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }

 private:
  static constexpr std::uint64_t kExtremes[] = {0,
                                                1,
                                                31,
                                                0x7FFFFFFF,
                                                0x80000000,
                                                0xFFFFFFFF,
                                                1ULL << 60,
                                                (1ULL << 61) + 1,
                                                ~0ULL,
                                                ~0ULL - 31,
                                                1ULL << 63};
  std::mt19937_64 random_;
};

// In memory where that is possible: thousands of small files.
std::filesystem::path Parent() {
  const std::filesystem::path memory = "/dev/shm";
  return std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
}

// Sums all bytes, so that every promised range is really read.
unsigned ReadEverything(const Model& model) {
  unsigned sum = 0;
  for (const TensorInfo& tensor : model.tensors.tensors()) {
    for (const std::byte byte : model.tensors.Data(tensor)) {
      sum += static_cast<unsigned>(byte);
    }
  }
  return sum;
}

TEST(Mutation, OfGgufHeadersIsHarmless) {
  const TempDir dir(Parent());
  GgufSpec spec = TinyGgufLlama();
  spec.AddString("tokenizer.ggml.model", "gpt2");
  spec.AddStrings("tokenizer.ggml.tokens", {"a", "b", "<|im_end|>"});
  spec.AddU32("tokenizer.ggml.eos_token_id", 2);
  const std::string good = spec.Encode();
  Mutator mutator(7);
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    const auto model = OpenModel(dir.Write("m.gguf", mutator.Mutate(good, spec.Header().size())));
    if (model.ok()) {
      ++opened;
      EXPECT_NE(ReadEverything(*model), 0U);
    } else {
      EXPECT_FALSE(model.error().message().empty());
    }
  }
  EXPECT_GT(opened, 50);    // the mutations are not all fatal,
  EXPECT_LT(opened, 3000);  // nor all harmless
}

TEST(Mutation, OfSafetensorsHeadersAndConfigsIsHarmless) {
  const TempDir dir(Parent());
  const std::string config = TinyHfConfig();
  const std::string weights = F32File(TinyHfTensors());
  std::uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof(header));
  Mutator mutator(11);
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    const bool in_config = mutator.Below(2) == 0;
    dir.Write("config.json", in_config ? mutator.Mutate(config, config.size()) : config);
    dir.Write("model.safetensors", in_config ? weights : mutator.Mutate(weights, header));
    const auto model = OpenModel(dir.path());
    if (model.ok()) {
      ++opened;
      ReadEverything(*model);
    }
  }
  EXPECT_GT(opened, 5);
  EXPECT_LT(opened, 3000);
}

}  // namespace
}  // namespace inferd::store
