// SPDX-License-Identifier: Apache-2.0
// Attention over a latent cache on the device, and what fills it, against double arithmetic.
#include "kernels/attention/latent_cuda.h"

#include "device_fixture.h"
#include "kernels/attention/attention_cuda.h"
#include "stored_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

namespace inferd::kernels::cuda {
namespace {

constexpr int kMaxPages = 24;
constexpr KvFormat kFormats[] = {
    KvFormat::kBf16, KvFormat::kF16, KvFormat::kF32, KvFormat::kF8E4M3, KvFormat::kInt8};

struct Sequence {
  int start, count;  // rows at positions [start, start + count)
};

struct Case {
  KvFormat format = KvFormat::kBf16;
  int heads = 4, kv_rank = 32, rope_dim = 16;
  std::vector<Sequence> sequences = {{0, 1}};
  bool interleaved = true;
  int dim() const { return kv_rank + rope_dim; }
};

/// Value i of the token at `slot` of a page, without LatentPages::scale. A page of latent tokens
/// is the K side of one head, with int8's scales right behind it.
double StoredLatent(const std::byte* page, KvFormat format, int dim, int slot, int i) {
  if (format != KvFormat::kInt8) {
    return StoredKv(page, format, 1, dim, 0, 0, slot, i);
  }
  float scale;
  std::memcpy(&scale, page + kCudaPageTokens * dim + slot * 4, 4);
  return static_cast<double>(scale) * static_cast<std::int8_t>(page[slot * dim + i]);
}

// All tokens of all sequences go into the pages by LatentPost, then rows ask about them.
class Latent {
 public:
  explicit Latent(const Case& c) : c_(c), page_bytes_(LatentBytesPerPage(c.format, c.dim()) + 64) {
    const int pages = static_cast<int>(c.sequences.size()) * kMaxPages;
    for (int i = 0; i < pages; ++i) {
      tables_.push_back((i * 7 + 3) % pages);  // 7 has no divisor in common with the counts used
    }
    d_pages_.Upload(tables_);
    memory_ =
        std::make_unique<DeviceArray<std::byte>>(page_bytes_ * static_cast<std::size_t>(pages));
    const auto half = static_cast<std::size_t>(c.rope_dim / 2);
    cos_ = RandomFloats(kMaxPages * kCudaPageTokens * half, 5);
    sin_ = RandomFloats(kMaxPages * kCudaPageTokens * half, 6);
    norm_ = RandomFloats(static_cast<std::size_t>(c.kv_rank), 7);
    for (std::size_t s = 0; s < c.sequences.size(); ++s) {
      for (int i = 0; i < c.sequences[s].count; ++i) {
        positions_.push_back(c.sequences[s].start + i);
        sequence_of_.push_back(static_cast<int>(s));
      }
      Store(static_cast<int>(s), c.sequences[s].start + c.sequences[s].count);
    }
    q_ = RandomFloats(positions_.size() * static_cast<std::size_t>(c.heads * c.dim()), 77);
  }

  LatentPages Pages() const {
    LatentPages kv;
    kv.base = memory_->get();
    kv.page_bytes = static_cast<std::int64_t>(page_bytes_);
    kv.format = c_.format;
    kv.kv_rank = c_.kv_rank;
    kv.rope_dim = c_.rope_dim;
    kv.scale = c_.format == KvFormat::kF8E4M3 ? 0.02F : 1.0F;
    return kv;
  }

  /// y of rows [first, first + count); `bound` of the tokens beyond what there are.
  std::vector<float> Run(std::size_t first, std::size_t count, std::int64_t bound = 0) const {
    const auto width = static_cast<std::ptrdiff_t>(c_.heads * c_.dim());
    const auto at = static_cast<std::ptrdiff_t>(first);
    const auto end = at + static_cast<std::ptrdiff_t>(count);
    const DeviceArray<float> q(
        std::vector<float>(q_.begin() + at * width, q_.begin() + end * width));
    const DeviceArray<std::int32_t> position(
        std::vector<std::int32_t>(positions_.begin() + at, positions_.begin() + end));
    const DeviceArray<std::int32_t> sequence(
        std::vector<std::int32_t>(sequence_of_.begin() + at, sequence_of_.begin() + end));
    const DeviceArray<float> y(count * static_cast<std::size_t>(c_.heads * c_.kv_rank));
    LatentArgs args;
    args.q = q.get();
    args.ldq = width;
    args.heads = c_.heads;
    args.step = {static_cast<std::int64_t>(count),
                 position.get(),
                 sequence.get(),
                 d_pages_.get(),
                 kMaxPages};
    args.kv = Pages();
    args.scale = 1.0F / std::sqrt(static_cast<float>(c_.dim()));
    args.y = y.get();
    args.ldy = c_.heads * c_.kv_rank;
    args.max_tokens = std::max<std::int64_t>(bound, 1);
    for (const Sequence& s : c_.sequences) {
      args.max_tokens = std::max<std::int64_t>(args.max_tokens, s.start + s.count);
    }
    const DeviceArray<std::byte> workspace(
        AttentionWorkspaceBytes(args.step.rows, c_.heads, c_.kv_rank, args.max_tokens));
    args.workspace = reinterpret_cast<float*>(workspace.get());
    EXPECT_OK(LatentRows(args, nullptr));
    return y.Download();
  }

