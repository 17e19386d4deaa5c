// SPDX-License-Identifier: Apache-2.0
// Rotation, KV pages and both attention kernels on the device against double arithmetic on the
// stored values.
#include "kernels/attention/attention_cuda.h"

#include "device_fixture.h"
#include "kernels/attention/qkv_cuda.h"
#include "stored_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace inferd::kernels::cuda {
namespace {

constexpr int kMaxPages = 24;

// A step over some sequences: rows [begin, begin + count) of each at positions [start, ...).
struct Sequence {
  int start, count;
};

struct Case {
  KvFormat format = KvFormat::kBf16;
  int q_heads = 4, kv_heads = 2, head_dim = 64;
  std::vector<Sequence> sequences = {{0, 1}};
  int window = 0;
  float softcap = 0;
  bool sinks = false;
};

// Fills the pages by QkvPost itself, all tokens of all sequences, then has rows to ask about.
class Attention {
 public:
  explicit Attention(const Case& c) : c_(c) {
    const auto dim = static_cast<std::size_t>(c.head_dim);
    const int pages = static_cast<int>(c.sequences.size()) * kMaxPages;
    page_bytes_ = KvBytesPerPage(c.format, c.kv_heads, c.head_dim);
    for (int i = 0; i < pages; ++i) {
      tables_.push_back((i * 7 + 3) % pages);  // 7 has no divisor in common with the counts used
    }
    d_pages_.Upload(tables_);
    memory_ =
        std::make_unique<DeviceArray<std::byte>>(page_bytes_ * static_cast<std::size_t>(pages));
    for (std::size_t s = 0; s < c.sequences.size(); ++s) {
      row_begin_.push_back(static_cast<int>(positions_.size()));
      for (int i = 0; i < c.sequences[s].count; ++i) {
        positions_.push_back(c.sequences[s].start + i);
        sequence_of_.push_back(static_cast<int>(s));
      }
      StoreAll(static_cast<int>(s), c.sequences[s].start + c.sequences[s].count);
    }
    row_begin_.push_back(static_cast<int>(positions_.size()));
    q_ = RandomFloats(positions_.size() * static_cast<std::size_t>(c.q_heads) * dim, 77);
    sinks_ = RandomFloats(static_cast<std::size_t>(c.q_heads), 78);
    for (int h = 0; h <= c.kv_heads; ++h) {
      group_begin_.push_back(h * c.q_heads / c.kv_heads);
    }
  }

  KvPages Kv() const {
    KvPages kv;
    kv.base = memory_->get();
    kv.page_bytes = static_cast<std::int64_t>(page_bytes_);
    kv.format = c_.format;
    kv.kv_heads = c_.kv_heads;
    kv.head_dim = c_.head_dim;
    kv.k_scale = 0.02F;
    kv.v_scale = 0.03F;
    return kv;
  }

  /// y of rows [first, first + count), by the row or the tile kernel.
  std::vector<float> Run(bool tiles, std::size_t first, std::size_t count) {
    const std::size_t width = static_cast<std::size_t>(c_.q_heads * c_.head_dim);
    const DeviceArray<float> q(
        std::vector<float>(q_.begin() + static_cast<std::ptrdiff_t>(first * width),
                           q_.begin() + static_cast<std::ptrdiff_t>((first + count) * width)));
    const DeviceArray<std::int32_t> position(Slice(positions_, first, count));
    const DeviceArray<std::int32_t> sequence(Slice(sequence_of_, first, count));
    const DeviceArray<std::int32_t> groups(group_begin_), begin(row_begin_);
    const DeviceArray<float> sinks(sinks_), y(count * width);
    AttentionArgs args;
    args.q = q.get();
    args.ldq = args.ldy = static_cast<std::int64_t>(width);
    args.q_heads = c_.q_heads;
    args.group_begin = groups.get();
    args.max_group = c_.q_heads / c_.kv_heads;
    args.step = {static_cast<std::int64_t>(count),
                 position.get(),
                 sequence.get(),
                 d_pages_.get(),
                 kMaxPages};
    args.kv = Kv();
    args.scale = 1.0F / std::sqrt(static_cast<float>(c_.head_dim));
    args.softcap = c_.softcap;
    args.window = c_.window;
    args.sinks = c_.sinks ? sinks.get() : nullptr;
    args.y = y.get();
    args.max_tokens = 1;
    int max_rows = 0;
    for (const Sequence& s : c_.sequences) {
      args.max_tokens = std::max<std::int64_t>(args.max_tokens, s.start + s.count);
      max_rows = std::max(max_rows, s.count);
    }
    const DeviceArray<std::byte> workspace(
        AttentionWorkspaceBytes(args.step.rows, args.q_heads, c_.head_dim, args.max_tokens));
    args.workspace = reinterpret_cast<float*>(workspace.get());
    if (tiles) {
      EXPECT_OK(AttentionTiles(
          args, begin.get(), static_cast<std::int64_t>(c_.sequences.size()), max_rows, nullptr));
    } else {
      EXPECT_OK(AttentionRows(args, nullptr));
    }
    return y.Download();
  }

