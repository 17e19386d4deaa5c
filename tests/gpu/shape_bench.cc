// SPDX-License-Identifier: Apache-2.0
// Speed of one device on a decoder that has the shape of a real model and random weights: no files,
// no engine. JSON lines.
//
//   shape_bench [--device cuda] [--shape 8b|tiny] [--weights bf16,fp8] [--prefill 2048,8192]
//               [--streams 1,4,16,64,256] [--context 1024] [--steps 32] [--enforce-eager]
//
// Decode: steady steps of as many sequences at positions `context` and up, greedy, the tokens of a
// step being the next one's input. Prefill: one prompt in one step, its last token sampled.
#include "base/error.h"
#include "model/sample_batch.h"
#include "model/shard.h"
#include "noise.h"
#include "spec/cuda_graph_sizes.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace inferd {
namespace {

struct Setting {
  std::string device = "cuda";
  std::string shape = "8b";
  std::vector<std::string> weights = {"bf16", "fp8"};
  std::vector<std::int64_t> prefill = {2048, 8192};
  std::vector<std::int64_t> streams = {1, 4, 16, 64, 256};
  std::int64_t context = 1024;
  std::int64_t steps = 32;
  int threads = 8;
  bool graphs = true;

  std::int64_t MostStreams() const { return *std::max_element(streams.begin(), streams.end()); }
};

spec::ModelSpec SpecOf(const Setting& setting) {
  const bool tiny = setting.shape == "tiny";
  spec::ModelSpec model;
  model.name = setting.shape;
  model.vocab_size = tiny ? 512 : 128'256;
  model.hidden_size = tiny ? 128 : 4096;
  model.num_layers = tiny ? 2 : 32;
  model.num_heads = tiny ? 4 : 32;
  model.num_kv_heads = tiny ? 2 : 8;
  model.head_dim = tiny ? 64 : 128;
  model.intermediate_size = tiny ? 256 : 14'336;
  model.max_position = 131'072;
  spec::RopeSpec& rope = model.ropes.emplace_back();
  rope.theta = 500'000;
  rope.rotary_dim = model.head_dim;
  model.layers.resize(static_cast<std::size_t>(model.num_layers));
  return model;
}

class Weights {
 public:
  Weights(const spec::ModelSpec& model, const std::string& type, ops::Device& device)
      : model_(model),
        is_fp8_(type == "fp8"),
        device_(device),
        noise_(static_cast<std::size_t>(model.vocab_size * model.hidden_size) * 2) {}

  Result<model::ShardWeights> Make() {
    const std::int64_t hidden = model_.hidden_size;
    const std::int64_t q = model_.num_heads * model_.head_dim;
    const std::int64_t kv = model_.num_kv_heads * model_.head_dim;
    const std::int64_t ffn = model_.intermediate_size;
    INFERD_ASSIGN(weights_.embedding.table,
                  device_.MakeTable(DType::kBF16, noise_.bytes(), model_.vocab_size, hidden));
    weights_.embedding.count = model_.vocab_size;
    INFERD_TRY(Add(&weights_.head, model_.vocab_size, hidden, false));
    INFERD_ASSIGN(weights_.final_norm, Norm());
    weights_.layers.resize(static_cast<std::size_t>(model_.num_layers));
    for (model::LayerWeights& layer : weights_.layers) {
      INFERD_ASSIGN(layer.attn_norm, Norm());
      INFERD_ASSIGN(layer.ffn_norm, Norm());
      INFERD_TRY(Add(&layer.q, q, hidden, is_fp8_));
      INFERD_TRY(Add(&layer.k, kv, hidden, is_fp8_));
      INFERD_TRY(Add(&layer.v, kv, hidden, is_fp8_));
      INFERD_TRY(Add(&layer.o, hidden, q, is_fp8_));
      INFERD_TRY(Add(&layer.gate, ffn, hidden, is_fp8_));
      INFERD_TRY(Add(&layer.up, ffn, hidden, is_fp8_));
      INFERD_TRY(Add(&layer.down, hidden, ffn, is_fp8_));
    }
    return std::move(weights_);
  }

 private:
  Result<model::Vector> Norm() {
    return model::Vector::Make(
        std::vector<float>(static_cast<std::size_t>(model_.hidden_size), 1.0F), device_);
  }

  Result<> Add(model::Matrix* target, std::int64_t n, std::int64_t k, bool fp8) {
    const std::vector<float> scales(static_cast<std::size_t>(fp8 ? n : 0), 0.01F);
    const auto row_bytes = static_cast<std::size_t>(fp8 ? k : 2 * k);
    INFERD_ASSIGN(*target,
                  device_.Pack(fp8 ? DType::kF8E4M3 : DType::kBF16,
                               noise_.bytes(),
                               n,
                               k,
                               row_bytes,
                               fp8 ? ops::MatrixScales{scales, k} : ops::MatrixScales()));
    weights_.bytes += static_cast<std::int64_t>((*target)->bytes());
    return {};
  }

