// SPDX-License-Identifier: Apache-2.0
// The cost model against published figures, on paper. The table stands in docs/planning.md; this
// fails when it is not what the model says now, and when the model gets worse than it says it is.
#include "base/file.h"
#include "cost/cost_model.h"
#include "plan/predict.h"
#include "unit/spec/real_models.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace inferd::plan {
namespace {

enum class Figure : std::uint8_t { kOffline, kTtft, kItl };

struct Row {
  const char* source;
  spec::ModelSpec model;
  const char* device;
  int tp;
  double bytes_per_weight;
  double kv_bytes;
  Lengths lengths;
  Figure figure;
  double published;  // tokens per second and device, or milliseconds
  bool fitted;       // the profile's efficiencies were chosen on this row
};

spec::ModelSpec Llama31_405B() {
  return spec::MakeSpec("llama-3.1-405b", {128'256, 16'384, 126, 128, 8, 128, 53'248});
}

std::vector<Row> Rows() {
  std::vector<Row> rows;
  const auto trt =
      [&](const char* device, bool fitted, double in, double out, double tokens_per_s) {
        rows.push_back({"TensorRT-LLM 1.0",
                        spec::Llama3_8B(),
                        device,
                        1,
                        1,
                        1,
                        {in, out},
                        Figure::kOffline,
                        tokens_per_s,
                        fitted});
      };
  trt("H200", true, 128, 128, 27'911);
  trt("H200", true, 128, 2048, 26'221);
  trt("H200", true, 500, 2000, 20'770);
  trt("H200", true, 1000, 1000, 17'744);
  trt("H200", true, 2048, 128, 3538);
  trt("H200", true, 2048, 2048, 12'194);
  trt("H200", true, 20'000, 2000, 1804);
  trt("H100", false, 128, 128, 28'312);
  trt("H100", false, 128, 2048, 22'714);
  trt("H100", false, 500, 2000, 17'660);
  trt("H100", false, 1000, 1000, 15'220);
  trt("H100", false, 2048, 128, 3450);
  trt("H100", false, 2048, 2048, 9305);
  trt("H100", false, 20'000, 2000, 1351);
  const auto add = [&](const char* source,
                       const spec::ModelSpec& model,
                       const char* device,
                       int tp,
                       Lengths lengths,
                       Figure figure,
                       double published,
                       bool fitted) {
    rows.push_back({source, model, device, tp, 1, 1, lengths, figure, published, fitted});
  };
  const spec::ModelSpec m70 = spec::Llama3_70B();
  add("TensorRT-LLM 1.0", m70, "H200", 1, {128, 2048}, Figure::kOffline, 4336, false);
  add("TensorRT-LLM 1.0", m70, "H200", 1, {1000, 1000}, Figure::kOffline, 2909, false);
  add("TensorRT-LLM 1.0", m70, "H200", 1, {2048, 128}, Figure::kOffline, 442, false);
  add("TensorRT-LLM, later", m70, "H200", 2, {1000, 1000}, Figure::kOffline, 2587, false);
  add("TensorRT-LLM, later", m70, "H100", 2, {1000, 1000}, Figure::kOffline, 2209, false);
  add("TensorRT-LLM 1.0",
      Llama31_405B(),
      "H200",
      8,
      {1000, 1000},
      Figure::kOffline,
      3330.0 / 8,
      false);
  add("MLPerf 5.0 Offline",
      spec::Llama2_70B(),
      "H200",
      1,
      {292, 292},
      Figure::kOffline,
      4373,
      false);
  add("NIM 1.8.0, c=1", m70, "H100", 2, {5000, 500}, Figure::kTtft, 407, false);
  add("NIM 1.8.0, c=1", m70, "H100", 2, {5000, 500}, Figure::kItl, 18.6, true);
  add("NIM 1.8.0, c=1", spec::Llama3_8B(), "H100", 1, {200, 200}, Figure::kItl, 4.63, true);
  return rows;
}

double Value(const Row& row, const cost::DeviceTable& devices) {
  const auto device = devices.Find(row.device);
  spec::ParallelSpec parallel;
  parallel.tp = row.tp;
  const auto shards = spec::PlanShards(row.model, parallel, {});
  EXPECT_TRUE(device.ok() && shards.ok());
  ReplicaModel replica;
  replica.device = *device;
  replica.stages =
      cost::MakeStages(row.model, *shards, row.bytes_per_weight, row.kv_bytes, *device);
  spec::LedgerOptions options;
  options.bytes_per_weight = row.bytes_per_weight;
  options.kv_bytes_per_value = 1;
  options.max_batched_tokens = 8192;
  options.max_num_seqs = 1;
  options.budget_bytes = device->memory_bytes * 9 / 10 - device->reserved_bytes;
  const auto ledger = spec::MakeLedger(row.model, *shards, options);
  EXPECT_TRUE(ledger.ok()) << (ledger.ok() ? "" : ledger.error().message());
  replica.kv_tokens = ledger.ok() ? ledger->kv_tokens : 0;
  replica.max_num_seqs = 2048;
  replica.max_batched_tokens = 8192;
  switch (row.figure) {
    case Figure::kOffline:
      return PredictOffline(replica, row.lengths).tokens_per_s / row.tp;
    case Figure::kTtft:
      return PredictAlone(replica, row.lengths).ttft_s * 1e3;
    case Figure::kItl:
      return PredictAlone(replica, row.lengths).tpot_s * 1e3;
  }
  return 0;
}

std::string Unit(Figure figure) {
  return figure == Figure::kOffline ? "tok/s" : figure == Figure::kTtft ? "ms TTFT" : "ms ITL";
}

TEST(Published, TheTableInTheDocumentIsWhatTheModelSays) {
  const auto devices = cost::DeviceTable::Load("");
  ASSERT_TRUE(devices.ok()) << devices.error().message();
  std::string table =
      "| source | model, device | in/out | published | predicted | error | fitted on it |\n"
      "| --- | --- | --- | ---: | ---: | ---: | --- |\n";
  double fitted_sum = 0;
  double other_sum = 0;
  double worst = 0;
  int fitted = 0;
  int others = 0;
  for (const Row& row : Rows()) {
    const double value = Value(row, *devices);
    const double error = value / row.published - 1;
    table += fmt::format(
        "| {} | {} FP8, {}x {} | {:.0f}/{:.0f} | {:.{}f} {} | {:.{}f} | {:+.1f} % | {} |\n",
        row.source,
        row.model.name,
        row.tp,
        row.device,
        row.lengths.input,
        row.lengths.output,
        row.published,
        row.published < 100 ? 2 : 0,
        Unit(row.figure),
        value,
        row.published < 100 ? 2 : 0,
        100 * error,
        row.fitted ? "yes" : "no");
    (row.fitted ? fitted_sum : other_sum) += std::abs(error);
    ++(row.fitted ? fitted : others);
    worst = std::max(worst, std::abs(error));
  }
  table += fmt::format(
      "\nMean absolute error: {:.1f} % on the {} rows that the efficiencies were fitted on, {:.1f} "
      "% "
      "on the {} others; the worst is {:.1f} %.\n",
      100 * fitted_sum / fitted,
      fitted,
      100 * other_sum / others,
      others,
      100 * worst);
  EXPECT_LT(other_sum / others, 0.15);
  EXPECT_LT(worst, 0.35);
  const auto document =
      base::ReadFile(std::string(INFERD_CONFIGS) + "/../docs/planning.md", 1 << 20);
  ASSERT_TRUE(document.ok());
  EXPECT_NE(document->find(table), std::string::npos)
      << "docs/planning.md should hold this table:\n"
      << table;
}

}  // namespace
}  // namespace inferd::plan
