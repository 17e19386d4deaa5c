// SPDX-License-Identifier: Apache-2.0
#include "api/core/caller.h"

#include <string_view>
#include <utility>

namespace inferd::api {
namespace {

constexpr std::size_t kUserBytes = 256;

struct Tier {
  std::string_view name;
  std::int32_t priority;
};
constexpr Tier kTiers[] = {{"auto", 0}, {"default", 0}, {"flex", 10}, {"priority", -10}};

}  // namespace

std::string UserKey(std::string user) {
  if (user.size() > kUserBytes) {
    user.resize(kUserBytes);
  }
  return user;
}

Result<Caller> ParseCaller(const Fields& fields) {
  Caller caller;
  INFERD_ASSIGN(auto user, fields.String("user"));
  INFERD_ASSIGN(auto identifier, fields.String("safety_identifier"));
  caller.user = UserKey(user && !user->empty() ? *std::move(user) : identifier.value_or(""));
  INFERD_ASSIGN(const auto tier, fields.String("service_tier"));
  if (tier) {
    const Tier* known = nullptr;
    for (const Tier& one : kTiers) {
      known = one.name == *tier ? &one : known;
    }
    if (known == nullptr) {
      return FieldError(fields.fault(),
                        fields.Path("service_tier"),
                        "{} is `{}`; it must be auto, default, flex or priority",
                        fields.Path("service_tier"),
                        tier->substr(0, 50));
    }
    caller.priority = known->priority;
  }
  INFERD_ASSIGN(const auto priority, fields.Int(limits::kPriority));
  caller.priority = static_cast<std::int32_t>(priority.value_or(caller.priority));
  return caller;
}

}  // namespace inferd::api
