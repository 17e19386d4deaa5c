// SPDX-License-Identifier: Apache-2.0
#include "tenant/gate.h"

#include "base/error.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>
#include <utility>

namespace inferd::tenant {
namespace {

constexpr char kTenantMark = '/';

std::string_view ScopeName(Scope scope) {
  switch (scope) {
    case Scope::kOpen:
    case Scope::kAny:
      break;
    case Scope::kInference:
      return "inference";
    case Scope::kMetrics:
      return "metrics";
    case Scope::kAdmin:
      return "admin";
  }
  return "any";
}

Result<> MayDo(const ApiKey& key, Scope scope) {
  if (!key.Has(scope)) {
    return PermissionDenied("This API key lacks the scope `{}` that this operation needs",
                            ScopeName(scope));
  }
  return {};
}

/// The name of a gateway's tenant beside all keys: no key's name has a line break, and no tenant's.
Result<std::string> TenantOf(std::string_view key_name, std::string_view tenant) {
  if (const auto end = tenant.find('\n'); end != std::string_view::npos) {
    return InvalidArgument(
        "Whose request it is must be clear, but its headers name the tenants '{}' and '{}'; send "
        "one "
        "of X-Inferd-Tenant, X-Tenant and X-Gateway-Inference-Fairness-Id, and remove what clients "
        "send under these names",
        tenant.substr(0, end),
        tenant.substr(end + 1));
  }
  if (tenant.size() > kMaxTenantBytes) {
    return InvalidArgument(
        "The tenant's name has {} bytes; at most {} are taken", tenant.size(), kMaxTenantBytes);
  }
  return fmt::format("{}\n{}", key_name, tenant);
}

Result<std::int32_t> WeightOf(std::string_view text) {
  std::int32_t weight = 1;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, weight);
  if (!text.empty() && (error != std::errc() || at != end || weight < 1 || weight > kMaxWeight)) {
    return InvalidArgument("X-Inferd-Weight is '{}'; it must be an integer from 1 to {}",
                           text.substr(0, 20),
                           kMaxWeight);
  }
  return weight;
}

std::int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string_view OutcomeName(UsageOutcome outcome) {
  switch (outcome) {
    case UsageOutcome::kDone:
      return "done";
    case UsageOutcome::kClientLeft:
      return "client_left";
    case UsageOutcome::kFailed:
      return "failed";
  }
  return "unknown";
}

// ---- Admission

Admission::~Admission() {
  if (open_ && began_) {
    Settle({.outcome = UsageOutcome::kFailed});
  } else if (open_) {
    End(0);
  }
}

Result<> Admission::UseModel(std::string_view model) const {
  if (models_.empty() || std::find(models_.begin(), models_.end(), model) != models_.end()) {
    return {};
  }
  return PermissionDenied("This API key is not for the model `{}`", model.substr(0, 200));
}

Result<> Admission::Reserve(std::int64_t tokens, Refusal* refusal) {
  if (quota_ != nullptr) {
    INFERD_TRY(quota_->Reserve(tokens, refusal));
    reserved_ += tokens;
  }
  began_ = true;
  return {};
}

std::int32_t Admission::PriorityFor(std::int32_t asked) const {
  if (!has_key_ && !has_objective_) {
    return asked;
  }
  const std::int64_t sum = std::int64_t{priority_} + std::max(asked, 0);
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(sum, std::numeric_limits<std::int32_t>::max()));
}

std::string Admission::CacheSaltFor(std::string_view asked) const {
  if (tenant_.empty()) {
    return std::string(asked);
  }
  // The length keeps two pairs of name and salt from making one text.
  return fmt::format("{}:{}:{}", tenant_.size(), tenant_, asked);
}

void Admission::Settle(const Usage& usage) {
  if (!open_) {
    return;
  }
  End(usage.prompt_tokens + usage.completion_tokens);
  if (ledger_ != nullptr && began_) {
    record_.unix_ms = UnixMs();
    record_.usage = usage;
    ledger_->Put(std::move(record_));
  }
}

void Admission::End(std::int64_t used_tokens) {
  open_ = false;
  if (quota_ != nullptr) {
    if (began_) {
      quota_->Settle(reserved_, used_tokens);
    }
    quota_->End();
  }
}

LimitState Admission::Limits() const { return quota_ == nullptr ? LimitState{} : quota_->Limits(); }

// ---- Gate

Gate::Gate(GateOptions options,
           KeyTable keys,
           std::shared_ptr<UsageSink> ledger,
           const base::Clock* clock)
    : options_(std::move(options)),
      ledger_(std::move(ledger)),
      clock_(clock),
      needs_key_(!keys.empty()),
      keys_(std::make_shared<const KeyTable>(std::move(keys))) {}

std::shared_ptr<const KeyTable> Gate::Keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