  std::vector<float> RunAll() const { return Run(0, positions_.size()); }

  /// The same in double on what the pages hold.
  std::vector<double> Reference() const {
    const auto bytes = memory_->Download();
    std::vector<double> y;
    for (std::size_t row = 0; row < positions_.size(); ++row) {
      std::vector<std::vector<double>> tokens;
      for (int t = 0; t <= positions_[row]; ++t) {
        tokens.push_back(Token(bytes, sequence_of_[row], t));
      }
      for (int head = 0; head < c_.heads; ++head) {
        AppendHead(tokens, row, head, &y);
      }
    }
    return y;
  }

  std::vector<double> Token(const std::vector<std::byte>& bytes, int sequence, int token) const {
    const int page =
        tables_[static_cast<std::size_t>(sequence * kMaxPages + token / kCudaPageTokens)];
    std::vector<double> values;
    for (int i = 0; i < c_.dim(); ++i) {
      values.push_back(Pages().scale *
                       StoredLatent(bytes.data() + static_cast<std::size_t>(page) * page_bytes_,
                                    c_.format,
                                    c_.dim(),
                                    token % kCudaPageTokens,
                                    i));
    }
    return values;
  }

  std::vector<std::byte> Bytes() const { return memory_->Download(); }

  /// What a token's projection becomes, in double.
  std::vector<double> Expected(int sequence, int token) const {
    const auto kv = Projected(sequence, token + 1);
    const float* x = kv.data() + static_cast<std::ptrdiff_t>(token) * c_.dim();
    double squares = 0;
    for (int i = 0; i < c_.kv_rank; ++i) {
      squares += static_cast<double>(x[i]) * x[i];
    }
    std::vector<double> want;
    for (int i = 0; i < c_.kv_rank; ++i) {
      want.push_back(x[i] * static_cast<double>(norm_[static_cast<std::size_t>(i)]) /
                     std::sqrt(squares / c_.kv_rank + 1e-5));
    }
    const auto rotated = Rotated(x + c_.kv_rank, token);
    want.insert(want.end(), rotated.begin(), rotated.end());
    return want;
  }

  std::vector<double> Rotated(const float* x, int position) const {
    std::vector<double> y(static_cast<std::size_t>(c_.rope_dim));
    for (int i = 0; i < c_.rope_dim / 2; ++i) {
      const auto a = static_cast<std::size_t>(c_.interleaved ? 2 * i : i);
      const auto b = static_cast<std::size_t>(c_.interleaved ? 2 * i + 1 : i + c_.rope_dim / 2);
      const auto at = static_cast<std::size_t>(position * c_.rope_dim / 2 + i);
      y[a] = static_cast<double>(x[a]) * cos_[at] - static_cast<double>(x[b]) * sin_[at];
      y[b] = static_cast<double>(x[b]) * cos_[at] + static_cast<double>(x[a]) * sin_[at];
    }
    return y;
  }

  LatentPostArgs PostArgs(const DeviceArray<float>& cosine, const DeviceArray<float>& sine) const {
    LatentPostArgs args;
    args.norm_eps = 1e-5F;
    args.cos = cosine.get();
    args.sin = sine.get();
    args.interleaved = c_.interleaved;
    args.kv_pages = Pages();
    return args;
  }

  /// Tokens [0, count) of a sequence as they are projected, [count, dim].
  std::vector<float> Projected(int sequence, int count) const {
    return RandomFloats(static_cast<std::size_t>(count * c_.dim()),
                        static_cast<unsigned>(sequence) + 100);
  }

  const std::vector<float>& cosines() const { return cos_; }
  const std::vector<float>& sines() const { return sin_; }
  const std::int32_t* pages() const { return d_pages_.get(); }

