// SPDX-License-Identifier: Apache-2.0
// Operations of the CPU device: products per stored type and batch, attention, and a whole forward
// step of the shapes of Qwen2.5-0.5B from the device's operations (no sampling, no server).
//
//   kernels_bench [--benchmark_filter=...]; INFERD_BENCH_THREADS (default 2), INFERD_CPU_ISA pick
//   threads and kernels, INFERD_BENCH_RESIDENT leaves the weights in the cache
#include "ops/device.h"
#include "tensor/host_buffer.h"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace inferd::ops {
namespace {

int Threads() {
  const char* text = std::getenv("INFERD_BENCH_THREADS");
  return text != nullptr ? std::atoi(text) : 2;
}

Device& TheDevice() {
  static const std::unique_ptr<Device> device = [] {
    std::vector<int> cpus;
    for (int i = 0; i < Threads(); ++i) {
      cpus.push_back(i);
    }
    CpuOptions options;
    options.threads = Threads();
    options.cpus = cpus;
    options.bf16_dot = std::getenv("INFERD_BENCH_BF16_DOT") != nullptr;
    Result<std::unique_ptr<Device>> made = MakeCpuDevice(options);
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.error().message().c_str());
      std::exit(1);
    }
    return std::move(made).value();
  }();
  return *device;
}

// Half-float scales lie at different places; a byte pattern whose every aligned half, bf16 and
// float is a small normal number serves all.
std::unique_ptr<PackedMatrix> Matrix(DType type, std::int64_t n, std::int64_t k) {
  const std::int64_t row = k / BlockElements(type) * BlockBytes(type);
  std::vector<std::byte> rows(static_cast<std::size_t>(n * row));
  std::uint32_t state = 1;
  for (std::byte& byte : rows) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(((state >> 24) & 0x9f) | 0x10);
  }
  Result<std::unique_ptr<PackedMatrix>> packed =
      TheDevice().Pack(type, rows, n, k, static_cast<std::size_t>(row));
  if (!packed.ok()) {
    std::fprintf(stderr, "%s\n", packed.error().message().c_str());
    std::exit(1);
  }
  return std::move(packed).value();
}

std::vector<float> Values(std::int64_t count) {
  std::vector<float> x(static_cast<std::size_t>(count));
  std::uint32_t state = 7;
  for (float& v : x) {
    state = state * 1664525 + 1013904223;
    v = static_cast<float>(state >> 8) * 0x1p-23f - 1;
  }
  return x;
}

// type, n, k, rows. Copies of the matrix together exceed the last-level cache where weights must
// come from memory.
void BM_MatMul(benchmark::State& state) {
  const auto type = static_cast<DType>(state.range(0));
  const std::int64_t n = state.range(1);
  const std::int64_t k = state.range(2);
  const std::int64_t rows = state.range(3);
  std::vector<std::unique_ptr<PackedMatrix>> copies;
  std::size_t bytes = 0;
  const bool resident = std::getenv("INFERD_BENCH_RESIDENT") != nullptr;
  while (copies.empty() || (!resident && rows <= 16 && bytes < (std::size_t{256} << 20))) {
    copies.push_back(Matrix(type, n, k));
    bytes += copies.back()->bytes();
  }
  const std::vector<float> x = Values(rows * k);
  std::vector<float> y(static_cast<std::size_t>(rows * n));
  const std::unique_ptr<Activations> act = TheDevice().NewActivations(rows, k, copies[0]->form());
  TheDevice().Quantize(x.data(), k, rows, act.get());
  std::size_t next = 0;
  for (auto _ : state) {
    const MatMulTask task = {copies[next].get(), nullptr, y.data(), n};
    TheDevice().MatMul(*act, rows, {&task, 1});
    next = (next + 1) % copies.size();
  }
  const double iterations = static_cast<double>(state.iterations());
  state.counters["weight_bytes"] = benchmark::Counter(
      static_cast<double>(copies[0]->bytes()) * iterations, benchmark::Counter::kIsRate);
  state.counters["ops"] = benchmark::Counter(2.0 * static_cast<double>(n * k * rows) * iterations,
                                             benchmark::Counter::kIsRate);
  state.SetLabel(std::string(DTypeName(type)));
}

