// SPDX-License-Identifier: Apache-2.0
// The CPU device against plain arithmetic, and its bits against themselves over batches, chunks and
// thread counts.
#include "kernels/kernels.h"
#include "ops/device.h"
#include "tensor/host_buffer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace inferd::ops {
namespace {

std::unique_ptr<Device> MakeDevice(int threads, std::string_view isa = "auto") {
  CpuOptions options;
  options.threads = threads;
  options.isa = isa;
  Result<std::unique_ptr<Device>> device = MakeCpuDevice(options);
  EXPECT_TRUE(device.ok());
  return std::move(device).value();
}

std::vector<float> Random(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& v : x) {
    v = normal(generator);
  }
  return x;
}

std::span<const std::byte> Bytes(const std::vector<float>& x) {
  return std::as_bytes(std::span(x));
}

std::unique_ptr<PackedMatrix> PackF32(Device& device,
                                      const std::vector<float>& w,
                                      std::int64_t n,
                                      std::int64_t k) {
  Result<std::unique_ptr<PackedMatrix>> packed =
      device.Pack(DType::kF32, Bytes(w), n, k, static_cast<std::size_t>(k) * 4);
  EXPECT_TRUE(packed.ok());
  return std::move(packed).value();
}

double Dot(const float* a, const float* b, std::int64_t k) {
  double sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    sum += static_cast<double>(a[i]) * b[i];
  }
  return sum;
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

TEST(CpuDevice, DescribesItself) {
  EXPECT_EQ(MakeDevice(1, "scalar")->Describe(), "cpu scalar, 1 thread");
  EXPECT_NE(MakeDevice(2)->Describe().find(", 2 threads"), std::string::npos);
}

TEST(CpuDevice, Bf16InputsWhereTheCpuHasThem) {
  CpuOptions options;
  options.bf16_dot = true;
  const auto device = MakeCpuDevice(options);
  if (!kernels::CpuHasAvx512Bf16()) {
    EXPECT_NE(device.error().message().find("use --dtype float32"), std::string::npos);
    return;
  }
  EXPECT_EQ((*device)->Describe(), "cpu avx512-bf16, 1 thread");
  const std::vector<std::uint16_t> weights(64 * 2, 0x3f80);
  const auto packed = (*device)->Pack(DType::kBF16, std::as_bytes(std::span(weights)), 2, 64, 128);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ((*packed)->form(), kActBf16);
}

TEST(CpuDevice, RefusesUnknownInstructionSets) {
  CpuOptions options;
  options.isa = "mmx";
  EXPECT_EQ(MakeCpuDevice(options).error().message(),
            "unknown instruction set 'mmx': use auto, scalar, avx2 or avx512");
}

TEST(CpuDevice, PackRefusesWhatItCannotMultiply) {
  const std::unique_ptr<Device> device = MakeDevice(1);
  std::vector<float> w(64, 1.0f);
  const auto code = [&](DType type, std::int64_t n, std::int64_t k, std::size_t row_bytes) {
    return device->Pack(type, Bytes(w), n, k, row_bytes).error().code();
  };
  EXPECT_EQ(code(DType::kI8, 1, 32, 32), Code::kInvalidArgument);
  EXPECT_EQ(code(DType::kQ4_0, 1, 40, 36), Code::kInvalidArgument);  // no multiple of 32
  EXPECT_EQ(code(DType::kF32, 0, 8, 32), Code::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, 9, 8, 32), Code::kInvalidArgument);  // one row too many
  EXPECT_EQ(code(DType::kF32, 8, 8, 28), Code::kInvalidArgument);  // rows overlap
  w[43] = std::nanf("");
  EXPECT_EQ(device->Pack(DType::kF32, Bytes(w), 8, 8, 32).error().message(),
            "row 5 holds Inf or NaN: the weights are damaged or were converted wrongly");
}

