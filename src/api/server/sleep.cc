// SPDX-License-Identifier: Apache-2.0
// POST /sleep and /wake_up, GET /is_sleeping, as vLLM has them: the server gives its memory back
// for a while. The first two answer when it is done, and are there with --enable-sleep-mode only.
#include "api/core/json_writer.h"
#include "api/http/list_page.h"
#include "api/server/endpoints.h"
#include "base/error.h"

#include <string>
#include <string_view>

namespace inferd::api {
namespace {

Result<int> LevelOf(std::string_view text, Fault* fault) {
  if (text != "1" && text != "2") {
    fault->param = "level";
    return InvalidArgument(
        "level is '{}'; it must be 1, which lets go of the KV cache, or 2, which lets go of the "
        "weights too",
        text.substr(0, 20));
  }
  return text == "1" ? 1 : 2;
}

Result<leader::SleepMode> ModeOf(std::string_view text, Fault* fault) {
  if (text == "abort") {
    return leader::SleepMode::kAbort;
  }
  if (text == "wait") {
    return leader::SleepMode::kWait;
  }
  if (text == "keep") {
    return leader::SleepMode::kKeep;
  }
  fault->param = "mode";
  return InvalidArgument(
      "mode is '{}'; what runs can be ended (abort), waited for (wait) or go on after waking "
      "(keep)",
      text.substr(0, 20));
}

HttpResponse Answer(const ServerContext& context) {
  const int level = context.service.sleep_level();
  HttpResponse response;
  response.body =
      level > 0 ? R"({"is_sleeping":true,"level":)" : R"({"is_sleeping":false,"level":)";
  AppendInt(level, &response.body);
  response.body += '}';
  return response;
}

}  // namespace

Result<Outcome> GoToSleep(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const int level, LevelOf(QueryValue(request.query, "level").value_or("1"), fault));
  INFERD_ASSIGN(const leader::SleepMode mode,
                ModeOf(QueryValue(request.query, "mode").value_or("abort"), fault));
  INFERD_TRY(context.service.Sleep(level, mode));
  return Outcome(Answer(context));
}

Result<Outcome> WakeUp(const ServerContext& context,
                       const HttpRequest& /*request*/,
                       Fault* /*fault*/) {
  INFERD_TRY(context.service.WakeUp());
  return Outcome(Answer(context));
}

Result<Outcome> IsSleeping(const ServerContext& context,
                           const HttpRequest& /*request*/,
                           Fault* /*fault*/) {
  return Outcome(Answer(context));
}

}  // namespace inferd::api
