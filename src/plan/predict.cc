// SPDX-License-Identifier: Apache-2.0
#include "plan/predict.h"

#include <algorithm>
#include <cmath>

namespace inferd::plan {
namespace {

using cost::StageCost;
using cost::StepTime;
using cost::StepWork;

constexpr int kMaxIterations = 500;
constexpr double kConverged = 1e-9;

/// A step of one group: `rows` decode at `context`, and `tokens` of prompts of `input` tokens are
/// run, as `prompts` chunks.
struct MixedStep {
  double rows = 0;
  double context = 0;
  double tokens = 0;
  double prompts = 0;
  double input = 0;
};

StepWork WorkOf(const StageCost& stage, const MixedStep& step) {
  StepWork work;
  const double visible = stage.window > 0 ? std::min(step.context, stage.window) : step.context;
  const double prompt_visible =
      stage.window > 0 ? std::min(step.input / 2, stage.window) : step.input / 2;
  work.tokens = step.rows + step.tokens;
  work.rows = step.rows + step.prompts;
  work.logit_rows = step.rows + step.prompts;
  work.kv_bytes = step.rows * (stage.kv_bytes * step.context + stage.window_kv_bytes * visible);
  work.attention_flops = step.tokens * (stage.attention_flops * step.input / 2 +
                                        stage.window_attention_flops * prompt_visible);
  return work;
}

struct PipelineTime {
  StepTime slowest;
  double sum = 0;  // through all stages, handovers included
  double most = 0;
};

PipelineTime TimeOf(const ReplicaModel& replica, const MixedStep& step) {
  PipelineTime time;
  for (const StageCost& stage : replica.stages) {
    const StepTime one = cost::TimeOf(stage, WorkOf(stage, step), replica.device, replica.links);
    time.sum += one.total + one.handover;
    if (one.total >= time.most) {
      time.most = one.total;
      time.slowest = one;
    }
  }
  return time;
}

double Stages(const ReplicaModel& replica) { return static_cast<double>(replica.stages.size()); }

/// Sequences that a group can run at once: rows, and pages for prompt and output.
double MostRunning(const ReplicaModel& replica, const Lengths& lengths) {
  const double tokens = std::max(1.0, lengths.input + lengths.output);
  return std::min(static_cast<double>(replica.max_num_seqs),
                  std::floor(static_cast<double>(replica.kv_tokens) / tokens));
}

/// Of a prompt that is run in chunks while `rows` decode: until its first token is out.
double PromptSeconds(const ReplicaModel& replica, const Lengths& lengths, double rows) {
  const auto budget = std::max(1.0, static_cast<double>(replica.max_batched_tokens) - rows);
  const double chunks = std::ceil(lengths.input / budget);
  MixedStep step{
      rows, lengths.input + lengths.output / 2, lengths.input / chunks, 1, lengths.input};
  const PipelineTime time = TimeOf(replica, step);
  return time.sum + (chunks - 1) * time.most;
}

/// The mean step when `running` sequences decode and `prompts` prompts come in a step's time. A
/// prompt is run in as few steps as it can be: most steps have none of it when they come seldom.
PipelineTime MeanStep(const ReplicaModel& replica,
                      const Lengths& lengths,
                      double running,
                      double prompts) {
  // With p stages a sequence takes part in every p-th step.
  MixedStep step;
  step.rows = running / Stages(replica);
  step.context = lengths.input + lengths.output / 2;
  step.input = lengths.input;
  const double budget = std::max(1.0, static_cast<double>(replica.max_batched_tokens) - step.rows);
  const double chunk = std::min(lengths.input, budget);
  const double chunks = prompts * lengths.input / chunk;
  if (chunks >= 1) {
    step.tokens = prompts * lengths.input;
    step.prompts = prompts;
    return TimeOf(replica, step);
  }
  const PipelineTime without = TimeOf(replica, step);
  step.tokens = chunk;
  step.prompts = 1;
  PipelineTime mean = TimeOf(replica, step);
  mean.sum = chunks * mean.sum + (1 - chunks) * without.sum;
  mean.most = chunks * mean.most + (1 - chunks) * without.most;
  mean.slowest = chunks > 0.5 ? mean.slowest : without.slowest;
  return mean;
}

/// From the time of a step to that of a sequence's next token.
double TokenSeconds(const ReplicaModel& replica, const PipelineTime& time) {
  return std::max(time.sum, Stages(replica) * time.most);
}

void Fill(const ReplicaModel& replica,
          const Lengths& lengths,
          const PipelineTime& time,
          double running,
          double rate,
          Prediction* out) {
  out->running = running * replica.groups;
  out->tpot_s = TokenSeconds(replica, time);
  out->step_s = time.most;
  out->bottleneck = time.slowest;
  const double prompt_s = PromptSeconds(replica, lengths, running / Stages(replica));
  const MixedStep alone{0, 0, lengths.input, 1, lengths.input};
  out->busy =
      std::min(1.0, rate * (TimeOf(replica, alone).most - replica.device.efficiency.step_s));
  const double load = std::min(out->busy, 0.999);
  // Where others run: half a step until the next one begins, which is planned already; then those
  // in front (M/D/1); then its own prompt.
  out->ttft_s =
      std::min(1.0, running) * 1.5 * time.most + load / (2 * (1 - load)) * prompt_s + prompt_s;
}

}  // namespace

Prediction PredictAlone(const ReplicaModel& replica, const Lengths& lengths) {
  Prediction out;
  MixedStep step{1, lengths.input + lengths.output / 2, 0, 0, lengths.input};
  const PipelineTime time = TimeOf(replica, step);
  out.stable = MostRunning(replica, lengths) >= 1;
  out.running = 1;
  out.tpot_s = time.sum;
  out.step_s = time.most;
  out.bottleneck = time.slowest;
  out.ttft_s = PromptSeconds(replica, lengths, 0);
  out.tokens_per_s = lengths.output / (out.ttft_s + lengths.output * out.tpot_s);
  return out;
}

Prediction Predict(const ReplicaModel& replica, const Lengths& lengths, double rate) {
  const double per_group = rate / replica.groups;
  const double most = MostRunning(replica, lengths);
  Prediction out;
  double step_s = 0;
  double running = 0;
  PipelineTime time;
  // The least fixed point of: a step takes what its rows and the prompts that come meanwhile need;
  // what runs at once is what comes while a request lasts. The map is monotone, from below.
  for (int i = 0; i < kMaxIterations; ++i) {
    // A step has at least one row: when none runs there is no step.
    const double prompts = per_group * step_s;
    time = MeanStep(replica, lengths, std::max(running, 1.0), prompts);
    const double next_running = per_group * lengths.output * TokenSeconds(replica, time);
    const double tokens = running / Stages(replica) + prompts * lengths.input;
    const bool full =
        next_running > most || tokens > static_cast<double>(replica.max_batched_tokens);
    if (full) {
      Prediction limit = PredictOffline(replica, lengths);
      limit.stable = false;
      return limit;
    }
    const bool settled = std::abs(time.most - step_s) <= kConverged * time.most &&
                         std::abs(next_running - running) <= kConverged * (1 + running);
    step_s = time.most;
    running = next_running;
    if (settled) {
      break;
    }
  }
  Fill(replica, lengths, time, running, per_group, &out);
  out.stable = true;
  out.tokens_per_s = rate * lengths.output;
  return out;
}

Prediction PredictOffline(const ReplicaModel& replica, const Lengths& lengths) {
  Prediction out;
  const double running = MostRunning(replica, lengths);
  if (running < 1) {
    return out;
  }
  // Rate and step time fit each other: each step ends running / (stages * output) requests, and
  // as many prompts begin.
  const double rows = running / Stages(replica);
  const double prompts = rows / std::max(1.0, lengths.output);
  const PipelineTime time = MeanStep(replica, lengths, running, prompts);
  const double rate = prompts / time.most;
  Fill(replica, lengths, time, running, rate, &out);
  out.stable = true;
  out.tokens_per_s = running * replica.groups / TokenSeconds(replica, time);
  return out;
}

double MaxRate(const ReplicaModel& replica, const Lengths& lengths, const Targets& targets) {
  const auto holds = [&](double rate) {
    const Prediction at = Predict(replica, lengths, rate);
    return at.stable && (targets.ttft_s <= 0 || at.ttft_s <= targets.ttft_s) &&
           (targets.itl_s <= 0 || at.tpot_s <= targets.itl_s);
  };
  double low = 0;
  double high = 1e-3;
  if (!holds(high)) {
    return 0;
  }
  while (holds(high) && high < 1e9) {
    low = high;
    high *= 2;
  }
  for (int i = 0; i < 60 && high - low > 1e-4 * high; ++i) {
    const double middle = (low + high) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace inferd::plan