TEST(CpuDevice, MatMulOfSeveralWeightsInOneRegion) {
  for (const int threads : {1, 2, 5}) {
    const std::unique_ptr<Device> device = MakeDevice(threads);
    constexpr std::int64_t kK = 37, kRows = 3;
    const std::int64_t n[3] = {100, 1, 33};
    const std::vector<float> x = Random(kRows * kK, 1);
    const std::unique_ptr<Activations> act = device->NewActivations(kRows, kK, kActFloat);
    device->Quantize(x.data(), kK, kRows, act.get());
    std::vector<std::vector<float>> w;
    std::vector<std::vector<float>> y;
    std::vector<std::unique_ptr<PackedMatrix>> packed;
    const std::vector<float> bias = Random(100, 9);
    for (int i = 0; i < 3; ++i) {
      w.push_back(Random(n[i] * kK, 2 + static_cast<unsigned>(i)));
      y.emplace_back(static_cast<std::size_t>(n[i] * kRows), -5.0f);
      packed.push_back(PackF32(*device, w.back(), n[i], kK));
    }
    const MatMulTask tasks[3] = {{packed[0].get(), bias.data(), y[0].data(), n[0]},
                                 {packed[1].get(), nullptr, y[1].data(), n[1]},
                                 {packed[2].get(), nullptr, y[2].data(), n[2]}};
    device->MatMul(*act, kRows, tasks);
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::int64_t at = 0; at < n[i] * kRows; ++at) {
        const std::int64_t column = at % n[i];
        const double expected = Dot(x.data() + at / n[i] * kK, w[i].data() + column * kK, kK) +
                                (i == 0 ? bias[static_cast<std::size_t>(column)] : 0);
        EXPECT_NEAR(y[i][static_cast<std::size_t>(at)], expected, 1e-4);
      }
    }
  }
}

TEST(CpuDevice, EmbedGivesZeroRowsOutsideItsShare) {
  const std::unique_ptr<Device> device = MakeDevice(2);
  const std::vector<float> table = Random(4 * 8, 3);
  const std::int32_t ids[] = {10, 13, 9, 14};
  std::vector<float> x(4 * 8, 7.0f);
  device->Embed(DType::kF32, Bytes(table).data(), 4, 10, ids, 8, 2.0f, x.data());
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(x[i], 2 * table[i]);
    EXPECT_EQ(x[8 + i], 2 * table[24 + i]);
    EXPECT_EQ(x[16 + i], 0);
    EXPECT_EQ(x[24 + i], 0);
  }
}

// A layer's attention part: QkvPost, then Attention, over sequences that share the pages of one
// pool.
struct Attending {
  std::int64_t q_heads = 6;
  std::int64_t kv_heads = 2;
  std::int64_t dim = 32;
  KvType type = KvType::kF16;
  std::int64_t window = 0;

  std::int64_t width() const { return q_heads * dim; }
};

class KvPool {
 public:
  KvPool(Device& device, const Attending& shape, std::size_t pages)
      : page_bytes_(device.KvPageBytes(shape.type, shape.kv_heads, shape.dim)),
        memory_(std::move(tensor::HostBuffer::Allocate(pages * page_bytes_)).value()) {}

  KvLayer Layer(const Attending& shape) {
    return {memory_.data(), page_bytes_, shape.type, shape.kv_heads, shape.dim};
  }

 private:
  std::size_t page_bytes_;
  tensor::HostBuffer memory_;
};

// Rows of q, k and v are taken from the sequences' own random streams at their absolute positions.
std::vector<float> Attend(Device& device,
                          KvPool& pool,
                          const Attending& shape,
                          std::span<const AttentionSequence> sequences,
                          std::span<const unsigned> seeds) {
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<std::int32_t> positions;
  const std::int64_t kv_width = shape.kv_heads * shape.dim;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (std::int64_t i = 0; i < sequences[s].num_rows; ++i) {
      const std::int64_t position = sequences[s].start + i;
      positions.push_back(static_cast<std::int32_t>(position));
      const auto seed = seeds[s] * 100000 + static_cast<unsigned>(position) * 3;
      for (const float value : Random(shape.width(), seed)) {
        q.push_back(value);
      }
      for (const float value : Random(kv_width, seed + 1)) {
        k.push_back(value);
      }
      for (const float value : Random(kv_width, seed + 2)) {
        v.push_back(value);
      }
    }
  }
  std::vector<float> cos(512 * static_cast<std::size_t>(shape.dim) / 2);
  std::vector<float> sin(cos.size());
  for (std::size_t i = 0; i < cos.size(); ++i) {
    cos[i] = std::cos(static_cast<float>(i) * 0.01f);
    sin[i] = std::sin(static_cast<float>(i) * 0.01f);
  }
  const std::vector<float> norm(static_cast<std::size_t>(shape.dim), 1.5f);
  QkvTask post;
  post.q = q.data();
  post.k = k.data();
  post.v = v.data();
  post.ldq = shape.width();
  post.ldk = post.ldv = kv_width;
  post.q_heads = shape.q_heads;
  post.q_norm = post.k_norm = norm.data();
  post.norm_eps = 1e-6f;
  post.rope = {cos.data(), sin.data(), shape.dim, false};
  post.step = {positions, sequences};
  post.kv = pool.Layer(shape);
  device.QkvPost(post);
  const std::vector<std::int32_t> kv_head_of = {0, 0, 0, 1, 1, 1};
  std::vector<float> y(q.size(), -3.0f);
  AttentionTask task;
  task.q = q.data();
  task.ldq = task.ldy = shape.width();
  task.q_heads = shape.q_heads;
  task.kv_head_of = kv_head_of;
  task.sequences = sequences;
  task.kv = post.kv;
  task.scale = 0.2f;
  task.window = shape.window;
  task.y = y.data();
  device.Attention(task);
  return y;
}

