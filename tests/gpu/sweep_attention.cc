// SPDX-License-Identifier: Apache-2.0
// Paged attention: decode over batch and context, bound by the bytes of K and V; prefill, bound by
// the tensor cores.
#include "bench.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/latent_cuda.h"

namespace inferd::gpu {
namespace {

namespace k = kernels::cuda;

struct Format {
  const char* name;
  k::KvFormat format;
};
constexpr Format kBf16 = {"bf16", k::KvFormat::kBf16};
constexpr Format kFp8 = {"fp8", k::KvFormat::kF8E4M3};
constexpr Format kInt8 = {"int8", k::KvFormat::kInt8};

struct Heads {
  int q, kv, dim;
};

// `sequences` of `tokens` each, whose last `rows` are the step's.
class Step {
 public:
  static Result<std::unique_ptr<Step>> Make(Bench& bench,
                                            Heads heads,
                                            k::KvFormat format,
                                            std::int64_t sequences,
                                            std::int64_t tokens,
                                            std::int64_t rows) {
    auto step = std::make_unique<Step>();
    k::AttentionArgs& args = step->args_;
    const std::int64_t pages_each = (tokens + k::kCudaPageTokens - 1) / k::kCudaPageTokens;
    const std::size_t page_bytes = k::KvBytesPerPage(format, heads.kv, heads.dim);
    step->layer_bytes_ = static_cast<std::size_t>(sequences * pages_each) * page_bytes;
    step->layers_ = bench.Pieces(step->layer_bytes_);
    INFERD_ASSIGN(step->memory_,
                  bench.Fill(step->layer_bytes_ * static_cast<std::size_t>(step->layers_)));
    std::vector<std::int32_t> position, sequence, pages, row_begin = {0}, group_begin;
    for (std::int64_t s = 0; s < sequences; ++s) {
      for (std::int64_t row = tokens - rows; row < tokens; ++row) {
        position.push_back(static_cast<std::int32_t>(row));
        sequence.push_back(static_cast<std::int32_t>(s));
      }
      row_begin.push_back(static_cast<std::int32_t>(position.size()));
    }
    // Neighbours in a sequence are no neighbours in memory.
    for (std::int64_t s = 0; s < sequences; ++s) {
      for (std::int64_t page = 0; page < pages_each; ++page) {
        pages.push_back(static_cast<std::int32_t>(page * sequences + s));
      }
    }
    for (int head = 0; head <= heads.kv; ++head) {
      group_begin.push_back(head * heads.q / heads.kv);
    }
    INFERD_ASSIGN(step->position_, bench.Upload(position));
    INFERD_ASSIGN(step->sequence_, bench.Upload(sequence));
    INFERD_ASSIGN(step->pages_, bench.Upload(pages));
    INFERD_ASSIGN(step->row_begin_, bench.Upload(row_begin));
    INFERD_ASSIGN(step->group_begin_, bench.Upload(group_begin));
    const auto all = static_cast<std::int64_t>(position.size());
    const std::int64_t width = static_cast<std::int64_t>(heads.q) * heads.dim;
    INFERD_ASSIGN(step->q_, bench.Fill(static_cast<std::size_t>(all * width) * 4));
    INFERD_ASSIGN(step->y_, bench.Fill(static_cast<std::size_t>(all * width) * 4));
    args.q = reinterpret_cast<const float*>(step->q_.get());
    args.y = reinterpret_cast<float*>(step->y_.get());
    args.ldq = args.ldy = width;
    args.q_heads = heads.q;
    args.group_begin = reinterpret_cast<const std::int32_t*>(step->group_begin_.get());
    args.max_group = heads.q / heads.kv;
    args.step = {all,
                 reinterpret_cast<const std::int32_t*>(step->position_.get()),
                 reinterpret_cast<const std::int32_t*>(step->sequence_.get()),
                 reinterpret_cast<const std::int32_t*>(step->pages_.get()),
                 static_cast<int>(pages_each)};
    args.kv.page_bytes = static_cast<std::int64_t>(page_bytes);
    args.kv.format = format;
    args.kv.kv_heads = heads.kv;
    args.kv.head_dim = heads.dim;
    args.scale = 0.09F;
    args.max_tokens = tokens;
    step->sequences_ = sequences;
    step->rows_each_ = rows;
    return step;
  }

