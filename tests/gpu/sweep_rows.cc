// SPDX-License-Identifier: Apache-2.0
// What works on rows: the norm that takes a residual in, and the next token of each row.
#include "bench.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/sampling/sampling_cuda.h"

#include <algorithm>

namespace inferd::gpu {
namespace {

namespace k = kernels::cuda;

constexpr std::int64_t kMostPieces = 8192;  // rows are small: this many to fill the caches

Result<> SweepNorm(Bench& bench, std::int64_t rows, std::int64_t columns) {
  const auto bytes = static_cast<std::size_t>(rows * columns) * 4;
  const std::int64_t pieces = bench.Pieces(3 * bytes, kMostPieces);
  const std::size_t all = bytes * static_cast<std::size_t>(pieces);
  INFERD_ASSIGN(const DeviceBytes x, bench.Fill(all));
  INFERD_ASSIGN(const DeviceBytes add, bench.Fill(all));
  INFERD_ASSIGN(const DeviceBytes y, bench.Fill(all));
  INFERD_ASSIGN(const DeviceBytes weight, bench.Fill(static_cast<std::size_t>(columns) * 4));
  INFERD_ASSIGN(const double seconds, bench.Seconds([&](std::int64_t i) {
    const std::size_t at = static_cast<std::size_t>(i % pieces) * bytes;
    return k::AddRmsNorm(reinterpret_cast<float*>(x.get() + at),
                         columns,
                         reinterpret_cast<const float*>(add.get() + at),
                         columns,
                         reinterpret_cast<const float*>(weight.get()),
                         1e-5F,
                         rows,
                         columns,
                         reinterpret_cast<float*>(y.get() + at),
                         columns,
                         bench.stream());
  }));
  // x and what is added are read, x and y written.
  bench.Print(
      R"("sweep": "rows", "kernel": "add_rms_norm", "rows": {}, "k": {}, "ms": {:.5f}, "gb_s": {:.4g})",
      rows,
      columns,
      seconds * 1e3,
      4 * static_cast<double>(bytes) * 1e-9 / seconds);
  return {};
}

enum class Sampler { kGreedy, kTopKTopP, kScore };

Result<> SweepSampling(Bench& bench, Sampler sampler, std::int64_t rows, std::int32_t vocab) {
  const bool draws = sampler == Sampler::kTopKTopP;
  const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(vocab) * 4;
  const std::int64_t pieces = bench.Pieces(bytes, kMostPieces);
  INFERD_ASSIGN(const DeviceBytes logits, bench.Fill(bytes * static_cast<std::size_t>(pieces)));
  std::vector<k::SamplingRow> params(static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < params.size(); ++row) {
    params[row].seed = row;
    params[row].position = 100;
    params[row].inverse_temperature = draws ? 1.25F : 0.0F;
    params[row].top_k = draws ? std::min(50, vocab) : 0;
    params[row].top_p = draws ? 0.9 : 1.0;
    params[row].top = kernels::kMaxTop;
  }
  INFERD_ASSIGN(const DeviceBytes device_params, bench.Upload(params));
  const std::vector<std::int32_t> tokens(params.size(), vocab / 2);
  INFERD_ASSIGN(const DeviceBytes token, bench.Upload(tokens));
  INFERD_ASSIGN(const DeviceBytes scores,
                bench.Fill(static_cast<std::size_t>(rows) * sizeof(kernels::TokenScore)));
  k::SamplingArgs args;
  args.ld = args.vocab = vocab;
  args.rows = rows;
  args.params = reinterpret_cast<const k::SamplingRow*>(device_params.get());
  args.token = reinterpret_cast<std::int32_t*>(token.get());
  args.scores = reinterpret_cast<kernels::TokenScore*>(scores.get());
  INFERD_ASSIGN(const double seconds, bench.Seconds([&](std::int64_t i) {
    args.logits =
        reinterpret_cast<float*>(logits.get() + static_cast<std::size_t>(i % pieces) * bytes);
    return sampler == Sampler::kScore ? k::Score(args, bench.stream())
                                      : k::Sample(args, bench.stream());
  }));
  bench.Print(
      R"("sweep": "rows", "kernel": "{}", "rows": {}, "vocab": {}, "ms": {:.5f}, "gb_s": {:.4g})",
      sampler == Sampler::kScore ? "score_top_20"
      : draws                    ? "sample_top_k_top_p"
                                 : "sample_greedy",
      rows,
      vocab,
      seconds * 1e3,
      4e-9 * static_cast<double>(rows) * vocab / seconds);
  return {};
}

}  // namespace

Result<> SweepRows(Bench& bench) {
  using Counts = std::vector<std::int64_t>;
  for (const std::int64_t rows : bench.tiny() ? Counts{3} : Counts{1, 64, 8192}) {
    INFERD_TRY(SweepNorm(bench, rows, bench.tiny() ? 256 : 4096));
  }
  for (const Sampler sampler : {Sampler::kGreedy, Sampler::kTopKTopP, Sampler::kScore}) {
    for (const std::int64_t rows : bench.tiny() ? Counts{2} : Counts{1, 16, 256}) {
      INFERD_TRY(SweepSampling(bench, sampler, rows, bench.tiny() ? 512 : 128'256));
    }
  }
  return {};
}

}  // namespace inferd::gpu
