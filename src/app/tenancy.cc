// SPDX-License-Identifier: Apache-2.0
#include "app/tenancy.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "tenant/usage_ledger.h"

#include <charconv>
#include <functional>
#include <map>
#include <utility>

namespace inferd::app {
namespace {

constexpr std::uint64_t kMaxKeyFileBytes = 16 << 20;

Result<tenant::KeyTable> ReadKeys(const TenantConfig& config) {
  INFERD_ASSIGN(std::vector<tenant::ApiKey> keys, tenant::KeysFromTexts(config.api_key));
  if (!config.api_key_file.empty()) {
    INFERD_ASSIGN(const std::string text, base::ReadFile(config.api_key_file, kMaxKeyFileBytes));
    INFERD_ASSIGN(std::vector<tenant::ApiKey> more,
                  tenant::ParseKeyFile(text, config.api_key_file));
    std::move(more.begin(), more.end(), std::back_inserter(keys));
  }
  return tenant::KeyTable::Make(std::move(keys));
}

Result<std::map<std::string, std::int32_t, std::less<>>> ReadObjectives(
    const std::vector<std::string>& texts) {
  std::map<std::string, std::int32_t, std::less<>> objectives;
  for (const std::string& text : texts) {
    const std::size_t equals = text.rfind('=');
    const std::string_view number =
        equals == std::string::npos ? "" : std::string_view(text).substr(equals + 1);
    std::int32_t priority = 0;
    const char* const end = number.data() + number.size();
    const auto [at, error] = std::from_chars(number.data(), end, priority);
    if (equals == 0 || error != std::errc() || at != end || priority < -tenant::kMaxPriority ||
        priority > tenant::kMaxPriority) {
      return InvalidArgument(
          "--inference-objectives has '{}'; it must be NAME=PRIORITY, a priority being from {} to "
          "{}",
          text,
          -tenant::kMaxPriority,
          tenant::kMaxPriority);
    }
    objectives[text.substr(0, equals)] = priority;
  }
  return objectives;
}

void Reload(const TenantConfig& config, tenant::Gate* gate) {
  auto keys = ReadKeys(config);
  if (!keys.ok()) {
    log::Warning("app", "the API keys stay as they were: {}", keys.error().message());
    return;
  }
  log::Info("app", "{}: {} API keys are in force", config.api_key_file, keys->keys().size());
  gate->SetKeys(*std::move(keys));
}

}  // namespace

Result<Tenancy> OpenTenancy(const TenantConfig& config,
                            const std::string& model_name,
                            const std::string& model_version) {
  Tenancy tenancy;
  std::shared_ptr<tenant::UsageSink> ledger;
  if (!config.usage_db.empty() || !config.usage_log.empty()) {
    INFERD_ASSIGN(ledger,
                  tenant::UsageLedger::Open({.database = config.usage_db,
                                             .log_file = config.usage_log,
                                             .keep_days = config.usage_keep_days}));
  }
  INFERD_ASSIGN(auto objectives, ReadObjectives(config.inference_objectives));
  INFERD_ASSIGN(tenant::KeyTable keys, ReadKeys(config));
  if (keys.empty() && !config.api_key_file.empty()) {
    return InvalidArgument("{} has no keys; a server that nobody may use is not started",
                           config.api_key_file);
  }
  if (ledger == nullptr && keys.empty() && !config.trust_tenant_header) {
    return tenancy;
  }
  tenancy.gate = std::make_shared<tenant::Gate>(
      tenant::GateOptions{.model_name = model_name,
                          .model_version = model_version,
                          .trust_tenants = config.trust_tenant_header,
                          .objectives = std::move(objectives)},
      std::move(keys),
      std::move(ledger),
      &base::SteadyClock::Get());
  if (!config.api_key_file.empty()) {
    tenancy.watch =
        std::make_unique<FileWatch>(std::vector<std::string>{config.api_key_file},
                                    [config, gate = tenancy.gate] { Reload(config, gate.get()); });
  }
  return tenancy;
}

}  // namespace inferd::app