Result<std::shared_ptr<Admission>> Gate::Admit(const Ask& ask, Refusal* refusal) {
  if (!needs_key_ || ask.scope == Scope::kOpen) {
    return AdmitKey(nullptr, ask, refusal);
  }
  const std::shared_ptr<const KeyTable> keys = Keys();
  INFERD_ASSIGN(const ApiKey* const key, KeyOf(*keys, ask));
  return AdmitKey(key, ask, refusal);
}

Result<> Gate::Check(const Ask& ask) const {
  if (needs_key_ && ask.scope != Scope::kOpen) {
    const std::shared_ptr<const KeyTable> keys = Keys();
    INFERD_TRY(KeyOf(*keys, ask));
  }
  return {};
}

Result<const ApiKey*> Gate::KeyOf(const KeyTable& keys, const Ask& ask) const {
  const ApiKey* const key = keys.Find(ask.key);
  if (key == nullptr) {
    return ask.key.empty()
               ? Unauthenticated(
                     "This server needs an API key; send it as `Authorization: Bearer KEY`")
               : Unauthenticated("The API key is not known to this server");
  }
  INFERD_TRY(MayDo(*key, ask.scope));
  return key;
}

Result<std::shared_ptr<Admission>> Gate::AdmitOwner(std::string_view owner,
                                                    const Ask& ask,
                                                    Refusal* refusal) {
  // AdmitKey put a gateway's tenant after the key's owner.
  const auto admit = [&](const ApiKey* key, std::size_t size) {
    Ask of_tenant = ask;
    of_tenant.tenant = owner.size() > size ? owner.substr(size + 1) : "";
    return AdmitKey(key, of_tenant, refusal);
  };
  if (!needs_key_) {
    return admit(nullptr, std::min<std::size_t>(owner.size(), 1));
  }
  const std::shared_ptr<const KeyTable> keys = Keys();
  for (const ApiKey& key : keys->keys()) {
    const std::string of_key = key.owner();
    if (owner == of_key || owner.starts_with(of_key + kTenantMark)) {
      return admit(&key, of_key.size());
    }
  }
  return Unauthenticated("The API key that this work belongs to is not known any more");
}

/// Without a key: everybody may, and nothing is counted but in the ledger.
Result<std::shared_ptr<Admission>> Gate::AdmitKey(const ApiKey* key,
                                                  const Ask& ask,
                                                  Refusal* refusal) {
  std::shared_ptr<Admission> admission(new Admission());
  admission->ledger_ = ledger_;
  admission->key_name_ = "-";
  admission->owner_ = "-";
  if (key != nullptr) {
    INFERD_TRY(MayDo(*key, ask.scope));
    admission->has_key_ = true;
    admission->key_name_ = key->name;
    admission->owner_ = key->owner();
    admission->priority_ = key->priority;
    admission->tenant_ = key->name;
    admission->weight_ = key->weight;
    admission->models_ = key->models;
  }
  const bool is_gateway = options_.trust_tenants || (key != nullptr && key->gateway);
  if (const auto objective = options_.objectives.find(ask.objective);
      is_gateway && objective != options_.objectives.end()) {
    admission->has_objective_ = true;
    admission->priority_ += objective->second;
  }
  if (is_gateway && !ask.tenant.empty()) {
    INFERD_ASSIGN(admission->tenant_, TenantOf(admission->tenant_, ask.tenant));
    INFERD_ASSIGN(admission->weight_, WeightOf(ask.weight));
    admission->owner_ += kTenantMark;
    admission->owner_ += ask.tenant;
  }
  if (key != nullptr && ask.scope == Scope::kInference) {
    auto quota = QuotaOf(*key);
    INFERD_TRY(quota->Begin(refusal));
    admission->quota_ = std::move(quota);
  }
  if (ledger_ != nullptr) {
    UsageRecord& record = admission->record_;
    record.key = admission->key_name_;
    record.model = options_.model_name;
    record.version = options_.model_version;
    record.operation = ask.operation;
    record.request_id = ask.request_id;
  }
  return admission;
}

std::shared_ptr<Quota> Gate::QuotaOf(const ApiKey& key) {
  const std::lock_guard lock(mutex_);
  auto& quota = quotas_[key.name];
  if (quota == nullptr) {
    quota = std::make_shared<Quota>(key.limits, clock_);
  }
  return quota;
}

void Gate::SetKeys(KeyTable keys) {
  auto table = std::make_shared<const KeyTable>(std::move(keys));
  const std::lock_guard lock(mutex_);
  for (const ApiKey& key : table->keys()) {
    if (const auto it = quotas_.find(key.name); it != quotas_.end()) {
      it->second->SetLimits(key.limits);
    }
  }
  std::erase_if(quotas_, [&](const auto& entry) {
    return std::none_of(table->keys().begin(), table->keys().end(), [&](const ApiKey& key) {
      return key.name == entry.first;
    });
  });
  keys_ = std::move(table);
}

}  // namespace inferd::tenant