void MatMulCases(benchmark::internal::Benchmark* bench) {
  for (const DType type : {DType::kQ8_0,
                           DType::kQ5_0,
                           DType::kQ4_0,
                           DType::kQ4_K,
                           DType::kQ5_K,
                           DType::kQ6_K,
                           DType::kQ3_K,
                           DType::kBF16,
                           DType::kF16}) {
    for (const std::int64_t rows : {1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512}) {
      bench->Args({static_cast<std::int64_t>(type), 896, 4864, rows});
    }
  }
}
BENCHMARK(BM_MatMul)
    ->Apply(MatMulCases)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.2);

constexpr std::int64_t kHidden = 896, kFfn = 4864, kKvHeads = 2, kHeads = 14, kDim = 64,
                       kLayers = 24, kVocab = 151936;
constexpr std::int64_t kMaxRows = 512, kSeqs = 16, kSeqPages = 20;

// A step of the shapes of Qwen2.5-0.5B. mix: the types of its Q4_K_M file.
class StepModel {
 public:
  explicit StepModel(const std::string& kind) {
    const bool mix = kind == "mix";
    const DType base = kind == "bf16" ? DType::kBF16 : mix ? DType::kQ5_0 : DType::kQ8_0;
    for (int l = 0; l < kLayers; ++l) {
      const DType down = !mix ? base : l % 2 != 0 ? DType::kQ6_K : DType::kQ4_K;
      layers_.push_back({Matrix(base, kHidden, kHidden),
                         Matrix(base, kKvHeads * kDim, kHidden),
                         Matrix(mix ? DType::kQ8_0 : base, kKvHeads * kDim, kHidden),
                         Matrix(base, kHidden, kHidden),
                         Matrix(base, kFfn, kHidden),
                         Matrix(base, kFfn, kHidden),
                         Matrix(down, kHidden, kFfn)});
    }
    head_ = Matrix(mix ? DType::kQ8_0 : base, kVocab, kHidden);
    const unsigned forms = layers_[0].q->form() | head_->form();
    normed_ = TheDevice().NewActivations(kMaxRows, kHidden, forms);
    attended_ = TheDevice().NewActivations(kMaxRows, kHidden, forms);
    middle_ = TheDevice().NewActivations(kMaxRows, kFfn, forms);
    page_bytes_ = TheDevice().KvPageBytes(KvType::kF16, kKvHeads, kDim);
    kv_ =
        std::move(tensor::HostBuffer::Allocate(page_bytes_ * kLayers * kSeqs * kSeqPages)).value();
    x_ = Values(kMaxRows * kHidden);
    for (std::vector<float>* v : {&q_, &k_, &v_, &attention_}) {
      v->resize(kMaxRows * kHidden);
    }
    gate_.resize(kMaxRows * kFfn);
    up_.resize(kMaxRows * kFfn);
    logits_.resize(16 * kVocab);
    weight_.assign(kHidden, 0.05f);
    rope_ = Values(640 * kDim / 2);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      kv_head_of_.push_back(static_cast<std::int32_t>(h / (kHeads / kKvHeads)));
    }
  }

  // Decode: `rows` sequences of one token at `context`. Prefill: one sequence of `rows` tokens.
  void Step(std::int64_t rows, bool prefill, std::int64_t context) {
    std::vector<std::int32_t> pages(kSeqs * kSeqPages);
    std::vector<std::int32_t> positions;
    std::vector<AttentionSequence> sequences;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      pages[i] = static_cast<std::int32_t>(i);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      positions.push_back(static_cast<std::int32_t>(prefill ? r : context));
      if (!prefill) {
        sequences.push_back(
            {r,
             1,
             context,
             std::span(pages).subspan(static_cast<std::size_t>(r * kSeqPages), kSeqPages)});
      }
    }
    if (prefill) {
      sequences.push_back({0, rows, 0, std::span(pages).first(kSeqPages)});
    }
    Device& device = TheDevice();
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      RunLayer(device, layers_[l], l, rows, positions, sequences);
    }
    device.RmsNorm(x_.data(), weight_.data(), 1e-6f, rows, kHidden, normed_.get());
    const MatMulTask head = {head_.get(), nullptr, logits_.data(), kVocab};
    device.MatMul(*normed_, prefill ? 1 : rows, {&head, 1});
  }

  std::size_t bytes() const {
    std::size_t total = head_->bytes();
    for (const Layer& l : layers_) {
      for (const auto* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
        total += (*m)->bytes();
      }
    }
    return total;
  }

 private:
  struct Layer {
    std::unique_ptr<PackedMatrix> q, k, v, o, gate, up, down;
  };

  void RunLayer(Device& device,
                const Layer& w,
                std::size_t layer,
                std::int64_t rows,
                std::span<const std::int32_t> positions,
                std::span<const AttentionSequence> sequences) {
    device.RmsNorm(x_.data(), weight_.data(), 1e-6f, rows, kHidden, normed_.get());
    const MatMulTask qkv[3] = {{w.q.get(), nullptr, q_.data(), kHidden},
                               {w.k.get(), nullptr, k_.data(), kKvHeads * kDim},
                               {w.v.get(), nullptr, v_.data(), kKvHeads * kDim}};
    device.MatMul(*normed_, rows, qkv);
    const KvLayer kv = {
        kv_.data() + layer * page_bytes_, page_bytes_ * kLayers, KvType::kF16, kKvHeads, kDim};
    QkvTask post;
    post.q = q_.data();
    post.k = k_.data();
    post.v = v_.data();
    post.ldq = kHidden;
    post.ldk = post.ldv = kKvHeads * kDim;
    post.q_heads = kHeads;
    post.rope = {rope_.data(), rope_.data(), kDim, false};
    post.step = {positions, sequences};
    post.kv = kv;
    device.QkvPost(post);
    AttentionTask attend;
    attend.q = q_.data();
    attend.ldq = attend.ldy = kHidden;
    attend.q_heads = kHeads;
    attend.kv_head_of = kv_head_of_;
    attend.sequences = sequences;
    attend.kv = kv;
    attend.scale = 0.125f;
    attend.y = attention_.data();
    device.Attention(attend);
    device.Quantize(attention_.data(), kHidden, rows, attended_.get());
    const MatMulTask o = {w.o.get(), nullptr, q_.data(), kHidden};
    device.MatMul(*attended_, rows, {&o, 1});
    device.Add(x_.data(), q_.data(), rows, kHidden);
    device.RmsNorm(x_.data(), weight_.data(), 1e-6f, rows, kHidden, normed_.get());
    const std::array gate_up = {MatMulTask{w.gate.get(), nullptr, gate_.data(), kFfn},
                                MatMulTask{w.up.get(), nullptr, up_.data(), kFfn}};
    device.GatedMatMul(*normed_, rows, GateKind::kSilu, gate_up, middle_.get());
    const MatMulTask down = {w.down.get(), nullptr, q_.data(), kHidden};
    device.MatMul(*middle_, rows, {&down, 1});
    device.Add(x_.data(), q_.data(), rows, kHidden);
  }

  std::vector<Layer> layers_;
  std::unique_ptr<PackedMatrix> head_;
  std::unique_ptr<Activations> normed_, attended_, middle_;
  std::size_t page_bytes_ = 0;
  tensor::HostBuffer kv_;
  std::vector<float> x_, q_, k_, v_, attention_, gate_, up_, logits_, weight_, rope_;
  std::vector<std::int32_t> kv_head_of_;
};