  std::vector<float> RunAll(bool tiles) { return Run(tiles, 0, positions_.size()); }

  /// The same in double on what the pages hold.
  std::vector<double> Reference() const {
    const auto bytes = memory_->Download();
    std::vector<double> y;
    for (std::size_t row = 0; row < positions_.size(); ++row) {
      for (int head = 0; head < c_.q_heads; ++head) {
        AppendRow(bytes, row, head, &y);
      }
    }
    return y;
  }

  /// K (0) or V (1) of a token as stored.
  double Stored(const std::vector<std::byte>& bytes,
                int sequence,
                int token,
                int head,
                int which,
                int i) const {
    const int page =
        tables_[static_cast<std::size_t>(sequence * kMaxPages + token / kCudaPageTokens)];
    const double value = StoredKv(bytes.data() + static_cast<std::size_t>(page) * page_bytes_,
                                  c_.format,
                                  c_.kv_heads,
                                  c_.head_dim,
                                  head,
                                  which,
                                  token % kCudaPageTokens,
                                  i);
    const bool scaled = c_.format == KvFormat::kF8E4M3;
    return value * (!scaled ? 1.0F : which == 0 ? Kv().k_scale : Kv().v_scale);
  }

 private:
  static std::vector<std::int32_t> Slice(const std::vector<std::int32_t>& all,
                                         std::size_t first,
                                         std::size_t count) {
    return {all.begin() + static_cast<std::ptrdiff_t>(first),
            all.begin() + static_cast<std::ptrdiff_t>(first + count)};
  }