  const spec::ModelSpec& model_;
  const bool is_fp8_;
  ops::Device& device_;
  const Noise noise_;
  model::ShardWeights weights_;
};

class Runner {
 public:
  static Result<std::unique_ptr<Runner>> Make(const Setting& setting, const std::string& type) {
    auto runner = std::make_unique<Runner>();
    runner->setting_ = setting;
    runner->spec_ = SpecOf(setting);
    INFERD_TRY(spec::Validate(runner->spec_));
    INFERD_ASSIGN(runner->device_, ops::MakeDevice(setting.device, setting.threads, {}));
    INFERD_ASSIGN(model::ShardWeights weights,
                  Weights(runner->spec_, type, *runner->device_).Make());
    INFERD_ASSIGN(const auto plans, spec::PlanShards(runner->spec_, {}, {}));
    const std::int64_t page_tokens = runner->device_->PageTokens();
    model::ShardOptions options;
    options.max_num_seqs = setting.MostStreams();
    options.max_batched_tokens = std::max(
        options.max_num_seqs, *std::max_element(setting.prefill.begin(), setting.prefill.end()));
    options.max_model_len =
        std::max(options.max_batched_tokens, setting.context + 2 * setting.steps) + page_tokens;
    runner->pages_each_ = (setting.context + 2 * setting.steps) / page_tokens + 1;
    options.kv_pages = std::max(runner->pages_each_ * options.max_num_seqs,
                                options.max_model_len / page_tokens + 1);
    if (setting.graphs) {
      options.cuda_graph_sizes =
          spec::CudaGraphSizes({}, options.max_num_seqs, options.max_batched_tokens);
    }
    INFERD_ASSIGN(
        runner->shard_,
        model::Shard::Make(runner->spec_, plans[0], std::move(weights), *runner->device_, options));
    INFERD_TRY(runner->shard_->Join(nullptr, nullptr));
    runner->samples_ = std::make_unique<model::SampleBatch>(
        runner->spec_.vocab_size, runner->shard_->max_logit_rows(), options.max_model_len);
    INFERD_TRY(runner->shard_->ReserveSampling(runner->samples_->limits()));
    return runner;
  }

  std::int64_t weight_bytes() const { return shard_->weight_bytes(); }
  ops::GraphCounts graphs() const { return device_->graph_counts(); }

  /// Seconds of one step.
  Result<double> Prefill(std::int64_t tokens) {
    Begin();
    Add(0, 0, tokens);
    INFERD_TRY(Step());
    return Step();
  }

  /// Seconds per step.
  Result<double> Decode(std::int64_t streams) {
    std::int64_t position = setting_.context;
    const auto run = [&](std::int64_t steps) -> Result<double> {
      const auto begin = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < steps; ++i, ++position) {
        Begin();
        for (std::int64_t s = 0; s < streams; ++s) {
          Add(s, position, 1);
        }
        INFERD_TRY(Step());
      }
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      return seconds.count() / static_cast<double>(steps);
    };
    INFERD_TRY(
        run(std::min<std::int64_t>(4, setting_.steps)));  // Kernels are loaded, a graph is made.
    return run(setting_.steps);
  }

 private:
  void Begin() {
    batch_.Clear();
    last_rows_.clear();
  }

  void Add(std::int64_t sequence, std::int64_t start, std::int64_t count) {
    const auto index = static_cast<std::size_t>(sequence);
    tables_.resize(std::max(tables_.size(), index + 1));
    std::vector<std::int32_t>& table = tables_[index];
    table.clear();
    const std::int64_t page_tokens = device_->PageTokens();
    for (std::int64_t page = 0; page * page_tokens < start + count; ++page) {
      table.push_back(static_cast<std::int32_t>(sequence * pages_each_ + page));
    }
    batch_.sequences.push_back({batch_.rows(), count, start, table});
    for (std::int64_t i = 0; i < count; ++i) {
      batch_.positions.push_back(static_cast<std::int32_t>(start + i));
      batch_.ids.push_back(static_cast<std::int32_t>(index < tokens_.size() && count == 1
                                                         ? tokens_[index]
                                                         : (i * 7919 + 13) % spec_.vocab_size));
    }
    last_rows_.push_back(static_cast<std::int32_t>(batch_.rows() - 1));
  }