class AttentionBits : public testing::TestWithParam<std::tuple<KvType, std::int64_t>> {};

// The last row of a prompt in one chunk, in uneven chunks among another sequence's decode, and
// after a prefix hit.
TEST_P(AttentionBits, DoNotDependOnChunksNeighboursOrThreads) {
  Attending shape;
  shape.type = std::get<0>(GetParam());
  shape.window = std::get<1>(GetParam());
  constexpr std::int64_t kTokens = 100;
  const std::vector<std::int32_t> pages = {3, 1, 6, 2};
  const std::vector<std::int32_t> other_pages = {0, 4};
  std::vector<std::vector<float>> last_rows;
  for (const int threads : {1, 3}) {
    const std::unique_ptr<Device> device = MakeDevice(threads);
    KvPool whole_pool(*device, shape, 7);
    const AttentionSequence whole = {0, kTokens, 0, pages};
    const unsigned seeds[2] = {1, 2};
    const std::vector<float> y = Attend(*device, whole_pool, shape, {&whole, 1}, seeds);
    last_rows.emplace_back(y.end() - shape.width(), y.end());
    KvPool pool(*device, shape, 7);
    std::int64_t done = 0;
    std::int64_t other_done = 0;
    for (const std::int64_t chunk : {1, 40, 30, 28, 1}) {
      const AttentionSequence parts[2] = {{0, chunk, done, pages},
                                          {chunk, 3, other_done, other_pages}};
      const std::vector<float> part = Attend(*device, pool, shape, parts, seeds);
      done += chunk;
      other_done += 3;
      if (done == kTokens) {
        last_rows.emplace_back(part.begin() + (chunk - 1) * shape.width(),
                               part.begin() + chunk * shape.width());
      }
    }
  }
  for (const std::vector<float>& row : last_rows) {
    EXPECT_EQ(std::memcmp(row.data(), last_rows[0].data(), row.size() * 4), 0);
    EXPECT_TRUE(std::isfinite(row[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    AttentionBits,
    testing::Combine(
        testing::Values(KvType::kF16, KvType::kBf16, KvType::kF32, KvType::kFp8, KvType::kInt8),
        testing::Values(0, 50)));

TEST(CpuDevice, OneTokenAttendsToItself) {
  const std::unique_ptr<Device> device = MakeDevice(1);
  Attending shape;
  shape.type = KvType::kF32;
  KvPool pool(*device, shape, 1);
  const std::vector<std::int32_t> pages = {0};
  const AttentionSequence sequence = {0, 1, 0, pages};
  const unsigned seed = 5;
  const std::vector<float> y = Attend(*device, pool, shape, {&sequence, 1}, {&seed, 1});
  const std::vector<float> v = Random(shape.kv_heads * shape.dim, 500002);
  for (std::int64_t h = 0; h < shape.q_heads; ++h) {
    for (std::int64_t i = 0; i < shape.dim; ++i) {
      EXPECT_NEAR(y[static_cast<std::size_t>(h * shape.dim + i)],
                  v[static_cast<std::size_t>(h / 3 * shape.dim + i)],
                  1e-6);
    }
  }
}

// Position 1 with an angle of 90 degrees: (a, b) becomes (-b, a), in both pair orders.
TEST(CpuDevice, RotatesBothPairOrders) {
  const std::unique_ptr<Device> device = MakeDevice(1);
  const float cos[] = {1, 1, 0, 0};
  const float sin[] = {0, 0, 1, 1};
  for (const bool interleaved : {false, true}) {
    Attending shape;
    shape.q_heads = shape.kv_heads = 1;
    shape.dim = 16;
    KvPool pool(*device, shape, 1);
    std::vector<float> q(16);
    std::iota(q.begin(), q.end(), 0.0f);
    std::vector<float> k = q;
    const std::vector<float> v(16);
    const std::int32_t position = 1;
    const std::vector<std::int32_t> pages = {0};
    const AttentionSequence sequence = {0, 1, 0, pages};
    QkvTask post;
    post.q = q.data();
    post.k = k.data();
    post.v = v.data();
    post.ldq = post.ldk = post.ldv = 16;
    post.q_heads = 1;
    post.rope = {cos, sin, 4, interleaved};
    post.step = {{&position, 1}, {&sequence, 1}};
    post.kv = pool.Layer(shape);
    device->QkvPost(post);
    const std::vector<float> expected =
        interleaved ? std::vector<float>{-1, 0, -3, 2, 4} : std::vector<float>{-2, -3, 0, 1, 4};
    EXPECT_EQ(std::vector<float>(q.begin(), q.begin() + 5), expected);
    EXPECT_EQ(q, k);
  }
}

// Experts against plain arithmetic; the bits of a row alone against the row in a batch, over thread
// counts.
class Experts : public testing::Test {
 protected:
  static constexpr std::int64_t kExperts = 5, kHidden = 48, kFfn = 70, kTopK = 3, kRows = 40;

  Experts() : x_(Random(kRows * kHidden, 11)) {
    std::mt19937 generator(4);
    for (std::int64_t i = 0; i < kRows * kTopK; ++i) {
      expert_.push_back(static_cast<std::int32_t>(generator() % (kExperts + 1)) - 1);
      weight_.push_back(static_cast<float>(generator() % 100) / 100);
    }
    std::fill_n(expert_.begin() + kTopK, kTopK, -1);  // a row without local experts
    for (unsigned e = 0; e < kExperts; ++e) {
      gate_.push_back(Random(kFfn * kHidden, 100 + e));
      up_.push_back(Random(kFfn * kHidden, 200 + e));
      down_.push_back(Random(kHidden * kFfn, 300 + e));
    }
  }

  std::vector<float> Run(Device& device, std::int64_t first, std::int64_t rows) {
    std::vector<std::unique_ptr<PackedMatrix>> owned;
    std::vector<const PackedMatrix*> gate;
    std::vector<const PackedMatrix*> up;
    std::vector<const PackedMatrix*> down;
    for (std::size_t e = 0; e < kExperts; ++e) {
      const auto add = [&](std::vector<const PackedMatrix*>& list,
                           const std::vector<float>& w,
                           std::int64_t n,
                           std::int64_t k) {
        owned.push_back(PackF32(device, w, n, k));
        list.push_back(owned.back().get());
      };
      add(gate, gate_[e], kFfn, kHidden);
      add(up, up_[e], kFfn, kHidden);
      add(down, down_[e], kHidden, kFfn);
    }
    std::vector<float> y(static_cast<std::size_t>(rows * kHidden), -1.0f);
    MoeTask task;
    task.gate = gate;
    task.up = up;
    task.down = down;
    task.x = x_.data() + first * kHidden;
    task.rows = rows;
    task.top_k = kTopK;
    task.expert = expert_.data() + first * kTopK;
    task.weight = weight_.data() + first * kTopK;
    task.y = y.data();
    device.Moe(task);
    return y;
  }

  std::vector<float> x_;
  std::vector<std::int32_t> expert_;
  std::vector<float> weight_;
  std::vector<std::vector<float>> gate_, up_, down_;
};

TEST_F(Experts, MatchPlainArithmetic) {
  const std::unique_ptr<Device> device = MakeDevice(2);
  const std::vector<float> y = Run(*device, 0, kRows);
  for (std::int64_t row = 0; row < kRows; ++row) {
    std::vector<double> expected(kHidden);
    for (std::int64_t s = 0; s < kTopK; ++s) {
      const std::int32_t e = expert_[static_cast<std::size_t>(row * kTopK + s)];
      if (e < 0) {
        continue;
      }
      const float* x = x_.data() + row * kHidden;
      std::vector<float> middle(kFfn);
      for (std::int64_t f = 0; f < kFfn; ++f) {
        middle[static_cast<std::size_t>(f)] = static_cast<float>(
            Silu(Dot(x, gate_[static_cast<std::size_t>(e)].data() + f * kHidden, kHidden)) *
            Dot(x, up_[static_cast<std::size_t>(e)].data() + f * kHidden, kHidden));
      }
      for (std::int64_t h = 0; h < kHidden; ++h) {
        expected[static_cast<std::size_t>(h)] +=
            weight_[static_cast<std::size_t>(row * kTopK + s)] *
            Dot(middle.data(), down_[static_cast<std::size_t>(e)].data() + h * kFfn, kFfn);
      }
    }
    for (std::int64_t h = 0; h < kHidden; ++h) {
      const double want = expected[static_cast<std::size_t>(h)];
      EXPECT_NEAR(
          y[static_cast<std::size_t>(row * kHidden + h)], want, 1e-3 + 1e-5 * std::fabs(want));
    }
  }
}

TEST_F(Experts, RowsDoNotDependOnTheBatch) {
  const std::vector<float> whole = Run(*MakeDevice(1), 0, kRows);
  const std::unique_ptr<Device> device = MakeDevice(3);
  for (const std::int64_t rows : {1, 2, 7, 40}) {
    for (std::int64_t first = 0; first + rows <= kRows; first += rows) {
      const std::vector<float> y = Run(*device, first, rows);
      EXPECT_EQ(std::memcmp(y.data(), whole.data() + first * kHidden, y.size() * 4), 0);
    }
  }
}

// Wide rows, so that spans and threads cut them; all three activation forms at once.
TEST(CpuDevice, GateMulAndNormFeedAllForms) {
  const std::unique_ptr<Device> device = MakeDevice(3);
  constexpr std::int64_t kK = 2080, kRows = 9, kN = 40;
  const std::vector<float> gate = Random(kRows * kK, 21);
  const std::vector<float> up = Random(kRows * kK, 22);
  const std::vector<float> w = Random(kN * kK, 23);
  const std::unique_ptr<Activations> act = device->NewActivations(kRows, kK, kActFloat | kActInt8);
  device->GateMul(GateKind::kSilu, gate.data(), up.data(), kK, kRows, kK, act.get());
  const std::unique_ptr<PackedMatrix> packed = PackF32(*device, w, kN, kK);
  std::vector<float> y(kRows * kN);
  const MatMulTask task = {packed.get(), nullptr, y.data(), kN};
  device->MatMul(*act, kRows, {&task, 1});
  std::vector<float> middle(gate.size());
  for (std::size_t i = 0; i < middle.size(); ++i) {
    middle[i] = static_cast<float>(Silu(gate[i]) * up[i]);
  }
  for (std::int64_t i = 0; i < kRows * kN; ++i) {
    EXPECT_NEAR(y[static_cast<std::size_t>(i)],
                Dot(middle.data() + i / kN * kK, w.data() + i % kN * kK, kK),
                1e-3);
  }
  std::vector<float> sum = gate;
  device->Add(sum.data(), up.data(), kRows, kK);
  EXPECT_EQ(sum.back(), gate.back() + up.back());
  std::vector<float> normed(gate.size());
  device->RmsNormFloat(gate.data(), w.data(), 1e-6f, kRows, kK, normed.data());
  device->RmsNorm(gate.data(), w.data(), 1e-6f, kRows, kK, act.get());
  device->MatMul(*act, kRows, {&task, 1});
  for (std::int64_t i = 0; i < kRows * kN; ++i) {
    EXPECT_NEAR(y[static_cast<std::size_t>(i)],
                Dot(normed.data() + i / kN * kK, w.data() + i % kN * kK, kK),
                1e-2);
  }
}

TEST(CpuDevice, EveryHeadHasAMatrixOfItsOwn) {
  for (const int threads : {1, 3}) {
    const std::unique_ptr<Device> device = MakeDevice(threads);
    constexpr std::int64_t kHeads = 3, kN = 64, kK = 10, kLead = 6;  // inputs end each head
    const std::vector<float> w = Random(kHeads * kN * kK, 1);
    const std::unique_ptr<PackedMatrix> packed = PackF32(*device, w, kHeads * kN, kK);
    for (const std::int64_t rows : {1, 5, 2}) {
      const std::vector<float> x = Random(rows * kHeads * (kLead + kK), 2);
      std::vector<float> y(static_cast<std::size_t>(rows * kHeads * (kN + 1)), -7.0F);
      HeadTask task;
      task.weight = packed.get();
      task.heads = kHeads;
      task.rows = rows;
      task.x = x.data() + kLead;
      task.x_head = kLead + kK;
      task.ldx = kHeads * task.x_head;
      task.y = y.data();
      task.y_head = kN + 1;
      task.ldy = kHeads * task.y_head;
      device->HeadMatMul(task);
      for (std::int64_t i = 0; i < rows * kHeads; ++i) {
        const float* in = x.data() + i * (kLead + kK) + kLead;
        for (std::int64_t j = 0; j < kN; ++j) {
          const float* row = w.data() + (i % kHeads * kN + j) * kK;
          EXPECT_NEAR(y[static_cast<std::size_t>(i * (kN + 1) + j)], Dot(row, in, kK), 1e-5);
        }
        EXPECT_EQ(y[static_cast<std::size_t>(i * (kN + 1) + kN)], -7.0F) << "between heads";
      }
    }
  }
}

// A row of a latent cache sees its own token and those before, whatever comes with it.
TEST(CpuDevice, LatentRowsHaveTheirBitsInAnyBatch) {
  constexpr std::int64_t kHeads = 5, kRank = 24, kRope = 8, kDim = kRank + kRope, kTokens = 50;
  const std::vector<float> kv = Random(kTokens * kDim, 1), norm = Random(kRank, 2);
  const std::vector<float> q = Random(kTokens * kHeads * kDim, 3);
  const std::vector<float> cosine = Random(kTokens * kRope / 2, 4);
  const std::vector<float> sine = Random(kTokens * kRope / 2, 5);
  const std::vector<std::int32_t> pages = {1, 0};
  const auto run = [&](int threads, std::int64_t chunk, std::string_view isa) {
    const std::unique_ptr<Device> device = MakeDevice(threads, isa);
    KvLayer layer;
    layer.type = KvType::kF32;
    layer.page_bytes = device->LatentPageBytes(layer.type, kDim);
    layer.kv_heads = 1;
    layer.head_dim = kDim;
    layer.kv_rank = kRank;
    std::vector<std::byte> memory(2 * layer.page_bytes);
    layer.base = memory.data();
    std::vector<float> y(kTokens * kHeads * kRank);
    for (std::int64_t first = 0; first < kTokens; first += chunk) {
      const std::int64_t rows = std::min(chunk, kTokens - first);
      std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
      std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
      const AttentionSequence sequence{0, rows, first, pages};
      std::vector<float> in(q.begin() + first * kHeads * kDim,
                            q.begin() + (first + rows) * kHeads * kDim);
      LatentTask post;
      post.kv = kv.data() + first * kDim;
      post.ldkv = kDim;
      post.norm = norm.data();
      post.norm_eps = 1e-6F;
      post.q_rope = in.data() + kRank;
      post.q_rope_head = kDim;
      post.ldq_rope = kHeads * kDim;
      post.q_heads = kHeads;
      post.q = in.data();
      post.ldq = kHeads * kDim;
      post.rope = {cosine.data(), sine.data(), kRope, true};
      post.step = {positions, {&sequence, 1}};
      post.layer = layer;
      device->LatentPost(post);
      const std::vector<std::int32_t> kv_head_of(kHeads, 0);
      AttentionTask task;
      task.q = in.data();
      task.ldq = kHeads * kDim;
      task.q_heads = kHeads;
      task.kv_head_of = kv_head_of;
      task.sequences = {&sequence, 1};
      task.kv = layer;
      task.scale = 0.3F;
      task.y = y.data() + first * kHeads * kRank;
      task.ldy = kHeads * kRank;
      device->Attention(task);
    }
    return y;
  };
  const std::vector<float> expected = run(1, kTokens, "auto");
  EXPECT_EQ(run(3, 1, "auto"), expected);
  EXPECT_EQ(run(2, 17, "auto"), expected);
  const std::vector<float> plain = run(1, 9, "scalar");
  for (std::size_t i = 0; i < plain.size(); ++i) {
    ASSERT_NEAR(expected[i], plain[i], 1e-5) << i;
  }
  // The first token sees itself: its normed latent.
  double squares = 0;
  for (std::int64_t i = 0; i < kRank; ++i) {
    squares +=
        static_cast<double>(kv[static_cast<std::size_t>(i)]) * kv[static_cast<std::size_t>(i)];
  }
  for (std::size_t i = 0; i < kRank; ++i) {
    EXPECT_NEAR(plain[i], kv[i] * norm[i] / std::sqrt(squares / kRank + 1e-6), 1e-5);
  }
}

TEST(CpuDevice, ParallelForVisitsEveryIndexOnce) {
  const std::unique_ptr<Device> device = MakeDevice(4);
  std::vector<int> visits(1000);
  device->ParallelFor(1000, &visits, [](void* context, std::int64_t index) {
    ++(*static_cast<std::vector<int>*>(context))[static_cast<std::size_t>(index)];
  });
  EXPECT_EQ(visits, std::vector<int>(1000, 1));
}

}  // namespace
}  // namespace inferd::ops
