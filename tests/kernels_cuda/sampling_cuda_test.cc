// SPDX-License-Identifier: Apache-2.0
// Sampling on the device gives the host sampler's tokens, with its logprobs, and leaves the logits
// as they were.
#include "kernels/sampling/sampling_cuda.h"

#include "device_fixture.h"
#include "kernels/kernel_fixture.h"
#include "model/sample_batch.h"
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace inferd::kernels::cuda {
namespace {

constexpr std::int32_t kVocab = 997;

// Rows with all that a request may ask for, sampled on both sides.
class Sampling : public testing::Test {
 protected:
  struct Request {
    std::vector<float> logits;
    spec::SamplingParams params;
    std::vector<std::int32_t> history;  // all output
    std::int64_t position = 0;
    spec::TokenMask mask;
  };

  static spec::SampledToken OnHost(const Request& request) {
    std::vector<float> logits = request.logits;
    const model::SamplingState state(request.params, request.history, 0);
    spec::SampledToken out;
    model::SampleToken(logits, state, request.position, &request.mask, &out);
    return out;
  }

  static std::vector<std::int32_t> TokensOnDevice(const std::vector<Request>& requests) {
    std::vector<std::int32_t> tokens;
    for (const spec::SampledToken& sampled : OnDevice(requests)) {
      tokens.push_back(sampled.token);
    }
    return tokens;
  }

  static std::vector<spec::SampledToken> OnDevice(const std::vector<Request>& requests) {
    constexpr std::int32_t kWords = (kVocab + 31) / 32;
    std::vector<float> logits;
    std::vector<SamplingRow> rows;
    std::vector<LogitEdit> edits;
    std::vector<std::int32_t> bans;
    std::vector<std::uint32_t> mask;
    std::vector<std::uint8_t> has_mask;
    for (const Request& request : requests) {
      const auto& p = request.params;
      const auto index = static_cast<std::int32_t>(rows.size());
      logits.insert(logits.end(), request.logits.begin(), request.logits.end());
      logits.resize(logits.size() + 3, 1e9F);  // between the rows
      SamplingRow row;
      row.seed = p.seed;
      row.position = request.position;
      row.top_p = p.top_p;
      row.inverse_temperature = p.temperature < 1e-5 ? 0.0F : static_cast<float>(1 / p.temperature);
      row.has_min_p = p.min_p > 0 ? 1 : 0;
      row.min_p_log = p.min_p > 0 ? static_cast<float>(std::log(p.min_p)) : 0.0F;
      row.top_k = p.top_k;
      row.top = p.logprobs;
      row.ban_begin = static_cast<std::int32_t>(bans.size());
      const model::SamplingState state(p, request.history, 0);
      std::vector<std::int32_t> listed;
      state.ListBans(request.position, &listed);
      bans.insert(bans.end(), listed.begin(), listed.end());
      row.ban_end = static_cast<std::int32_t>(bans.size());
      rows.push_back(row);
      std::vector<LogitEdit> mine;
      const auto edit = [&](std::int32_t token) -> LogitEdit& {
        for (LogitEdit& e : mine) {
          if (e.token == token) {
            return e;
          }
        }
        LogitEdit fresh;
        fresh.row = index;
        fresh.token = token;
        mine.push_back(fresh);
        return mine.back();
      };
      for (const auto& [token, bias] : p.logit_bias) {
        edit(token).add = bias;
      }
      for (const auto& [token, use] : state.used()) {
        LogitEdit& e = edit(token);
        e.repetition = static_cast<float>(p.repetition_penalty);
        e.minus = use.outputs > 0
                      ? static_cast<float>(p.presence_penalty + p.frequency_penalty * use.outputs)
                      : 0.0F;
      }
      edits.insert(edits.end(), mine.begin(), mine.end());
      has_mask.push_back(request.mask.kind == spec::TokenMask::Kind::kBits ? 1 : 0);
      std::vector<std::uint32_t> bits = request.mask.bits;
      bits.resize(kWords, 0);
      mask.insert(mask.end(), bits.begin(), bits.end());
    }
    bans.push_back(0);
    edits.resize(std::max<std::size_t>(edits.size(), 1));
    const DeviceArray<float> d_logits(logits);
    const DeviceArray<SamplingRow> d_rows(rows);
    const DeviceArray<LogitEdit> d_edits(edits);
    const DeviceArray<std::int32_t> d_bans(bans), token(rows.size());
    const DeviceArray<std::uint32_t> d_mask(mask);
    const DeviceArray<std::uint8_t> d_has(has_mask);
    const DeviceArray<TokenScore> scores(rows.size());
    SamplingArgs args;
    args.logits = d_logits.get();
    args.ld = kVocab + 3;
    args.rows = static_cast<std::int64_t>(rows.size());
    args.vocab = kVocab;
    args.mask = d_mask.get();
    args.has_mask = d_has.get();
    args.mask_words = kWords;
    args.edits = d_edits.get();
    args.num_edits = static_cast<std::int64_t>(edits.size());
    args.bans = d_bans.get();
    args.params = d_rows.get();
    args.token = token.get();
    args.scores = scores.get();
    EXPECT_OK(Sample(args, nullptr));
    EXPECT_OK(Score(args, nullptr));
    const std::vector<float> after = d_logits.Download();
    EXPECT_EQ(std::memcmp(after.data(), logits.data(), logits.size() * sizeof(float)), 0);
    const std::vector<std::int32_t> drawn = token.Download();
    const std::vector<TokenScore> scored = scores.Download();
    std::vector<spec::SampledToken> samples(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      samples[i].token = drawn[i];
      if (rows[i].top >= 0) {
        model::TakeScore(scored[i], &samples[i]);
      }
    }
    return samples;
  }

  static Request Plain(unsigned seed) {
    Request request;
    request.logits = RandomFloats(kVocab, seed, 3);
    request.params.seed = seed * 7919;
    request.params.logprobs = seed % 4 == 0 ? -1 : static_cast<std::int32_t>(seed % 8);
    request.position = seed % 50;
    return request;
  }

  static void ExpectSame(const std::vector<Request>& requests) {
    const std::vector<spec::SampledToken> got = OnDevice(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      const spec::SampledToken want = OnHost(requests[i]);
      EXPECT_EQ(got[i].token, want.token);
      EXPECT_EQ(got[i].logprob, want.logprob);
      EXPECT_EQ(got[i].rank, want.rank);
      ASSERT_EQ(got[i].top.size(), want.top.size());
      for (std::size_t t = 0; t < want.top.size(); ++t) {
        EXPECT_EQ(got[i].top[t].token, want.top[t].token);
        EXPECT_EQ(got[i].top[t].logprob, want.top[t].logprob);
      }
    }
  }
};

TEST_F(Sampling, GreedyTakesTheLowestOfTheBest) {
  std::vector<Request> requests(3, Plain(1));
  for (Request& request : requests) {
    request.params.temperature = 0;
  }
  requests[1].logits[500] = requests[1].logits[77] = requests[1].logits[900] = 40;
  requests[2].logits[kVocab - 1] = 50;
  ExpectSame(requests);
}

TEST_F(Sampling, EveryCombinationOfLimits) {
  std::vector<Request> requests;
  unsigned seed = 10;
  for (const std::int32_t top_k : {0, 1, 5, 40, kVocab}) {
    for (const double top_p : {1.0, 0.95, 0.3, 1e-6}) {
      for (const double min_p : {0.0, 0.05, 1.0}) {
        for (const double temperature : {0.3, 1.0, 1.7}) {
          Request request = Plain(seed++);
          request.params.top_k = top_k;
          request.params.top_p = top_p;
          request.params.min_p = min_p;
          request.params.temperature = temperature;
          if (seed % 3 == 0) {  // many ties
            for (float& logit : request.logits) {
              logit = std::round(logit);
            }
          }
          requests.push_back(request);
        }
      }
    }
  }
  ExpectSame(requests);
}

TEST_F(Sampling, MasksBiasPenaltiesAndBans) {
  std::vector<Request> requests;
  for (unsigned seed = 300; seed < 330; ++seed) {
    Request request = Plain(seed);
    TestRandom random(seed);
    request.params.temperature = seed % 4 == 0 ? 0 : 0.8;
    request.params.top_p = 0.9;
    if (seed % 2 == 0) {
      request.mask.kind = spec::TokenMask::Kind::kBits;
      for (int i = 0; i < (kVocab + 31) / 32; ++i) {
        request.mask.bits.push_back(static_cast<std::uint32_t>(random.Next() & random.Next()));
      }
    }
    request.params.repetition_penalty = seed % 3 == 0 ? 1.3 : 1.0;
    request.params.presence_penalty = 0.5;
    request.params.frequency_penalty = 0.25;
    for (int i = 0; i < 40; ++i) {
      request.history.push_back(static_cast<std::int32_t>(random.Next() % kVocab));
    }
    request.params.logit_bias = {{3, 2.5F}, {request.history[0], -1.5F}, {kVocab + 5, 9.0F}};
    request.params.min_tokens = 100;
    request.params.end_tokens = {1, 2, static_cast<std::int32_t>(random.Next() % kVocab)};
    requests.push_back(request);
  }
  ExpectSame(requests);
}

TEST_F(Sampling, BansGiveWayAndBrokenRowsFail) {
  std::vector<Request> requests(4, Plain(9));
  requests[0].mask.kind = spec::TokenMask::Kind::kBits;
  requests[0].mask.bits = {1U << 7};
  requests[0].params.min_tokens = 100;
  requests[0].params.end_tokens = {7};
  requests[1].mask.kind = spec::TokenMask::Kind::kBits;  // nothing is allowed
  requests[2].logits[400] = std::numeric_limits<float>::quiet_NaN();
  requests[3].logits[400] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TokensOnDevice(requests), (std::vector<std::int32_t>{7, -1, -1, -1}));
  ExpectSame(requests);
}

TEST_F(Sampling, ARowsTokenDoesNotDependOnTheBatch) {
  std::vector<Request> requests;
  for (unsigned seed = 50; seed < 56; ++seed) {
    requests.push_back(Plain(seed));
    requests.back().params.top_k = 30;
  }
  const auto all = TokensOnDevice(requests);
  EXPECT_EQ(TokensOnDevice({requests[4]}), std::vector<std::int32_t>{all[4]});
}

}  // namespace
}  // namespace inferd::kernels::cuda
