// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace inferd::model {
namespace {

using spec::RopeKind;
using spec::RopeSpec;

std::vector<float> BaseFrequencies(double theta, std::int64_t dim) {
  std::vector<float> inverse(static_cast<std::size_t>(dim / 2));
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    inverse[i] = 1.0F / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return inverse;
}

double DynamicTheta(const RopeSpec& rope, std::int64_t max_model_len) {
  const double trained = static_cast<double>(rope.original_max_position);
  if (trained <= 0 || static_cast<double>(max_model_len) <= trained || rope.rotary_dim <= 2) {
    return rope.theta;
  }
  const double dim = static_cast<double>(rope.rotary_dim);
  const double stretch =
      rope.factor * static_cast<double>(max_model_len) / trained - (rope.factor - 1);
  return rope.theta * std::pow(stretch, dim / (dim - 2));
}

// Long waves are divided by the factor, short ones stay, those between are blended.
void ScaleLlama3(const RopeSpec& rope, std::vector<float>& inverse) {
  const double trained = static_cast<double>(rope.original_max_position);
  const double longest = trained / rope.low_freq_factor;
  const double shortest = trained / rope.high_freq_factor;
  for (float& f : inverse) {
    const double wave = 2 * std::numbers::pi / f;
    if (wave < shortest) {
      continue;
    }
    const double scaled = f / rope.factor;
    if (wave > longest) {
      f = static_cast<float>(scaled);
      continue;
    }
    const double smooth =
        (trained / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    f = static_cast<float>((1 - smooth) * scaled + smooth * f);
  }
}

double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

// Dimension at which a pair turns `rotations` times over the trained length.
double YarnDimension(const RopeSpec& rope, double rotations) {
  const double trained = static_cast<double>(rope.original_max_position);
  return static_cast<double>(rope.rotary_dim) *
         std::log(trained / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

void ScaleYarn(const RopeSpec& rope, std::vector<float>& inverse) {
  double low = YarnDimension(rope, rope.beta_fast);
  double high = YarnDimension(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
  if (low == high) {
    high += 0.001;
  }
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] = static_cast<float>(inverse[i] / rope.factor * ramp + inverse[i] * (1 - ramp));
  }
}

double YarnAttention(const RopeSpec& rope) {
  if (rope.attention_factor > 0) {
    return rope.attention_factor;
  }
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    return YarnScale(rope.factor, rope.mscale) / YarnScale(rope.factor, rope.mscale_all_dim);
  }
  return YarnScale(rope.factor, 1);
}

double LongRopeAttention(const RopeSpec& rope) {
  if (rope.attention_factor > 0) {
    return rope.attention_factor;
  }
  if (rope.factor <= 1 || rope.original_max_position <= 1) {
    return 1;
  }
  return std::sqrt(1 + std::log(rope.factor) /
                           std::log(static_cast<double>(rope.original_max_position)));
}

void Divide(const std::vector<float>& factors, std::vector<float>& inverse) {
  for (std::size_t i = 0; i < inverse.size() && i < factors.size(); ++i) {
    inverse[i] /= factors[i];
  }
}

}  // namespace

RopeFrequencies MakeRopeFrequencies(const RopeSpec& rope, std::int64_t max_model_len) {
  RopeFrequencies result;
  const double theta =
      rope.kind == RopeKind::kDynamic ? DynamicTheta(rope, max_model_len) : rope.theta;
  result.inverse = BaseFrequencies(theta, rope.rotary_dim);
  switch (rope.kind) {
    case RopeKind::kNone:
      std::fill(result.inverse.begin(), result.inverse.end(), 0.0F);
      break;
    case RopeKind::kDefault:
    case RopeKind::kDynamic:
      break;
    case RopeKind::kLinear:
      for (float& f : result.inverse) {
        f /= static_cast<float>(rope.factor);
      }
      break;
    case RopeKind::kLlama3:
      ScaleLlama3(rope, result.inverse);
      break;
    case RopeKind::kYarn:
      ScaleYarn(rope, result.inverse);
      result.scale = static_cast<float>(YarnAttention(rope));
      break;
    case RopeKind::kLongRope: {
      const bool is_long = max_model_len > rope.original_max_position;
      Divide(is_long ? rope.long_factors : rope.short_factors, result.inverse);
      result.scale = static_cast<float>(LongRopeAttention(rope));
      break;
    }
  }
  Divide(rope.freq_factors, result.inverse);
  return result;
}

Result<RopeTables> RopeTables::Make(const spec::ModelSpec& model,
                                    std::int64_t max_model_len,
                                    ops::Device& device) {
  RopeTables tables;
  for (const RopeSpec& rope : model.ropes) {
    if (rope.rotary_dim < 0 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > model.head_dim) {
      return InvalidArgument(
          "rotary dimension {} does not fit heads of {} values", rope.rotary_dim, model.head_dim);
    }
    const RopeFrequencies frequencies = MakeRopeFrequencies(rope, max_model_len);
    const std::size_t half = frequencies.inverse.size();
    const std::size_t values = static_cast<std::size_t>(max_model_len) * half;
    const std::size_t bytes = 2 * values * sizeof(float);
    INFERD_ASSIGN(ops::Memory memory, device.Allocate(bytes, "rope tables"));
    ops::Memory staging;
    if (!device.SharesHostMemory()) {
      INFERD_ASSIGN(staging, device.AllocateHost(bytes, "rope tables"));
    }
    float* cos = device.SharesHostMemory() ? memory.floats() : staging.floats();
    float* sin = cos + values;
    for (std::int64_t position = 0; position < max_model_len; ++position) {
      for (std::size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position) * frequencies.inverse[i];
        const std::size_t at = static_cast<std::size_t>(position) * half + i;
        cos[at] = static_cast<float>(std::cos(static_cast<double>(angle))) * frequencies.scale;
        sin[at] = static_cast<float>(std::sin(static_cast<double>(angle))) * frequencies.scale;
      }
    }
    if (!device.SharesHostMemory()) {
      device.Copy(memory.data(), staging.data(), bytes);
      INFERD_TRY(device.Wait());
    }
    ops::RopeTable table;
    table.cos = memory.floats();
    table.sin = table.cos + values;
    table.rotary_dim = rope.kind == RopeKind::kNone ? 0 : rope.rotary_dim;
    table.interleaved = model.rope_interleaved;
    tables.memory_.push_back(std::move(memory));
    tables.tables_.push_back(table);
  }
  return tables;
}

std::int64_t RopeTables::bytes() const {
  std::int64_t total = 0;
  for (const ops::Memory& memory : memory_) {
    total += static_cast<std::int64_t>(memory.bytes());
  }
  return total;
}

}  // namespace inferd::model
