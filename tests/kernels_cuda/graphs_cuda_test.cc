// SPDX-License-Identifier: Apache-2.0
// CUDA graphs of ops' CUDA device: steps that are replayed give the bits of steps that are launched
// kernel by kernel.
#include "device_fixture.h"
#include "ops/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <vector>

namespace inferd::ops {
namespace {

constexpr std::int64_t kDim = 64;
constexpr std::int64_t kQHeads = 4;
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kIds = 50;
constexpr std::int64_t kRows = 24;
constexpr std::int64_t kPages = 40;  // of a sequence
constexpr std::int64_t kSequences = 4;
constexpr std::int64_t kWidth = kQHeads * kDim;
const std::vector<std::int32_t> kKvHeadOf = {0, 0, 1, 1};

std::vector<float> Random(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

struct Row {
  std::int32_t sequence = 0;
  std::int32_t position = 0;
  std::int32_t id = 0;
};

// Embeds q, k and v from three tables, stores K and V and attends: what a graph of a real step
// reads of the step is all here.
class SmallModel {
 public:
  explicit SmallModel(std::vector<std::int32_t> graph_sizes, bool batch_invariant = false) {
    device_ = Take(MakeDevice(kernels::cuda::kTestDevice, 1, {}));
    StepLimits limits;
    limits.rows = kRows;
    limits.sequences = kSequences;
    limits.pages_per_sequence = kPages;
    limits.kv_head_of = kKvHeadOf;
    limits.head_dim = kDim;
    limits.row_lists = 3;
    limits.graph_sizes = graph_sizes;
    limits.batch_invariant = batch_invariant;
    EXPECT_TRUE(device_->Reserve(limits).ok());
    unsigned seed = 1;
    for (const std::int64_t width : {kWidth, kKvHeads * kDim, kKvHeads * kDim}) {
      const std::vector<float> rows = Random(kIds * width, seed++);
      tables_.push_back(
          Take(device_->MakeTable(DType::kF32, std::as_bytes(std::span(rows)), kIds, width)));
    }
    constexpr std::int64_t kAngles = kPages * 32 * kDim / 2;
    angles_ = Upload(Random(2 * kAngles, 4));
    rope_ = {angles_.floats(), angles_.floats() + kAngles, kDim, false};
    page_bytes_ = device_->KvPageBytes(KvType::kF16, kKvHeads, kDim);
    pages_ = Allocate(page_bytes_ * kSequences * kPages);
    activations_ = Allocate(kRows * (2 * kWidth + 2 * kKvHeads * kDim) * sizeof(float));
  }

  Device& device() { return *device_; }

  /// Attention's result, [rows, kWidth]. `also` runs among the step's operations.
  template <class Also>
  std::vector<float> Step(std::span<const Row> rows, Also also) {
    Give(rows, also);
    std::vector<float> y(rows.size() * kWidth);
    device_->Copy(y.data(), y_, y.size() * sizeof(float));
    EXPECT_TRUE(device_->Wait().ok());
    return y;
  }
  std::vector<float> Step(std::span<const Row> rows) {
    return Step(rows, [] {});
  }
  /// Does not wait: the result comes to `y`, pinned memory.
  std::uint64_t Begin(std::span<const Row> rows, const Memory& y) {
    Give(rows, [] {});
    device_->Copy(y.data(), y_, rows.size() * kWidth * sizeof(float));
    return device_->EndStep();
  }
  /// Ids kDrawnId - i stand for these.
  void SetDrawn(const std::vector<std::int32_t>& ids) {
    drawn_ = Allocate(ids.size() * sizeof(std::int32_t));
    device_->Copy(drawn_.data(), ids.data(), drawn_.bytes());
    EXPECT_TRUE(device_->Wait().ok());
  }

 private:
  template <class Also>
  void Give(std::span<const Row> rows, Also also) {
    std::vector<std::int32_t> positions, ids;
    std::vector<AttentionSequence> sequences;
    std::vector<std::vector<std::int32_t>> tables;
    for (const Row& row : rows) {
      positions.push_back(row.position);
      ids.push_back(row.id);
      auto& table = tables.emplace_back();
      for (std::int32_t page = 0; page <= row.position / 32; ++page) {
        table.push_back(row.sequence + page * static_cast<std::int32_t>(kSequences));
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i > 0 && rows[i].sequence == rows[i - 1].sequence) {
        ++sequences.back().num_rows;
        sequences.back().pages = tables[i];
      } else {
        sequences.push_back({static_cast<std::int64_t>(i), 1, rows[i].position, tables[i]});
      }
    }
    const StepRows step = {
        positions, sequences, ids, reinterpret_cast<const std::int32_t*>(drawn_.data())};
    const std::int64_t padded = device_->BeginStep(step);
    if (!device_->Replay()) {
      Launch(step, padded);
      also();
      if (!device_->EndGraph(true)) {
        Launch(step, padded);
      }
    }
  }

  template <class T>
  static T Take(Result<T> result) {
    EXPECT_TRUE(result.ok()) << result.error().message();
    return *std::move(result);
  }
  Memory Allocate(std::size_t bytes) { return Take(device_->Allocate(bytes, "a test")); }
  Memory Upload(const std::vector<float>& values) {
    Memory memory = Allocate(values.size() * sizeof(float));
    device_->Copy(memory.data(), values.data(), values.size() * sizeof(float));
    EXPECT_TRUE(device_->Wait().ok());
    return memory;
  }
  void Launch(const StepRows& step, std::int64_t rows) {
    float* const q = activations_.floats();
    float* const k = q + kRows * kWidth;
    float* const v = k + kRows * kKvHeads * kDim;
    y_ = v + kRows * kKvHeads * kDim;
    float* const outs[] = {q, k, v};
    const std::int64_t widths[] = {kWidth, kKvHeads * kDim, kKvHeads * kDim};
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      device_->Embed(tables_[i].type, tables_[i].rows, kIds, 0, step.ids, widths[i], 1.0F, outs[i]);
    }
    KvLayer kv;
    kv.base = pages_.data();
    kv.page_bytes = page_bytes_;
    kv.kv_heads = kKvHeads;
    kv.head_dim = kDim;
    QkvTask post;
    post.q = q;
    post.k = k;
    post.v = v;
    post.ldq = kWidth;
    post.ldk = post.ldv = kKvHeads * kDim;
    post.q_heads = kQHeads;
    post.rope = rope_;
    post.step = step;
    post.kv = kv;
    device_->QkvPost(post);
    AttentionTask attention;
    attention.q = q;
    attention.ldq = attention.ldy = kWidth;
    attention.q_heads = kQHeads;
    attention.kv_head_of = kKvHeadOf;
    attention.sequences = step.sequences;
    attention.kv = kv;
    attention.scale = 0.125F;
    attention.y = y_;
    device_->Attention(attention);
    device_->Add(y_, q, rows, kWidth);
  }

  std::unique_ptr<Device> device_;
  std::vector<EmbeddingTable> tables_;
  Memory angles_, pages_, activations_, drawn_;
  RopeTable rope_;
  std::size_t page_bytes_ = 0;
  float* y_ = nullptr;
};

// Sequences that begin at `starts` and leave after so many steps.
void ExpectTheSame(SmallModel& graphs,
                   std::span<const std::int32_t> starts,
                   std::span<const std::int32_t> steps) {
  SmallModel eager({});
  for (std::int32_t step = 0; step < *std::max_element(steps.begin(), steps.end()); ++step) {
    std::vector<Row> rows;
    for (std::size_t s = 0; s < starts.size(); ++s) {
      const auto sequence = static_cast<std::int32_t>(s);
      if (step < steps[s]) {
        rows.push_back({sequence, starts[s] + step, (7 * step + 11 * sequence) % 50});
      }
    }
    ASSERT_EQ(graphs.Step(rows), eager.Step(rows)) << "step " << step;
  }
  EXPECT_EQ(eager.device().graph_counts().replayed, 0U);
}

TEST(GraphsCuda, ReplaysReadTheStepsOwnRows) {
  SmallModel graphs({1, 4, 8});
  const std::vector<std::int32_t> starts = {0, 29, 3, 61}, steps = {12, 9, 12, 5};
  ExpectTheSame(graphs, starts, steps);
  // Steps of 4, then 3 and 2 rows: all of them are the graph of 4 rows. The first runs as always,
  // the second is recorded.
  EXPECT_EQ(graphs.device().graph_counts().recorded, 1U);
  EXPECT_EQ(graphs.device().graph_counts().replayed, 10U);
}

TEST(GraphsCuda, ALongerContextHasAGraphOfItsOwn) {
  SmallModel graphs({2});
  const std::vector<std::int32_t> starts = {1020, 4}, steps = {8, 8};
  ExpectTheSame(graphs, starts, steps);
  EXPECT_EQ(graphs.device().graph_counts().recorded, 2U);
  EXPECT_EQ(graphs.device().graph_counts().replayed, 4U);
}

TEST(GraphsCuda, LargerStepsAreLaunched) {
  SmallModel graphs({1, 2});
  const std::vector<std::int32_t> starts = {0, 1, 2}, steps = {6, 6, 3};
  ExpectTheSame(graphs, starts, steps);
  EXPECT_EQ(graphs.device().graph_counts().replayed, 1U);
}

// The other kernel takes 8 rows of a sequence and more, and has other last bits.
TEST(GraphsCuda, APromptsCutMattersOnlyWithoutBatchInvariance) {
  constexpr std::int32_t kTokens = 20;
  for (const bool batch_invariant : {false, true}) {
    std::vector<std::vector<float>> last_rows;
    for (const std::int32_t piece : {kTokens, 5}) {
      SmallModel model({1, 4, 8}, batch_invariant);
      std::vector<float> y;
      for (std::int32_t begin = 0; begin < kTokens; begin += piece) {
        std::vector<Row> rows;
        for (std::int32_t i = begin; i < begin + piece; ++i) {
          rows.push_back({0, i, (7 * i) % 50});
        }
        y = model.Step(rows);
      }
      last_rows.emplace_back(y.end() - kWidth, y.end());
    }
    EXPECT_EQ(last_rows[0] == last_rows[1], batch_invariant);
  }
}

// What one step is copied from stays while the next one is filled in, with graphs and without; the
// one after that waits for it. Ids may be those that stand for drawn ones.
TEST(GraphsCuda, AStepIsGivenWhileAnotherIsUnderWay) {
  constexpr std::int32_t kSteps = 10;
  for (const bool graphs : {false, true}) {
    SmallModel ahead(graphs ? std::vector<std::int32_t>{2} : std::vector<std::int32_t>{});
    SmallModel waits({});
    std::vector<std::int32_t> drawn;
    for (std::int32_t i = 0; i < 2 * kSteps; ++i) {
      drawn.push_back((7 * i) % 50);
    }
    ahead.SetDrawn(drawn);
    std::vector<Memory> results;
    std::vector<std::uint64_t> steps;
    std::vector<std::vector<float>> expected;
    for (std::int32_t step = 0; step < kSteps; ++step) {
      const std::int32_t at = 2 * step;
      results.push_back(*ahead.device().AllocateHost(2 * kWidth * sizeof(float), "a test"));
      const std::vector<Row> known = {{0, step, drawn[static_cast<std::size_t>(at)]},
                                      {1, 30 + step, drawn[static_cast<std::size_t>(at) + 1]}};
      const std::vector<Row> given = {{0, step, kDrawnId - at},
                                      {1, 30 + step, kDrawnId - (at + 1)}};
      steps.push_back(ahead.Begin(given, results.back()));
      expected.push_back(waits.Step(known));
      if (step > 0 && step % 3 != 0) {  // else the device waits for itself
        EXPECT_TRUE(ahead.device().WaitForStep(steps[static_cast<std::size_t>(step) - 1]).ok());
        EXPECT_TRUE(ahead.device().IsStepDone(steps[static_cast<std::size_t>(step) - 1]));
      }
    }
    EXPECT_TRUE(ahead.device().WaitForStep(steps.back()).ok());
    for (std::size_t step = 0; step < kSteps; ++step) {
      const float* const y = results[step].floats();
      EXPECT_EQ(std::vector<float>(y, y + 2 * kWidth), expected[step]) << "step " << step;
    }
    EXPECT_EQ(ahead.device().graph_counts().replayed, graphs ? kSteps - 2 : 0U);
  }
}

// What cannot be recorded is done without a graph, and so is all that has none yet.
TEST(GraphsCuda, AFailedRecordingCostsNothing) {
  SmallModel graphs({1}), eager({});
  for (std::int32_t step = 0; step < 5; ++step) {
    const std::vector<Row> rows = {{0, step, 3 * step}};
    const auto y = graphs.Step(rows, [&] { (void)graphs.device().Allocate(64, "a test"); });
    EXPECT_EQ(y, eager.Step(rows)) << "step " << step;
  }
  EXPECT_EQ(graphs.device().graph_counts().recorded, 0U);
  EXPECT_EQ(graphs.device().graph_counts().replayed, 0U);
  EXPECT_FALSE(graphs.device().Broken());
}

TEST(GraphsCuda, AGraphIsReplayedAfterAnotherCouldNotBeRecorded) {
  SmallModel graphs({1, 4}), eager({});
  for (std::int32_t step = 0; step < 9; ++step) {
    std::vector<Row> rows = {{0, step, 3 * step}};
    const bool fails = step >= 3 && step < 6;
    if (fails) {
      rows.push_back({1, step - 3, 3 * step});
    }
    const auto y = graphs.Step(rows, [&] {
      if (fails) {
        (void)graphs.device().Allocate(64, "a test");
      }
    });
    EXPECT_EQ(y, eager.Step(rows)) << "step " << step;
  }
  EXPECT_EQ(graphs.device().graph_counts().recorded, 1U);
  EXPECT_EQ(graphs.device().graph_counts().replayed, 4U) << "steps 2, 6, 7 and 8";
}

}  // namespace
}  // namespace inferd::ops
