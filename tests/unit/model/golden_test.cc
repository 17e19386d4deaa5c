// SPDX-License-Identifier: Apache-2.0
// Logits of every family against transformers, from its HF folder and its GGUF twin.
#include "kernels/kernels.h"
#include "unit/model/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

namespace inferd::model {
namespace {

struct Case {
  std::string family;
  std::string file;  // empty: the folder
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const auto& entry : std::filesystem::directory_iterator(DataFolder())) {
    if (!std::filesystem::exists(entry.path() / "golden.safetensors")) {
      continue;
    }
    const std::string family = entry.path().filename().string();
    cases.push_back({family, {}});
    for (const auto& file : std::filesystem::directory_iterator(entry.path())) {
      const std::string name = file.path().filename().string();
      // Of a split file the first part names the whole.
      if (name.ends_with(".gguf") && (name.find("-of-") == std::string::npos ||
                                      name.find("-00001-of-") != std::string::npos)) {
        cases.push_back({family, name});
      }
    }
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) {
    return std::pair(a.family, a.file) < std::pair(b.family, b.file);
  });
  return cases;
}

float Largest(const std::vector<float>& logits) {
  float largest = 0;
  for (const float logit : logits) {
    largest = std::max(largest, std::abs(logit));
  }
  return largest;
}

class GoldenTest : public testing::TestWithParam<Case> {
 protected:
  static std::vector<float> Logits(const std::vector<std::int32_t>& ids,
                                   spec::KvDtype kv_dtype,
                                   bool bf16_dot = false) {
    ShardSetOptions options;
    options.bf16_dot = bf16_dot;
    options.max_model_len = static_cast<std::int64_t>(ids.size());
    options.kv_dtype = kv_dtype;
    auto set = ShardSet::Make(DataPath(GetParam().family, GetParam().file), options);
    if (!set.ok()) {
      ADD_FAILURE() << set.error().message();
      return {};
    }
    auto logits = (*set)->Run({ids}, InChunks({ids}, static_cast<std::int64_t>(ids.size())));
    if (!logits.ok()) {
      ADD_FAILURE() << logits.error().message();
      return {};
    }
    return (*logits)[0];
  }

  // Largest absolute difference; infinite for NaN.
  static float Worst(const std::vector<float>& logits, const std::vector<float>& expected) {
    float worst = logits.size() == expected.size() ? 0 : INFINITY;
    for (std::size_t i = 0; i < std::min(logits.size(), expected.size()); ++i) {
      const float difference = std::abs(logits[i] - expected[i]);
      worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
    }
    return worst;
  }

  static float Worst(const std::vector<std::int32_t>& ids,
                     const std::vector<float>& expected,
                     spec::KvDtype kv_dtype,
                     bool bf16_dot = false) {
    return Worst(Logits(ids, kv_dtype, bf16_dot), expected);
  }

  // Mean over the positions of the Kullback-Leibler divergence from the expected distribution, in
  // nats.
  static double Drift(const std::vector<float>& logits,
                      const std::vector<float>& expected,
                      std::size_t positions) {
    if (logits.size() != expected.size()) {
      return HUGE_VAL;
    }
    const std::size_t vocab = expected.size() / positions;
    const auto log_sum = [&](const float* row) {
      const float top = *std::max_element(row, row + vocab);
      double sum = 0;
      for (std::size_t i = 0; i < vocab; ++i) {
        sum += std::exp(static_cast<double>(row[i] - top));
      }
      return top + std::log(sum);
    };
    double drift = 0;
    for (std::size_t at = 0; at < expected.size(); at += vocab) {
      const double want = log_sum(expected.data() + at);
      const double got = log_sum(logits.data() + at);
      for (std::size_t i = at; i < at + vocab; ++i) {
        drift += std::exp(expected[i] - want) * (expected[i] - want - (logits[i] - got));
      }
    }
    return drift / static_cast<double>(positions);
  }
};

// Only the stored weights are rounded, and they are the reference's too.
TEST_P(GoldenTest, LogitsMatchWithF32Kv) {
  const Golden golden = ReadGolden(GetParam().family);
  const auto worst = [&](const std::string& ids, const std::string& logits) {
    return Worst(golden.ints.at(ids), golden.floats.at(logits), spec::KvDtype::kF32);
  };
  EXPECT_LE(worst("input_ids", "logits"), 1e-3F);
  if (golden.ints.contains("short_input_ids")) {
    EXPECT_LE(worst("short_input_ids", "short_logits"), 1e-3F);
  }
}

// As served by default: F32 weights with F32 KV, all others with F16 KV.
TEST_P(GoldenTest, LogitsMatchAsServed) {
  const Golden golden = ReadGolden(GetParam().family);
  EXPECT_LE(Worst(golden.ints.at("input_ids"), golden.floats.at("logits"), spec::KvDtype::kAuto),
            golden.tolerance);
}

// BF16 KV keeps 8 bits of mantissa; in these models attention is most of what happens, so that
// rounding K and V moves logits by a share of the largest one, whatever the weights are.
TEST_P(GoldenTest, LogitsMatchWithBf16Kv) {
  const Golden golden = ReadGolden(GetParam().family);
  const auto& expected = golden.floats.at("logits");
  const float largest = Largest(expected);
  EXPECT_LE(Worst(golden.ints.at("input_ids"), expected, spec::KvDtype::kBf16), 2e-2F * largest)
      << "largest logit " << largest;
}

// int8 keeps 7 bits below a token's largest value of a head. How far the distributions over the
// next token drift is what perplexity would show.
TEST_P(GoldenTest, LogitsMatchWithInt8Kv) {
  const Golden golden = ReadGolden(GetParam().family);
  const auto& ids = golden.ints.at("input_ids");
  const auto& expected = golden.floats.at("logits");
  const std::vector<float> logits = Logits(ids, spec::KvDtype::kInt8);
  EXPECT_LE(Worst(logits, expected), 4e-2F * Largest(expected)) << Largest(expected);
  EXPECT_LE(Drift(logits, expected, ids.size()), 2e-3);
  EXPECT_NE(logits, Logits(ids, spec::KvDtype::kF16)) << "nothing was rounded";
}

// FP8 keeps 3 bits of mantissa, by which a close call between two experts falls the other way: the
// logits of such a token are others.
TEST_P(GoldenTest, DistributionsMatchWithFp8Kv) {
  const Golden golden = ReadGolden(GetParam().family);
  const auto& ids = golden.ints.at("input_ids");
  const double drift =
      Drift(Logits(ids, spec::KvDtype::kFp8), golden.floats.at("logits"), ids.size());
  EXPECT_LE(drift, 0.2);
  EXPECT_GE(drift, 1e-5) << "nothing was rounded";
}

// --dtype bfloat16: every input of a BF16 weight keeps 8 bits of mantissa, as in other servers'
// bfloat16; other weights are as ever.
TEST_P(GoldenTest, LogitsMatchInBf16) {
  if (!kernels::CpuHasAvx512Bf16()) {
    return;  // a rank of this host refuses it
  }
  const Golden golden = ReadGolden(GetParam().family);
  const auto& expected = golden.floats.at("logits");
  const float largest = Largest(expected);
  EXPECT_LE(Worst(golden.ints.at("input_ids"), expected, spec::KvDtype::kAuto, true),
            4e-2F * largest)
      << "largest logit " << largest;
}

std::string CaseName(const testing::TestParamInfo<Case>& param) {
  std::string name = param.param.family + (param.param.file.empty() ? "" : "_gguf");
  std::replace_if(
      name.begin(),
      name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; },
      '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace inferd::model
