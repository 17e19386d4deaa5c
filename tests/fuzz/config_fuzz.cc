// SPDX-License-Identifier: Apache-2.0
// Files of users in YAML: the configuration, and dialects of their own. What is taken can be
// printed, and read again as the same.
#include "app/settings.h"
#include "base/check.h"
#include "target.h"
#include "text/dialect.h"

#include <string>

namespace inferd::fuzz {

void Look(std::string_view input) {
  const std::string text(input);
  Config config;
  const auto settings = app::Settings(&config);
  if (app::ApplyYaml(text, "fuzz.yaml", settings).ok()) {
    const std::string printed = app::PrintConfig(settings);
    Config again;
    const auto read = app::Settings(&again);
    const auto applied = app::ApplyYaml(printed, "printed.yaml", read);
    INFERD_CHECK(applied.ok());
    INFERD_CHECK(app::PrintConfig(read) == printed);
  }
  [[maybe_unused]] const auto table = text::DialectTable::Load(input);
}

}  // namespace inferd::fuzz