  Result<double> Step() {
    // Page tables have found their places.
    for (std::size_t s = 0; s < batch_.sequences.size(); ++s) {
      batch_.sequences[s].pages = tables_[s];
    }
    const auto begin = std::chrono::steady_clock::now();
    INFERD_TRY(shard_->Forward(batch_));
    tokens_.clear();
    const auto at_once = static_cast<std::size_t>(shard_->max_logit_rows());
    const model::SamplingState greedy = [] {
      spec::SamplingParams params;
      params.temperature = 0;
      return model::SamplingState(params, {}, 0);
    }();
    for (std::size_t first = 0; first < last_rows_.size(); first += at_once) {
      const std::span rows =
          std::span(last_rows_).subspan(first, std::min(at_once, last_rows_.size() - first));
      INFERD_TRY(shard_->StartLogits(rows));
      samples_->Clear();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        (void)samples_->Add(greedy, {}, 1, nullptr);
      }
      shard_->SampleRows(0, samples_.get(), 0);
      INFERD_TRY(shard_->FinishLogits(static_cast<std::int64_t>(rows.size())));
      const std::int32_t* const sampled = shard_->sampled_tokens();
      tokens_.insert(tokens_.end(), sampled, sampled + rows.size());
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (std::find(tokens_.begin(), tokens_.end(), -1) != tokens_.end()) {
      return DataLoss("a step's logits hold NaN");
    }
    return seconds.count();
  }

  Setting setting_;
  spec::ModelSpec spec_;
  std::unique_ptr<ops::Device> device_;
  std::unique_ptr<model::Shard> shard_;
  std::unique_ptr<model::SampleBatch> samples_;
  std::int64_t pages_each_ = 0;
  model::StepBatch batch_;
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<std::int32_t> last_rows_, tokens_;
};

Result<> Run(const Setting& setting) {
  for (const std::string& type : setting.weights) {
    INFERD_ASSIGN(const std::unique_ptr<Runner> runner, Runner::Make(setting, type));
    const auto bytes = static_cast<double>(runner->weight_bytes());
    const std::string head = fmt::format(R"("shape": "{}", "weights": "{}", "weight_gb": {:.2f})",
                                         setting.shape,
                                         type,
                                         bytes * 1e-9);
    for (const std::int64_t streams : setting.streams) {
      const std::uint64_t replayed = runner->graphs().replayed;
      INFERD_ASSIGN(const double seconds, runner->Decode(streams));
      fmt::print(
          R"({{{}, "step": "decode", "streams": {}, "context": {}, "tpot_ms": {:.3f}, "tok_s": {:.1f}, )"
          R"("weights_gb_s": {:.1f}, "replayed": {}}})"
          "\n",
          head,
          streams,
          setting.context,
          seconds * 1e3,
          static_cast<double>(streams) / seconds,
          bytes * 1e-9 / seconds,
          runner->graphs().replayed - replayed);
      std::fflush(stdout);
    }
    for (const std::int64_t tokens : setting.prefill) {
      INFERD_ASSIGN(const double seconds, runner->Prefill(tokens));
      fmt::print(R"({{{}, "step": "prefill", "tokens": {}, "ttft_ms": {:.2f}, "tok_s": {:.1f}}})"
                 "\n",
                 head,
                 tokens,
                 seconds * 1e3,
                 static_cast<double>(tokens) / seconds);
      std::fflush(stdout);
    }
  }
  return {};
}

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::int64_t> Numbers(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (const std::string& part : Split(text)) {
    numbers.push_back(std::max<std::int64_t>(1, std::atoll(part.c_str())));
  }
  return numbers;
}

bool Parse(int argc, char** argv, Setting* setting) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--enforce-eager") {
      setting->graphs = false;
      continue;
    }
    if (i + 1 == argc) {
      return false;
    }
    const char* const value = argv[++i];
    if (flag == "--device") {
      setting->device = value;
    } else if (flag == "--shape") {
      setting->shape = value;
    } else if (flag == "--weights") {
      setting->weights = Split(value);
    } else if (flag == "--prefill") {
      setting->prefill = Numbers(value);
    } else if (flag == "--streams") {
      setting->streams = Numbers(value);
    } else if (flag == "--context") {
      setting->context = Numbers(value)[0];
    } else if (flag == "--steps") {
      setting->steps = Numbers(value)[0];
    } else if (flag == "--threads") {
      setting->threads = static_cast<int>(Numbers(value)[0]);
    } else {
      return false;
    }
  }
  return setting->shape == "8b" || setting->shape == "tiny";
}

}  // namespace
}  // namespace inferd

int main(int argc, char** argv) {
  inferd::Setting setting;
  if (!inferd::Parse(argc, argv, &setting)) {
    fmt::print(stderr, "shape_bench: see the head of tests/gpu/shape_bench.cc\n");
    return 2;
  }
  const inferd::Result<> result = inferd::Run(setting);
  if (!result.ok()) {
    constexpr int kSkipped = 77;  // no such device
    fmt::print(stderr, "shape_bench: {}\n", result.error().message());
    return result.error().code() == inferd::Code::kUnavailable ? kSkipped : 1;
  }
  return 0;
}