 private:
  void Store(int sequence, int count) {
    const auto rows = static_cast<std::size_t>(count);
    std::vector<std::int32_t> positions(rows);
    for (int i = 0; i < count; ++i) {
      positions[static_cast<std::size_t>(i)] = i;
    }
    const DeviceArray<float> kv(Projected(sequence, count)), cosine(cos_), sine(sin_), norm(norm_);
    const DeviceArray<std::int32_t> position(positions);
    const DeviceArray<std::int32_t> sequences(std::vector<std::int32_t>(rows, sequence));
    LatentPostArgs args = PostArgs(cosine, sine);
    args.kv = kv.get();
    args.ldkv = c_.dim();
    args.norm = norm.get();
    args.step = {count, position.get(), sequences.get(), d_pages_.get(), kMaxPages};
    EXPECT_OK(LatentPost(args, nullptr));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  void AppendHead(const std::vector<std::vector<double>>& tokens,
                  std::size_t row,
                  int head,
                  std::vector<double>* y) const {
    const float* q =
        q_.data() + (row * static_cast<std::size_t>(c_.heads) + static_cast<std::size_t>(head)) *
                        static_cast<std::size_t>(c_.dim());
    std::vector<double> p;
    for (const std::vector<double>& token : tokens) {
      double dot = 0;
      for (std::size_t i = 0; i < token.size(); ++i) {
        dot += q[i] * token[i];
      }
      p.push_back(dot / std::sqrt(static_cast<double>(c_.dim())));
    }
    const double top = p.empty() ? 0 : *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) {
      x = std::exp(x - top);
      sum += x;
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(c_.kv_rank); ++i) {
      double value = 0;
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        value += p[t] * tokens[t][i];
      }
      y->push_back(tokens.empty() ? 0 : value / sum);
    }
  }

  Case c_;
  std::size_t page_bytes_;
  std::vector<std::int32_t> tables_, positions_, sequence_of_;
  std::vector<float> q_, cos_, sin_, norm_;
  DeviceArray<std::int32_t> d_pages_{8 * kMaxPages};
  std::unique_ptr<DeviceArray<std::byte>> memory_;
};

constexpr double kTolerance = 2e-5;

TEST(LatentCuda, RowsOverFormatsAndShapes) {
  struct Shape {
    int kv_rank, rope_dim;
  };
  for (const KvFormat format : kFormats) {
    for (const Shape shape : {Shape{512, 64}, {256, 32}, {32, 16}, {48, 8}, {33, 6}}) {
      if (kFewCases && shape.kv_rank != 48) {
        continue;
      }
      Case c;
      c.format = format;
      c.kv_rank = shape.kv_rank;
      c.rope_dim = shape.rope_dim;
      c.sequences = {{70, 1}, {0, 1}, {31, 1}};
      const Latent latent(c);
      EXPECT_LT(RelativeError(latent.RunAll(), latent.Reference()), kTolerance)
          << static_cast<int>(format) << " " << shape.kv_rank;
    }
  }
}

TEST(LatentCuda, RowsOverHeadsPagesAndSplits) {
  for (const int heads : {1, 2, 15, 16, 17, 40, 128}) {
    if (kFewCases && heads > 17) {
      continue;
    }
    Case c;
    c.heads = heads;
    c.sequences = {{63, 3}, {kSplitTokens - 1, 2}};
    if (heads <= 2) {
      c.sequences.push_back({2 * kSplitTokens, 1});
    }
    const Latent latent(c);
    EXPECT_LT(RelativeError(latent.RunAll(), latent.Reference()), kTolerance) << heads;
  }
}

TEST(LatentCuda, ARowsBitsDependOnNeitherTheBatchNorTheBoundOfTokens) {
  Case c;
  c.heads = 20;
  c.sequences = {{40, 3}, {300, 1}, {5, 2}};
  const Latent latent(c);
  const auto all = latent.RunAll();
  const auto one = latent.Run(3, 1, 700);
  const auto width = static_cast<std::ptrdiff_t>(one.size());
  EXPECT_EQ(one, std::vector<float>(all.begin() + 3 * width, all.begin() + 4 * width));
}

TEST(LatentCuda, PaddingRowsSeeNothing) {
  Case c;
  const Latent latent(c);
  LatentArgs args;
  const DeviceArray<std::int32_t> position(std::vector<std::int32_t>{-1}), sequence({0});
  const DeviceArray<float> q(static_cast<std::size_t>(c.heads * c.dim())),
      y(static_cast<std::size_t>(c.heads * c.kv_rank)),
      workspace(AttentionWorkspaceBytes(1, c.heads, c.kv_rank, 40) / 4);
  args.q = q.get();
  args.ldq = c.heads * c.dim();
  args.heads = c.heads;
  args.step = {1, position.get(), sequence.get(), latent.pages(), kMaxPages};
  args.kv = latent.Pages();
  args.y = y.get();
  args.ldy = c.heads * c.kv_rank;
  args.max_tokens = 40;
  args.workspace = workspace.get();
  EXPECT_OK(LatentRows(args, nullptr));
  EXPECT_EQ(y.Download(), std::vector<float>(y.size(), 0.0F));
}

TEST(LatentCuda, PostNormsRotatesAndStores) {
  constexpr double kRelative[] = {0x1p-11, 0x1p-8, 3e-6, 0x1p-4, 3e-6};  // by KvFormat
  for (const KvFormat format : kFormats) {
    for (const bool interleaved : {false, true}) {
      Case c;
      c.format = format;
      c.interleaved = interleaved;
      c.kv_rank = 48;
      c.rope_dim = 8;
      c.sequences = {{0, 34}};
      const Latent latent(c);
      const auto bytes = latent.Bytes();
      for (const int token : {0, 1, 31, 32, 33}) {
        const auto want = latent.Expected(0, token);
        const auto got = latent.Token(bytes, 0, token);
        double top = 0;
        for (const double x : want) {
          top = std::max(top, std::fabs(x));
        }
        const double step = format == KvFormat::kInt8     ? 0.501 / 127 * top
                            : format == KvFormat::kF8E4M3 ? 0.02 * 0x1p-10
                                                          : 1e-6;
        for (std::size_t i = 0; i < want.size(); ++i) {
          EXPECT_NEAR(
              got[i], want[i], kRelative[static_cast<int>(format)] * std::fabs(want[i]) + step)
              << static_cast<int>(format) << " " << token << " " << i;
        }
      }
      // 34 tokens, and for int8 their scales; everything else is as it was.
      const auto written = static_cast<std::size_t>(34 * c.dim()) * KvValueBytes(format) +
                           (format == KvFormat::kInt8 ? 34U * 4U : 0U);
      EXPECT_GE(static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), std::byte{0xFF})),
                bytes.size() - written);
    }
  }
}

