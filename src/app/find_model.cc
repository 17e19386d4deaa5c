// SPDX-License-Identifier: Apache-2.0
#include "app/commands.h"
#include "app/progress.h"
#include "app/signals.h"
#include "base/error.h"
#include "base/log.h"
#include "store/fetch.h"
#include "store/resolve.h"

#include <cstdio>
#include <optional>
#include <utility>

namespace inferd::app {
namespace {

Result<std::string> FetchWithProgress(const std::string& name, const ModelConfig& config) {
  std::optional<ProgressBar> bar;
  std::string file;
  store::FetchOptions options;
  options.cache_bytes = config.cache_bytes;
  options.connections = static_cast<int>(config.connections);
  options.progress = [&](const store::FetchProgress& progress) {
    const std::string what = progress.file + (progress.verifying ? " (verifying)" : "");
    if (!bar || what != file) {
      bar.reset();
      bar.emplace(what);
      file = what;
    }
    bar->Update(progress.done_bytes, progress.total_bytes);
    return !StopRequested();
  };
  return store::Fetch(name, options);
}

Result<store::Model> OpenAs(const std::string& path,
                            const ModelConfig& config,
                            const std::string& device) {
  INFERD_TRY(store::HoldModel(path));
  INFERD_ASSIGN(store::Model model,
                store::OpenModel(path, config.quantization, device.starts_with("cuda")));
  model.spec.name = config.model;
  return model;
}

}  // namespace

Result<> FetchModel(const CommandLine& line) {
  if (line.positional.size() != 1) {
    return InvalidArgument("usage: inferd fetch NAME");
  }
  INFERD_ASSIGN(const std::string path,
                FetchWithProgress(line.positional.front(), line.config.model));
  std::printf("%s\n", path.c_str());
  return {};
}

Result<store::Model> FindModel(const ModelConfig& config, const std::string& device) {
  if (config.model.empty()) {
    return InvalidArgument(
        "no model given; for example: inferd qwen2.5-coder-0.5b, or inferd --model PATH");
  }
  if (store::IsStoreName(config.model) && !config.offline) {
    INFERD_ASSIGN(const std::string path, FetchWithProgress(config.model, config));
    return OpenAs(path, config, device);
  }
  auto path = store::ResolveModel(config.model);
  if (!path.ok() && path.error().code() == Code::kNotFound && !config.offline) {
    auto catalog = store::Catalog::Load();
    if (!catalog.ok()) {
      return catalog.error();
    }
    if (catalog->Find(config.model) != nullptr || store::ParseHubName(config.model)) {
      log::Info("app", "{} is not in the cache yet: fetching it", config.model);
      path = FetchWithProgress(config.model, config);
    }
  }
  if (!path.ok()) {
    return path.error();
  }
  return OpenAs(*path, config, device);
}

}  // namespace inferd::app
