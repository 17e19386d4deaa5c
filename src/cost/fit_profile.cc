// SPDX-License-Identifier: Apache-2.0
#include "cost/fit_profile.h"

#include "base/error.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

namespace inferd::cost {
namespace {

constexpr double kMaxScale = 1e3;         // of a rate, against the base's
constexpr double kMaxFixedSeconds = 0.1;  // of a step, or of one of its rows
constexpr double kMinFixedSeconds = 1e-8;
constexpr double kMinEfficiency = 0.01;  // of the format
constexpr double kBytesPerMiB = 1024.0 * 1024.0;

/// What is looked for, as logarithms, so that a step changes each by a share of itself.
struct Point {
  std::array<double, 4> log;  // scale of the bandwidth, of the FLOPs, seconds per step and per row
};

/// The efficiencies take a scale as long as they are shares; beyond, the peaks do.
void Scale(double scale, double* peak, double* first, double* second) {
  if (std::max(*first, *second) * scale <= 1 &&
      std::min(*first, *second) * scale >= kMinEfficiency) {
    *first *= scale;
    *second *= scale;
  } else {
    *peak *= scale;
  }
}

DeviceProfile At(const DeviceProfile& base, const Point& point) {
  DeviceProfile device = base;
  Efficiency& efficiency = device.efficiency;
  Scale(std::exp(point.log[0]), &device.bandwidth, &efficiency.weights, &efficiency.kv);
  const double flops_before = device.flops_16bit;
  Scale(std::exp(point.log[1]), &device.flops_16bit, &efficiency.flops, &efficiency.attention);
  device.flops_8bit *= device.flops_16bit / flops_before;
  efficiency.step_s = std::exp(point.log[2]);
  efficiency.row_s = std::exp(point.log[3]);
  return device;
}

/// Mean square of the logarithm of predicted over measured; far from the base costs a little, so
/// that what the measurements do not tell stays where it was.
double Cost(const DeviceProfile& base,
            const Measured& measured,
            const Point& from,
            const Point& to) {
  constexpr double kPull = 1e-5;
  const DeviceProfile device = At(base, to);
  double sum = 0;
  for (const Observation& one : measured.observations) {
    const double off = std::log(PredictSeconds(measured, one, device) / one.seconds);
    sum += off * off;
  }
  sum /= static_cast<double>(measured.observations.size());
  for (std::size_t i = 0; i < to.log.size(); ++i) {
    sum += kPull * (to.log[i] - from.log[i]) * (to.log[i] - from.log[i]);
  }
  return sum;
}

/// Pattern search (Hooke and Jeeves 1961): tries a step in each direction, goes on along what has
/// helped, and halves the step when nothing does.
Point Search(const DeviceProfile& base, const Measured& measured, const Point& from) {
  constexpr double kFirstStep = 0.7;
  constexpr double kLastStep = 1e-5;
  constexpr int kMostRounds = 20'000;
  const auto cost = [&](const Point& at) { return Cost(base, measured, from, at); };
  const auto explore = [&](Point at, double step) {
    double best = cost(at);
    for (double& value : at.log) {
      const double before = value;
      for (const double move : {step, -step}) {
        value = before + move;
        if (const double now = cost(at); now < best) {
          best = now;
          break;
        }
        value = before;
      }
    }
    return at;
  };
  Point best = from;
  double step = kFirstStep;
  for (int round = 0; round < kMostRounds && step > kLastStep; ++round) {
    Point next = explore(best, step);
    if (!(cost(next) < cost(best))) {
      step /= 2;
      continue;
    }
    Point beyond = next;
    for (std::size_t i = 0; i < beyond.log.size(); ++i) {
      beyond.log[i] += next.log[i] - best.log[i];
    }
    beyond = explore(beyond, step);
    best = cost(beyond) < cost(next) ? beyond : next;
  }
  return best;
}

Result<> Check(const DeviceProfile& base, const Point& found) {
  const bool in_range = std::abs(found.log[0]) < std::log(kMaxScale) &&
                        std::abs(found.log[1]) < std::log(kMaxScale) &&
                        found.log[2] < std::log(kMaxFixedSeconds) &&
                        found.log[3] < std::log(kMaxFixedSeconds);
  if (!in_range) {
    return InvalidArgument(
        "the measurements are no variant of a {}: bandwidth {:.3g} times, FLOPs {:.3g} times its, "
        "{:.3g} us a step and {:.3g} us a row; measure a larger model, or more rounds",
        base.name,
        std::exp(found.log[0]),
        std::exp(found.log[1]),
        std::exp(found.log[2]) * 1e6,
        std::exp(found.log[3]) * 1e6);
  }
  return {};
}

/// A double-quoted scalar of YAML.
std::string Quoted(const std::string& text) {
  YAML::Emitter out;
  out.SetStringFormat(YAML::DoubleQuoted);
  out << text;
  return out.c_str();
}

std::string LinkYaml(const char* key, const Link& link, int devices) {
  if (!(link.bytes_per_s > 0)) {
    return "";
  }
  return fmt::format("{}: {{name: {}, gb_s: {:.4g}, latency_us: {:.4g}{}}}\n",
                     key,
                     Quoted(link.name),
                     link.bytes_per_s * 1e-9,
                     link.latency_s * 1e6,
                     devices > 0 ? fmt::format(", devices: {}", devices) : std::string());
}

}  // namespace

double PredictSeconds(const Measured& measured,
                      const Observation& observation,
                      const DeviceProfile& device) {
  StageCost stage = measured.stage;
  stage.flops_per_s = PeakFlops(device, measured.bytes_per_weight);
  const ReplicaLinks links;
  if (observation.streams > 0) {
    StepWork work;
    for (std::int64_t i = 0; i < observation.streams; ++i) {
      AddWork(stage, observation.context, 1, true, &work);
    }
    return TimeOf(stage, work, device, links).total;
  }
  double seconds = 0;
  for (std::int64_t start = 0; start < observation.context;) {
    const std::int64_t count = std::min(observation.context - start, measured.max_batched_tokens);
    StepWork work;
    AddWork(stage, start, count, start + count == observation.context, &work);
    seconds += TimeOf(stage, work, device, links).total;
    start += count;
  }
  return seconds;
}

Result<FittedProfile> FitProfile(const DeviceProfile& base, const Measured& measured) {
  const auto& all = measured.observations;
  const auto is_prefill = [](const Observation& one) { return one.streams == 0; };
  if (std::all_of(all.begin(), all.end(), is_prefill) ||
      std::none_of(all.begin(), all.end(), is_prefill)) {
    return InvalidArgument("a profile needs at least one prefill and one decode");
  }
  const auto fixed = [](double seconds) { return std::log(std::max(seconds, kMinFixedSeconds)); };
  const Point from{{0, 0, fixed(base.efficiency.step_s), fixed(base.efficiency.row_s)}};
  const Point found = Search(base, measured, from);
  INFERD_TRY(Check(base, found));
  FittedProfile fitted;
  fitted.device = At(base, found);
  for (const Observation& one : all) {
    const double off = std::abs(PredictSeconds(measured, one, fitted.device) / one.seconds - 1);
    fitted.mean_error += off / static_cast<double>(all.size());
    fitted.worst_error = std::max(fitted.worst_error, off);
  }
  return fitted;
}

std::string ProfileYaml(const DeviceProfile& device) {
  std::string text = fmt::format("name: {}\n", Quoted(device.name));
  if (!device.gpu) {
    text += "kind: cpu\n";
  }
  text += fmt::format("memory_mib: {:.0f}\nreserved_mib: {:.0f}\nbandwidth_gb_s: {:.4g}\n",
                      static_cast<double>(device.memory_bytes) / kBytesPerMiB,
                      static_cast<double>(device.reserved_bytes) / kBytesPerMiB,
                      device.bandwidth * 1e-9);
  text += fmt::format("tflops_16bit: {:.4g}\n", device.flops_16bit * 1e-12);
  if (device.flops_8bit > 0) {
    text += fmt::format("tflops_8bit: {:.4g}\n", device.flops_8bit * 1e-12);
  }
  if (device.native_4bit) {
    text += "native_4bit: true\n";
  }
  text += LinkYaml("peer_link", device.peer, device.domain_devices);
  text += LinkYaml("host_link", device.host, 0);
  text += LinkYaml("network", device.network, 0);
  if (device.load_bytes_per_s > 0) {
    text += fmt::format("load_gb_s: {:.4g}\n", device.load_bytes_per_s * 1e-9);
  }
  const Efficiency& of = device.efficiency;
  text += fmt::format(
      "efficiency: {{weights: {:.4g}, kv: {:.4g}, flops: {:.4g}, attention: {:.4g}, link: {:.4g}, "
      "step_us: {:.4g}, row_us: {:.4g}}}\n",
      of.weights,
      of.kv,
      of.flops,
      of.attention,
      of.link,
      of.step_s * 1e6,
      of.row_s * 1e6);
  if (device.price_per_hour > 0) {
    text += fmt::format("price_per_hour: {:.4g}\n", device.price_per_hour);
  }
  text += "sources:\n";
  for (const std::string& source : device.sources) {
    text += fmt::format("  - {}\n", Quoted(source));
  }
  return text;
}

}  // namespace inferd::cost
