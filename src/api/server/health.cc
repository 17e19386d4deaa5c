// SPDX-License-Identifier: Apache-2.0
// GET /livez /startupz /readyz /health /ping /load. All but /load read atomics only, so they answer
// at once under any load. /livez: no engine stands still (--stall-deadline-ms). /startupz: the
// model is loaded. /load: how much runs. The others: a request sent now would be taken.
#include "api/core/json_writer.h"
#include "api/server/endpoints.h"

#include <string>

namespace inferd::api {
namespace {

std::string_view PhaseName(leader::Phase phase) {
  switch (phase) {
    case leader::Phase::kStarting:
      return "starting";
    case leader::Phase::kLoading:
      return "loading";
    case leader::Phase::kReady:
      return "ready";
    case leader::Phase::kRecovering:
      return "recovering";
    case leader::Phase::kDraining:
      return "draining";
    case leader::Phase::kStopped:
      return "stopped";
    case leader::Phase::kFailed:
      return "failed";
    case leader::Phase::kAsleep:
      return "asleep";
  }
  return "unknown";
}

/// How far the load is, and how long the rest takes at the speed so far.
void AppendProgress(const ServerContext& context, std::string* out) {
  const leader::LoadProgress progress = context.service.load_progress();
  *out += R"(,"bytes_done":)";
  AppendInt(progress.bytes_done, out);
  *out += R"(,"bytes_total":)";
  AppendInt(progress.bytes_total, out);
  *out += R"(,"seconds_left":)";
  const std::int64_t elapsed_ns = context.arrived_ns - context.started_ns;
  if (progress.bytes_done <= 0 || elapsed_ns < 0) {
    *out += "null";
    return;
  }
  const double share_left = static_cast<double>(progress.bytes_total - progress.bytes_done) /
                            static_cast<double>(progress.bytes_done);
  AppendInt(static_cast<std::int64_t>(static_cast<double>(elapsed_ns) * 1e-9 * share_left), out);
}

HttpResponse StatusAnswer(const ServerContext& context, bool good) {
  const leader::Phase phase = context.service.phase();
  HttpResponse response;
  response.status = good ? 200 : 503;
  response.body = R"({"status":")";
  response.body += PhaseName(context.draining ? leader::Phase::kDraining : phase);
  response.body += '"';
  if (phase == leader::Phase::kLoading) {
    AppendProgress(context, &response.body);
  }
  response.body += '}';
  return response;
}

}  // namespace

Result<Outcome> Livez(const ServerContext& context,
                      const HttpRequest& /*request*/,
                      Fault* /*fault*/) {
  const auto stall = context.service.stall();
  if (!stall) {
    return Outcome(StatusAnswer(context, true));
  }
  HttpResponse response;
  response.status = 503;
  response.body = R"({"status":"stuck","replica":)";
  AppendInt(stall->replica, &response.body);
  response.body += R"(,"seconds":)";
  AppendInt(stall->ms / 1000, &response.body);
  response.body += '}';
  return Outcome(std::move(response));
}

Result<Outcome> Startupz(const ServerContext& context,
                         const HttpRequest& /*request*/,
                         Fault* /*fault*/) {
  const leader::Phase phase = context.service.phase();
  const bool started = phase != leader::Phase::kStarting && phase != leader::Phase::kLoading &&
                       phase != leader::Phase::kFailed;
  return Outcome(StatusAnswer(context, started));
}

Result<Outcome> Load(const ServerContext& context,
                     const HttpRequest& /*request*/,
                     Fault* /*fault*/) {
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t pages_used = 0;
  std::int64_t pages_total = 0;
  for (const leader::ReplicaStats& replica : context.service.stats()) {
    running += replica.running;
    waiting += replica.waiting;
    pages_used += replica.kv_pages_used;
    pages_total += replica.kv_pages_total;
  }
  HttpResponse response;
  response.body = R"({"server_load":)";  // as vLLM calls it
  AppendInt(context.metrics.generations_open.load(std::memory_order_relaxed), &response.body);
  response.body += R"(,"running":)";
  AppendInt(running, &response.body);
  response.body += R"(,"waiting":)";
  AppendInt(waiting, &response.body);
  response.body += R"(,"kv_pages_used":)";
  AppendInt(pages_used, &response.body);
  response.body += R"(,"kv_pages_total":)";
  AppendInt(pages_total, &response.body);
  response.body += '}';
  return Outcome(std::move(response));
}

Result<Outcome> Readyz(const ServerContext& context,
                       const HttpRequest& /*request*/,
                       Fault* /*fault*/) {
  return Outcome(
      StatusAnswer(context, context.service.phase() == leader::Phase::kReady && !context.draining));
}

}  // namespace inferd::api
