// SPDX-License-Identifier: Apache-2.0
// The one check that every transport asks before it serves: who is calling, may they do this, have
// they anything left. Knows no HTTP and no gRPC.
//
// Life of a request: Gate::Admit (401, 403, 429) -> Admission::UseModel (403) ->
// Admission::Reserve (429) -> Admission::Settle, once, with what was used.
#pragma once

#include "base/clock.h"
#include "inferd/result.h"
#include "tenant/key_table.h"
#include "tenant/quota.h"
#include "tenant/usage.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::tenant {

/// What a transport knows of a request when it has routed it.
struct Ask {
  std::string_view key = {};  // as the client gave it, without "Bearer "; empty: none
  Scope scope = Scope::kInference;
  std::string_view operation = {};   // for the ledger
  std::string_view request_id = {};  // for the ledger
  /// For whom a gateway asks, and that one's weight, as the request carries them. Believed of keys
  /// with the scope gateway and with GateOptions::trust_tenants, else as if they were not there.
  std::string_view tenant = {};
  std::string_view weight = {};
  /// What the request is for, in the gateway's words (a name of GateOptions::objectives; another
  /// one means nothing). Believed as the two.
  std::string_view objective = {};
};

/// One admitted request. Its end (Settle, or destruction) gives back its place and its unused
/// tokens. Used by one thread at a time; made by Gate, which it may outlive.
class Admission {
 public:
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  const std::string& key_name() const { return key_name_; }
  /// Whom what the request makes belongs to: ApiKey::owner(), "-" without keys; with "/" and the
  /// tenant behind it where a gateway names one.
  const std::string& owner() const { return owner_; }
  /// False: the server has no keys.
  bool has_key() const { return has_key_; }
  /// Whose share of the model it takes: the key's name, or whom its gateway names; empty: nobody's.
  const std::string& tenant() const { return tenant_; }
  std::int32_t weight() const { return weight_; }
  /// kPermissionDenied when the key is not for this model, as the client called it.
  Result<> UseModel(std::string_view model) const;
  /// Sets aside prompt tokens plus the most that may be generated; kResourceExhausted fills
  /// `refusal`. Before the work begins; it opens the request's row in the ledger. A second call
  /// sets aside more.
  Result<> Reserve(std::int64_t tokens, Refusal* refusal);
  /// A client can put itself behind the priority of its key and its gateway's objective, not
  /// before.
  std::int32_t PriorityFor(std::int32_t asked) const;
  /// Keeps the prefix caches of tenants apart: none can learn by timing what another one asked.
  std::string CacheSaltFor(std::string_view asked) const;
  /// The request is over. Later calls do nothing.
  void Settle(const Usage& usage);

  LimitState Limits() const;

 private:
  friend class Gate;
  Admission() = default;
  void End(std::int64_t used_tokens);

  std::string key_name_;
  std::string owner_;
  bool has_key_ = false;
  std::string tenant_;
  std::int32_t weight_ = 1;
  std::int32_t priority_ = 0;  // of the key and the objective
  bool has_objective_ = false;
  std::vector<std::string> models_;
  std::shared_ptr<Quota> quota_;       // null: no key, or an operation that is not counted
  std::shared_ptr<UsageSink> ledger_;  // null: none
  UsageRecord record_;
  std::int64_t reserved_ = 0;
  bool open_ = true;
  bool began_ = false;
};

struct GateOptions {
  std::string model_name;                                       // what the ledger calls the model
  std::string model_version;                                    // empty: not known
  bool trust_tenants = false;                                   // whoever can ask may say for whom
  std::map<std::string, std::int32_t, std::less<>> objectives;  // priorities, lower goes first
};

/// Any thread.
class Gate {
 public:
  /// `clock` outlives the gate and its admissions. Without keys everybody is admitted and only
  /// the ledger is kept.
  Gate(GateOptions options,
       KeyTable keys,
       std::shared_ptr<UsageSink> ledger,
       const base::Clock* clock);

  /// Operations of scope kInference count as requests and hold a place until they end.
  /// kUnauthenticated, kPermissionDenied, kInvalidArgument for a gateway's bad word about a tenant,
  /// or kResourceExhausted with `refusal` filled in.
  Result<std::shared_ptr<Admission>> Admit(const Ask& ask, Refusal* refusal);

  /// Whether this key may do that at all; counts nothing.
  Result<> Check(const Ask& ask) const;

  /// For work that its owner has left here to be done (Admission::owner()): the same as if the key
  /// asked now. kUnauthenticated when there is no such key any more.
  Result<std::shared_ptr<Admission>> AdmitOwner(std::string_view owner,
                                                const Ask& ask,
                                                Refusal* refusal);
  /// Records of the ledger that were lost; 0 without one.
  std::uint64_t dropped_records() const { return ledger_ == nullptr ? 0 : ledger_->dropped(); }

  /// From now on these keys are known. Allowances of keys that stay carry on.
  void SetKeys(KeyTable keys);

 private:
  std::shared_ptr<const KeyTable> Keys() const;
  Result<const ApiKey*> KeyOf(const KeyTable& keys, const Ask& ask) const;
  Result<std::shared_ptr<Admission>> AdmitKey(const ApiKey* key, const Ask& ask, Refusal* refusal);
  std::shared_ptr<Quota> QuotaOf(const ApiKey& key);

  const GateOptions options_;
  const std::shared_ptr<UsageSink> ledger_;
  const base::Clock* clock_;
  const bool needs_key_;  // once set, an emptied key file does not open the server
  mutable std::mutex mutex_;
  std::shared_ptr<const KeyTable> keys_;
  std::map<std::string, std::shared_ptr<Quota>, std::less<>> quotas_;  // by key name
};

}  // namespace inferd::tenant