StepModel& TheModel(const std::string& kind) {
  static std::string current;
  static std::unique_ptr<StepModel> model;
  if (current != kind) {
    model.reset();
    model = std::make_unique<StepModel>(kind);
    current = kind;
  }
  return *model;
}

void BM_Step(benchmark::State& state, const char* kind) {
  StepModel& model = TheModel(kind);
  const std::int64_t rows = state.range(0);
  const bool prefill = state.range(1) != 0;
  for (auto _ : state) {
    model.Step(rows, prefill, 256);
  }
  const double steps = static_cast<double>(state.iterations());
  state.counters["tokens"] =
      benchmark::Counter(steps * static_cast<double>(rows), benchmark::Counter::kIsRate);
  state.counters["weight_bytes"] =
      benchmark::Counter(steps * static_cast<double>(model.bytes()), benchmark::Counter::kIsRate);
}

void StepCases(benchmark::internal::Benchmark* bench) {
  for (const std::int64_t rows : {1, 2, 4, 8, 16}) {
    bench->Args({rows, 0});
  }
  for (const std::int64_t rows : {48, 64, 96, 128, 256}) {
    bench->Args({rows, 1});  // a chunk beside decodes, as --target-itl leaves it
  }
  bench->Args({512, 1});
  bench->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(0.5);
}
BENCHMARK_CAPTURE(BM_Step, mix, "mix")->Apply(StepCases);
BENCHMARK_CAPTURE(BM_Step, q8, "q8")->Apply(StepCases);
BENCHMARK_CAPTURE(BM_Step, bf16, "bf16")->Apply(StepCases);

}  // namespace
}  // namespace inferd::ops

BENCHMARK_MAIN();