TEST(LatentCuda, PostRotatesTheHeadsOfRowsThatAreThere) {
  Case c;
  c.heads = 6;
  const Latent latent(c);
  constexpr int kRows = 3, kLead = 10;  // a head's part in the latent space lies before the rotated
  const std::vector<std::int32_t> positions = {5, -1, 37};
  const int head_width = kLead + c.rope_dim;
  const auto q = RandomFloats(static_cast<std::size_t>(kRows * c.heads * head_width), 3);
  const DeviceArray<float> dq(q), cosine(latent.cosines()), sine(latent.sines());
  const DeviceArray<float> to(static_cast<std::size_t>(kRows * c.heads * c.dim()));
  const DeviceArray<float> kv(latent.Projected(9, kRows)),
      norm(RandomFloats(static_cast<std::size_t>(c.kv_rank), 4));
  const DeviceArray<std::int32_t> position(positions),
      sequence(std::vector<std::int32_t>(kRows, 0));
  LatentPostArgs args = latent.PostArgs(cosine, sine);
  args.kv = kv.get();
  args.ldkv = c.dim();
  args.norm = norm.get();
  args.q_rope = dq.get() + kLead;
  args.ldq_rope = c.heads * head_width;
  args.q_rope_head = head_width;
  args.heads = c.heads;
  args.q = to.get();
  args.ldq = c.heads * c.dim();
  args.step = {kRows, position.get(), sequence.get(), latent.pages(), kMaxPages};
  EXPECT_OK(LatentPost(args, nullptr));
  const auto got = to.Download();
  for (int row = 0; row < kRows; ++row) {
    for (int head = 0; head < c.heads; ++head) {
      const float* mine = got.data() + (row * c.heads + head) * c.dim();
      for (int i = 0; i < c.kv_rank; ++i) {
        EXPECT_TRUE(std::isnan(mine[i])) << "the latent part is written by others";
      }
      const int at = positions[static_cast<std::size_t>(row)];
      if (at < 0) {
        EXPECT_TRUE(std::isnan(mine[c.kv_rank]));
        continue;
      }
      const auto want = latent.Rotated(q.data() + (row * c.heads + head) * head_width + kLead, at);
      EXPECT_LT(RelativeError({mine + c.kv_rank, mine + c.dim()}, want), 1e-6);
    }
  }
}

TEST(LatentCuda, RefusesShapesItCannotHold) {
  LatentArgs args;
  args.step.rows = 1;
  args.heads = 1;
  args.max_tokens = 1;
  args.kv.kv_rank = 513;
  EXPECT_EQ(LatentRows(args, nullptr), Status::kInvalidValue);
  args.kv.kv_rank = 512;
  args.kv.rope_dim = 130;
  EXPECT_EQ(LatentRows(args, nullptr), Status::kInvalidValue);
  args.step.rows = 0;
  EXPECT_OK(LatentRows(args, nullptr));
  LatentPostArgs post;
  post.step.rows = 1;
  post.kv_pages.kv_rank = 8;
  post.kv_pages.rope_dim = 3;
  EXPECT_EQ(LatentPost(post, nullptr), Status::kInvalidValue);
}

}  // namespace
}  // namespace inferd::kernels::cuda
