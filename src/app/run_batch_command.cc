// SPDX-License-Identifier: Apache-2.0
// `inferd run-batch`: the requests of a file, answered without a server.
#include "api/batch/offline_batch.h"
#include "api/server/strict_requests.h"
#include "app/commands.h"
#include "app/model_text.h"
#include "app/progress.h"
#include "app/signals.h"
#include "base/error.h"
#include "base/log.h"

#include <cstddef>
#include <memory>
#include <utility>

namespace inferd::app {
namespace {

constexpr int kSomeFailed = 3;  // the exit status

Result<std::unique_ptr<api::OfflineBatch>> OpenBatch(const CommandLine& line) {
  if (line.input_file.empty() || line.output_file.empty()) {
    return InvalidArgument(
        "which requests, and where to? give --input-file IN.jsonl and --output-file OUT.jsonl");
  }
  if (line.input_file.find("://") != std::string::npos) {
    return InvalidArgument("--input-file is '{}'; fetch it first, it must be a file here",
                           line.input_file);
  }
  return api::OfflineBatch::Open(
      {.input = line.input_file,
       .output = line.output_file,
       .overwrite = line.overwrite,
       .call = line.config.http.strict_requests ? api::CallStrictly : api::CallHandler});
}

Result<api::OfflineCounts> Run(const Config& config,
                               const store::Model& model,
                               api::OfflineBatch* batch,
                               leader::Leader* leader) {
  INFERD_ASSIGN(const std::shared_ptr<const api::ServedModel> served,
                MakeServedModel(model, config.model));
  INFERD_TRY(WaitUntilReady(leader));
  if (StopRequested()) {
    return Cancelled("stopped before the model was loaded");
  }
  ProgressBar bar("requests", ProgressUnit::kRequests);
  return batch->Run(
      served,
      leader,
      static_cast<std::size_t>(config.scheduler.max_num_seqs),
      [] { return StopRequested(); },
      [&bar](const api::OfflineCounts& counts) {
        bar.Update(counts.completed + counts.failed, counts.total);
      });
}

}  // namespace

Result<int> RunBatch(const CommandLine& line) {
  INFERD_ASSIGN(const auto batch, OpenBatch(line));
  const api::OfflineCounts before = batch->counts();
  if (before.completed + before.failed > 0) {
    log::Info("app",
              "{} of {} requests are answered already",
              before.completed + before.failed,
              before.total);
  }
  INFERD_ASSIGN(const store::Model model, FindModel(line.config.model, line.config.worker.device));
  INFERD_ASSIGN(leader::LeaderOptions options, MakeLeaderOptions(line.config, model));
  INFERD_ASSIGN(const auto leader, leader::Leader::Start(std::move(options)));
  auto counts = Run(line.config, model, batch.get(), leader.get());
  leader->BeginDrain();
  leader->Stop();
  if (!counts.ok()) {
    return counts.error();
  }
  log::Info("app",
            "{}: {} requests completed, {} failed",
            line.output_file,
            counts->completed,
            counts->failed);
  return counts->failed == 0 ? 0 : kSomeFailed;
}

}  // namespace inferd::app