  /// Milliseconds are of one layer; every launch reads the pages of another one.
  Result<double> DecodeSeconds(Bench& bench) {
    INFERD_ASSIGN(const DeviceBytes workspace,
                  bench.Fill(k::AttentionWorkspaceBytes(
                      args_.step.rows, args_.q_heads, args_.kv.head_dim, args_.max_tokens)));
    args_.workspace = reinterpret_cast<float*>(workspace.get());
    return bench.Seconds([&](std::int64_t i) {
      Choose(i);
      return k::AttentionRows(args_, bench.stream());
    });
  }

  Result<double> PrefillSeconds(Bench& bench) {
    return bench.Seconds([&](std::int64_t i) {
      Choose(i);
      return k::AttentionTiles(args_,
                               reinterpret_cast<const std::int32_t*>(row_begin_.get()),
                               sequences_,
                               rows_each_,
                               bench.stream());
    });
  }

  double kv_bytes() const { return static_cast<double>(layer_bytes_); }

 private:
  void Choose(std::int64_t i) {
    args_.kv.base = memory_.get() + static_cast<std::size_t>(i % layers_) * layer_bytes_;
  }

  k::AttentionArgs args_;
  std::size_t layer_bytes_ = 0;
  std::int64_t layers_ = 1, sequences_ = 0, rows_each_ = 0;
  DeviceBytes memory_, position_, sequence_, pages_, row_begin_, group_begin_, q_, y_;
};

// `sequences` of `tokens` each over a latent cache, whose last row is asked about.
Result<> LatentDecode(
    Bench& bench, int heads, int kv_rank, std::int64_t batch, std::int64_t context) {
  k::LatentArgs args;
  args.kv.format = k::KvFormat::kBf16;
  args.kv.kv_rank = kv_rank;
  args.kv.rope_dim = 64;
  args.heads = heads;
  args.ldq = static_cast<std::int64_t>(heads) * args.kv.dim();
  args.ldy = static_cast<std::int64_t>(heads) * kv_rank;
  args.scale = 0.09F;
  args.max_tokens = context;
  const std::int64_t pages_each = (context + k::kCudaPageTokens - 1) / k::kCudaPageTokens;
  const std::size_t page_bytes = k::LatentBytesPerPage(args.kv.format, args.kv.dim());
  args.kv.page_bytes = static_cast<std::int64_t>(page_bytes);
  const std::size_t layer_bytes = static_cast<std::size_t>(batch * pages_each) * page_bytes;
  const std::int64_t layers = bench.Pieces(layer_bytes);
  INFERD_ASSIGN(const DeviceBytes memory,
                bench.Fill(layer_bytes * static_cast<std::size_t>(layers)));
  const std::vector<std::int32_t> positions(static_cast<std::size_t>(batch),
                                            static_cast<std::int32_t>(context - 1));
  std::vector<std::int32_t> sequences, pages;
  for (std::int64_t s = 0; s < batch; ++s) {
    sequences.push_back(static_cast<std::int32_t>(s));
    for (std::int64_t page = 0; page < pages_each; ++page) {
      pages.push_back(static_cast<std::int32_t>(page * batch + s));
    }
  }
  INFERD_ASSIGN(const DeviceBytes position, bench.Upload(positions));
  INFERD_ASSIGN(const DeviceBytes sequence, bench.Upload(sequences));
  INFERD_ASSIGN(const DeviceBytes table, bench.Upload(pages));
  INFERD_ASSIGN(const DeviceBytes q, bench.Fill(static_cast<std::size_t>(batch * args.ldq) * 4));
  INFERD_ASSIGN(const DeviceBytes y, bench.Fill(static_cast<std::size_t>(batch * args.ldy) * 4));
  INFERD_ASSIGN(const DeviceBytes workspace,
                bench.Fill(k::AttentionWorkspaceBytes(batch, heads, kv_rank, context)));
  args.q = reinterpret_cast<const float*>(q.get());
  args.y = reinterpret_cast<float*>(y.get());
  args.workspace = reinterpret_cast<float*>(workspace.get());
  args.step = {batch,
               reinterpret_cast<const std::int32_t*>(position.get()),
               reinterpret_cast<const std::int32_t*>(sequence.get()),
               reinterpret_cast<const std::int32_t*>(table.get()),
               static_cast<int>(pages_each)};
  INFERD_ASSIGN(const double seconds, bench.Seconds([&](std::int64_t i) {
    args.kv.base = memory.get() + static_cast<std::size_t>(i % layers) * layer_bytes;
    return k::LatentRows(args, bench.stream());
  }));
  bench.Print(
      R"("sweep": "decode_attention", "kv": "latent_bf16", "batch": {}, "context": {}, "q_heads": {}, "kv_rank": {}, "rope_dim": 64, "ms": {:.5f}, "gb_s": {:.4g}, "tflop_s": {:.4g})",
      batch,
      context,
      heads,
      kv_rank,
      seconds * 1e3,
      static_cast<double>(layer_bytes) * 1e-9 / seconds,
      2e-12 * static_cast<double>(batch * context * heads * (args.kv.dim() + kv_rank)) / seconds);
  return {};
}

}  // namespace

Result<> SweepDecodeAttention(Bench& bench) {
  constexpr double kMostBytes = 24e9;
  const Heads heads = bench.tiny() ? Heads{4, 2, 64} : Heads{32, 8, 128};
  using Counts = std::vector<std::int64_t>;
  for (const Format& format : {kBf16, kFp8, kInt8}) {
    for (const std::int64_t batch : bench.tiny() ? Counts{2} : Counts{1, 8, 64, 256}) {
      for (const std::int64_t context : bench.tiny() ? Counts{70} : Counts{1024, 8192, 32'768}) {
        if (static_cast<double>(batch * context * heads.kv * heads.dim) * 4 > kMostBytes) {
          continue;
        }
        INFERD_ASSIGN(const auto step, Step::Make(bench, heads, format.format, batch, context, 1));
        INFERD_ASSIGN(const double seconds, step->DecodeSeconds(bench));
        bench.Print(
            R"("sweep": "decode_attention", "kv": "{}", "batch": {}, "context": {}, "q_heads": {}, "kv_heads": {}, "head_dim": {}, "ms": {:.5f}, "gb_s": {:.4g})",
            format.name,
            batch,
            context,
            heads.q,
            heads.kv,
            heads.dim,
            seconds * 1e3,
            step->kv_bytes() * 1e-9 / seconds);
      }
    }
  }
  // DeepSeek-V2-Lite, or one of eight ranks of V3; all heads of V3.
  for (const int q_heads : bench.tiny() ? std::vector<int>{4} : std::vector<int>{16, 128}) {
    for (const std::int64_t batch : bench.tiny() ? Counts{2} : Counts{1, 64}) {
      INFERD_TRY(
          LatentDecode(bench, q_heads, bench.tiny() ? 32 : 512, batch, bench.tiny() ? 70 : 8192));
    }
  }
  return {};
}

Result<> SweepPrefillAttention(Bench& bench) {
  struct Chunk {
    std::int64_t tokens, prefix;
  };
  const std::vector<Heads> shapes =
      bench.tiny() ? std::vector<Heads>{{4, 2, 64}}
                   : std::vector<Heads>{{32, 8, 128}, {32, 8, 64}, {16, 8, 256}};
  const std::vector<Chunk> chunks =
      bench.tiny() ? std::vector<Chunk>{{70, 40}}
                   : std::vector<Chunk>{{2048, 0}, {8192, 0}, {2048, 30'720}, {32'768, 0}};
  for (const Heads& heads : shapes) {
    for (const Chunk& chunk : chunks) {
      INFERD_ASSIGN(
          const auto step,
          Step::Make(bench, heads, kBf16.format, 1, chunk.prefix + chunk.tokens, chunk.tokens));
      INFERD_ASSIGN(const double seconds, step->PrefillSeconds(bench));
      const auto rows = static_cast<double>(chunk.tokens);
      const double seen = rows * (static_cast<double>(chunk.prefix) + (rows + 1) / 2);
      bench.Print(
          R"("sweep": "prefill_attention", "kv": "bf16", "tokens": {}, "prefix": {}, "q_heads": {}, "kv_heads": {}, "head_dim": {}, "ms": {:.4f}, "tflop_s": {:.4g})",
          chunk.tokens,
          chunk.prefix,
          heads.q,
          heads.kv,
          heads.dim,
          seconds * 1e3,
          4e-12 * seen * heads.q * heads.dim / seconds);
    }
  }
  return {};
}

}  // namespace inferd::gpu
