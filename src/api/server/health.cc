// SPDX-License-Identifier: Apache-2.0
// GET /livez /readyz /health /ping. They read atomics only, so they answer at once under any load.
// /livez: the process serves HTTP. The others: a request sent now would be taken.
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
  }
  return "unknown";
}

HttpResponse StatusAnswer(const ServerContext& context, bool good) {
  const leader::Phase phase = context.service.phase();
  HttpResponse response;
  response.status = good ? 200 : 503;
  response.body = R"({"status":")";
  response.body += PhaseName(context.draining ? leader::Phase::kDraining : phase);
  response.body += '"';
  if (phase == leader::Phase::kLoading) {
    const leader::LoadProgress progress = context.service.load_progress();
    response.body += R"(,"bytes_done":)";
    AppendInt(progress.bytes_done, &response.body);
    response.body += R"(,"bytes_total":)";
    AppendInt(progress.bytes_total, &response.body);
  }
  response.body += '}';
  return response;
}

}  // namespace

Result<Outcome> Livez(const ServerContext& context,
                      const HttpRequest& /*request*/,
                      Fault* /*fault*/) {
  return Outcome(StatusAnswer(context, true));
}

Result<Outcome> Readyz(const ServerContext& context,
                       const HttpRequest& /*request*/,
                       Fault* /*fault*/) {
  return Outcome(
      StatusAnswer(context, context.service.phase() == leader::Phase::kReady && !context.draining));
}

}  // namespace inferd::api