  // Stores tokens [0, count) of a sequence.
  void StoreAll(int sequence, int count) {
    const auto rows = static_cast<std::size_t>(count);
    const std::size_t width = static_cast<std::size_t>(c_.kv_heads * c_.head_dim);
    std::vector<std::int32_t> positions(rows);
    for (int i = 0; i < count; ++i) {
      positions[static_cast<std::size_t>(i)] = i;
    }
    const auto seed = static_cast<unsigned>(sequence) * 2 + 100;
    const DeviceArray<float> k(RandomFloats(rows * width, seed)),
        v(RandomFloats(rows * width, seed + 1));
    const DeviceArray<std::int32_t> position(positions);
    const DeviceArray<std::int32_t> sequences(std::vector<std::int32_t>(rows, sequence));
    QkvPostArgs args;
    args.k = k.get();
    args.v = v.get();
    args.ldk = args.ldv = static_cast<std::int64_t>(width);
    args.step = {count, position.get(), sequences.get(), d_pages_.get(), kMaxPages};
    args.kv = Kv();
    EXPECT_OK(QkvPost(args, nullptr));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  void AppendRow(const std::vector<std::byte>& bytes,
                 std::size_t row,
                 int head,
                 std::vector<double>* y) const {
    const int end = positions_[row] + 1;
    const int begin = c_.window > 0 ? std::max(0, end - c_.window) : 0;
    const int kv_head = head * c_.kv_heads / c_.q_heads;
    const float* q =
        q_.data() + (row * static_cast<std::size_t>(c_.q_heads) + static_cast<std::size_t>(head)) *
                        static_cast<std::size_t>(c_.head_dim);
    std::vector<double> score;
    double top = c_.sinks ? static_cast<double>(sinks_[static_cast<std::size_t>(head)]) : -HUGE_VAL;
    for (int t = begin; t < end; ++t) {
      double dot = 0;
      for (int i = 0; i < c_.head_dim; ++i) {
        dot += q[i] * Stored(bytes, sequence_of_[row], t, kv_head, 0, i);
      }
      dot /= std::sqrt(static_cast<double>(c_.head_dim));
      dot = c_.softcap > 0 ? c_.softcap * std::tanh(dot / c_.softcap) : dot;
      score.push_back(dot);
      top = std::max(top, dot);
    }
    double sum = c_.sinks ? std::exp(sinks_[static_cast<std::size_t>(head)] - top) : 0;
    for (double& s : score) {
      s = std::exp(s - top);
      sum += s;
    }
    for (int i = 0; i < c_.head_dim; ++i) {
      double value = 0;
      for (int t = begin; t < end; ++t) {
        value += score[static_cast<std::size_t>(t - begin)] *
                 Stored(bytes, sequence_of_[row], t, kv_head, 1, i);
      }
      y->push_back(value / sum);
    }
  }

  Case c_;
  std::size_t page_bytes_ = 0;
  std::vector<std::int32_t> tables_, positions_, sequence_of_, row_begin_, group_begin_;
  std::vector<float> q_, sinks_;
  DeviceArray<std::int32_t> d_pages_{8 * kMaxPages};
  std::unique_ptr<DeviceArray<std::byte>> memory_;
};

constexpr double kRowTolerance = 2e-5;
constexpr double kTileTolerance = 3e-5;
constexpr KvFormat kFormats[] = {
    KvFormat::kBf16, KvFormat::kF16, KvFormat::kF32, KvFormat::kF8E4M3, KvFormat::kInt8};

TEST(AttentionCuda, RowsOverFormatsAndHeadSizes) {
  for (const KvFormat format : kFormats) {
    for (const int dim : {16, 50, 64, 80, 96, 128, 192, 256}) {
      if (kFewCases && dim != 50 && dim != 128) {
        continue;
      }
      Case c;
      c.format = format;
      c.head_dim = dim;
      c.sequences = {{70, 1}, {0, 1}, {31, 1}};
      Attention attention(c);
      EXPECT_LT(RelativeError(attention.RunAll(false), attention.Reference()), kRowTolerance)
          << static_cast<int>(format) << " " << dim;
    }
  }
}

TEST(AttentionCuda, RowsOverGroupsWindowsAndSplits) {
  for (const int group : {1, 3, 4, 9}) {
    for (const int window : {0, 40, 300}) {
      Case c;
      c.head_dim = 64;
      c.q_heads = 2 * group;
      c.window = window;
      c.sinks = group == 3;
      c.softcap = group == 4 ? 2.0F : 0.0F;
      c.sequences = {{kSplitTokens + 60, 2}, {kSplitTokens - 1, 2}, {2 * kSplitTokens, 1}};
      Attention attention(c);
      EXPECT_LT(RelativeError(attention.RunAll(false), attention.Reference()), kRowTolerance)
          << group << " " << window;
    }
  }
}

TEST(AttentionCuda, ARowsBitsDoNotDependOnTheBatch) {
  Case c;
  c.sequences = {{40, 3}, {300, 1}, {5, 2}};
  Attention attention(c);
  const auto all = attention.RunAll(false);
  const auto one = attention.Run(false, 3, 1);
  const std::size_t width = one.size();
  EXPECT_EQ(one,
            std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(3 * width),
                               all.begin() + static_cast<std::ptrdiff_t>(4 * width)));
}

TEST(AttentionCuda, TilesOverFormatsAndHeadSizes) {
  for (const KvFormat format :
       {KvFormat::kBf16, KvFormat::kF16, KvFormat::kF8E4M3, KvFormat::kInt8}) {
    for (const int dim : {64, 80, 96, 112, 128, 192, 256}) {
      if (kFewCases && dim != 64 && dim != 112) {
        continue;
      }
      Case c;
      c.format = format;
      c.head_dim = dim;
      c.q_heads = 2;
      c.sequences = {{0, 33}, {37, 3}};
      Attention attention(c);
      EXPECT_TRUE(HasAttentionTiles(attention.Kv()));
      EXPECT_LT(RelativeError(attention.RunAll(true), attention.Reference()), kTileTolerance)
          << static_cast<int>(format) << " " << dim;
    }
  }
}

TEST(AttentionCuda, TilesOverChunksWindowsSinksAndSoftcap) {
  for (const int window : {0, 20, 90}) {
    for (const bool rare : {false, true}) {
      Case c;
      c.q_heads = 6;
      c.window = window;
      c.sinks = rare;
      c.softcap = rare ? 1.5F : 0.0F;
      c.sequences = {{0, 65}, {100, 70}, {31, 2}};
      Attention attention(c);
      EXPECT_LT(RelativeError(attention.RunAll(true), attention.Reference()), kTileTolerance)
          << window << " " << rare;
    }
  }
}

TEST(AttentionCuda, TilesOfInt8OverWindowsAndGroups) {
  for (const int window : {0, 20}) {
    Case c;
    c.format = KvFormat::kInt8;
    c.q_heads = 6;
    c.window = window;
    c.softcap = 1.5F;
    c.sinks = window > 0;
    c.sequences = {{0, 65}, {100, 9}};
    Attention attention(c);
    EXPECT_LT(RelativeError(attention.RunAll(true), attention.Reference()), kTileTolerance)
        << window;
  }
}

TEST(AttentionCuda, ShapesWithoutATileKernelAreRefused) {
  KvPages kv;
  kv.head_dim = 72;
  EXPECT_FALSE(HasAttentionTiles(kv));
  kv.head_dim = 64;
  kv.format = KvFormat::kF32;
  EXPECT_FALSE(HasAttentionTiles(kv));
  AttentionArgs args;
  args.kv = kv;
  EXPECT_EQ(AttentionTiles(args, nullptr, 1, 1, nullptr), Status::kInvalidValue);
  EXPECT_OK(AttentionTiles(args, nullptr, 0, 0, nullptr));
  EXPECT_OK(AttentionRows(args, nullptr));
}

// Rotation, norm and what lands in the pages, against double.
TEST(AttentionCuda, QkvPostNormsRotatesAndStores) {
  for (const bool interleaved : {false, true}) {
    constexpr int kDim = 48, kRotary = 32, kQHeads = 3, kKvHeads = 2, kRows = 3;
    const std::vector<std::int32_t> positions = {33, 0, -1};
    const std::vector<std::int32_t> pages = {2, 0, 1};
    const auto q = RandomFloats(kRows * kQHeads * kDim, 1),
               k = RandomFloats(kRows * kKvHeads * kDim, 2);
    const auto v = RandomFloats(kRows * kKvHeads * kDim, 3),
               cosine = RandomFloats(40 * kRotary / 2, 4);
    const auto sine = RandomFloats(40 * kRotary / 2, 5), weight = RandomFloats(kDim, 6);
    const DeviceArray<float> dq(q), dk(k), dv(v), dc(cosine), ds(sine), dw(weight);
    const DeviceArray<std::int32_t> dp(positions), dt(pages),
        dseq(std::vector<std::int32_t>(kRows, 0));
    QkvPostArgs args;
    args.q = dq.get();
    args.k = dk.get();
    args.v = dv.get();
    args.ldq = kQHeads * kDim;
    args.ldk = args.ldv = kKvHeads * kDim;
    args.q_heads = kQHeads;
    args.k_norm = dw.get();
    args.norm_eps = 1e-5F;
    args.cos = dc.get();
    args.sin = ds.get();
    args.rotary_dim = kRotary;
    args.interleaved = interleaved;
    args.step = {kRows, dp.get(), dseq.get(), dt.get(), 3};
    args.kv.format = KvFormat::kF32;
    args.kv.kv_heads = kKvHeads;
    args.kv.head_dim = kDim;
    args.kv.page_bytes = static_cast<std::int64_t>(KvBytesPerPage(KvFormat::kF32, kKvHeads, kDim));
    const DeviceArray<float> memory(static_cast<std::size_t>(3 * args.kv.page_bytes / 4));
    args.kv.base = reinterpret_cast<std::byte*>(memory.get());
    EXPECT_OK(QkvPost(args, nullptr));
    const auto got_q = dq.Download();
    const auto got_kv = memory.Download();
    std::size_t written = 0;
    for (const float value : got_kv) {
      written += std::isnan(value) ? 0U : 1U;
    }
    EXPECT_EQ(written, 2U * 2U * kKvHeads * kDim);

    const auto rotate = [&](std::vector<double> x, int position) {
      for (int i = 0; i < kRotary / 2; ++i) {
        const auto a = static_cast<std::size_t>(interleaved ? 2 * i : i);
        const auto b = static_cast<std::size_t>(interleaved ? 2 * i + 1 : i + kRotary / 2);
        const double c = cosine[static_cast<std::size_t>(position * kRotary / 2 + i)];
        const double s = sine[static_cast<std::size_t>(position * kRotary / 2 + i)];
        const double first = x[a] * c - x[b] * s;
        x[b] = x[b] * c + x[a] * s;
        x[a] = first;
      }
      return x;
    };
    for (int row = 0; row < kRows; ++row) {
      const int position = positions[static_cast<std::size_t>(row)];
      for (int h = 0; h < kQHeads; ++h) {
        const auto at = static_cast<std::ptrdiff_t>((row * kQHeads + h) * kDim);
        std::vector<double> want(q.begin() + at, q.begin() + at + kDim);
        want = position >= 0 ? rotate(want, position) : want;
        EXPECT_LT(RelativeError({got_q.begin() + at, got_q.begin() + at + kDim}, want), 3e-6);
      }
      for (int h = 0; position >= 0 && h < kKvHeads; ++h) {
        const auto at = static_cast<std::ptrdiff_t>((row * kKvHeads + h) * kDim);
        std::vector<double> want(k.begin() + at, k.begin() + at + kDim);
        double squares = 0;
        for (const double x : want) {
          squares += x * x;
        }
        for (std::size_t i = 0; i < want.size(); ++i) {
          want[i] *= weight[i] / std::sqrt(squares / kDim + 1e-5);
        }
        want = rotate(want, position);
        const auto stored =
            got_kv.begin() +
            pages[static_cast<std::size_t>(position / 32)] * args.kv.page_bytes / 4 +
            (h * 2 * 32 + position % 32) * kDim;
        EXPECT_LT(RelativeError({stored, stored + kDim}, want), 3e-6);
        const auto stored_v = stored + 32 * kDim;
        EXPECT_TRUE(std::equal(stored_v, stored_v + kDim, v.begin() + at));
      }
    }
  }
}

}  // namespace
}  // namespace inferd::kernels::cuda
