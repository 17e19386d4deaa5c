// SPDX-License-Identifier: Apache-2.0
#include "tenant/gate.h"

#include "base/clock.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace inferd::tenant {
namespace {

class FakeLedger final : public UsageSink {
 public:
  void Put(UsageRecord record) override { records.push_back(std::move(record)); }
  std::vector<UsageRecord> records;
};

ApiKey Key(const std::string& name, KeyLimits limits = {}) {
  ApiKey key;
  key.name = name;
  key.digest = DigestOf("text-of-" + name);
  key.limits = limits;
  return key;
}

class GateTest : public testing::Test {
 protected:
  void Open(std::vector<ApiKey> keys) {
    auto table = KeyTable::Make(std::move(keys));
    ASSERT_TRUE(table.ok());
    gate_ = std::make_unique<Gate>(
        GateOptions{.model_name = "m", .model_version = "v1", .objectives = {}},
        *std::move(table),
        ledger_,
        &clock_);
  }
  Result<std::shared_ptr<Admission>> Admit(const std::string& name,
                                           Scope scope = Scope::kInference) {
    const std::string text = name.empty() ? "" : "text-of-" + name;
    refusal_ = {};
    return gate_->Admit({.key = text, .scope = scope, .operation = "/op", .request_id = "r1"},
                        &refusal_);
  }
  Code CodeOf(const std::string& name, Scope scope = Scope::kInference) {
    const auto admitted = Admit(name, scope);
    return admitted.ok() ? Code{} : admitted.error().code();
  }

  base::FakeClock clock_;
  std::shared_ptr<FakeLedger> ledger_ = std::make_shared<FakeLedger>();
  std::unique_ptr<Gate> gate_;
  Refusal refusal_;
};

TEST_F(GateTest, WithoutKeysEverybodyIsAdmittedAndRecorded) {
  Open({});
  auto admitted = Admit("");
  ASSERT_TRUE(admitted.ok());
  Admission& admission = **admitted;
  EXPECT_TRUE(admission.UseModel("any").ok());
  EXPECT_EQ(admission.PriorityFor(-5), -5);
  EXPECT_EQ(admission.CacheSaltFor("salt"), "salt");
  ASSERT_TRUE(admission.Reserve(1'000'000, &refusal_).ok());
  EXPECT_EQ(admission.Limits().tokens.limit, 0);
  admission.Settle({.prompt_tokens = 3, .completion_tokens = 4, .outcome = UsageOutcome::kDone});
  admission.Settle({.prompt_tokens = 9});
  ASSERT_EQ(ledger_->records.size(), 1U);
  const UsageRecord& record = ledger_->records.front();
  EXPECT_EQ(record.key, "-");
  EXPECT_EQ(record.model, "m");
  EXPECT_EQ(record.version, "v1");
  EXPECT_EQ(record.operation, "/op");
  EXPECT_EQ(record.request_id, "r1");
  EXPECT_EQ(record.usage.prompt_tokens, 3);
  EXPECT_GT(record.unix_ms, 1'600'000'000'000);
}

TEST_F(GateTest, KnowsKeysAndScopes) {
  ApiKey metrics = Key("metrics");
  metrics.inference = false;
  metrics.metrics = true;
  ApiKey admin = Key("admin");
  admin.inference = false;
  admin.admin = true;
  Open({Key("user"), metrics, admin});
  EXPECT_EQ(CodeOf(""), Code::kUnauthenticated);
  EXPECT_EQ(CodeOf("nobody"), Code::kUnauthenticated);
  EXPECT_EQ(CodeOf("", Scope::kAny), Code::kUnauthenticated);
  EXPECT_EQ(CodeOf("user"), Code{});
  EXPECT_EQ(CodeOf("user", Scope::kMetrics), Code::kPermissionDenied);
  EXPECT_EQ(CodeOf("user", Scope::kAdmin), Code::kPermissionDenied);
  EXPECT_EQ(CodeOf("metrics"), Code::kPermissionDenied);
  EXPECT_EQ(CodeOf("metrics", Scope::kMetrics), Code{});
  EXPECT_EQ(CodeOf("metrics", Scope::kAny), Code{});
  for (const Scope scope : {Scope::kAny, Scope::kInference, Scope::kMetrics, Scope::kAdmin}) {
    EXPECT_EQ(CodeOf("admin", scope), Code{});
  }
}

TEST_F(GateTest, HoldsAKeyToItsModels) {
  ApiKey key = Key("user");
  key.models = {"small", "large@v2"};
  Open({key});
  const auto admitted = Admit("user");
  ASSERT_TRUE(admitted.ok());
  EXPECT_TRUE((*admitted)->UseModel("small").ok());
  EXPECT_TRUE((*admitted)->UseModel("large@v2").ok());
  const auto refused = (*admitted)->UseModel("large");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
}

TEST_F(GateTest, PriorityAndSaltBelongToTheKey) {
  ApiKey key = Key("user");
  key.priority = 10;
  ApiKey other = Key("user2");
  Open({key, other});
  const auto one = *Admit("user");
  const auto two = *Admit("user2");
  EXPECT_EQ(one->PriorityFor(0), 10);
  EXPECT_EQ(one->PriorityFor(-100), 10) << "a client got before its key's priority";
  EXPECT_EQ(one->PriorityFor(5), 15);
  EXPECT_EQ(one->PriorityFor(std::numeric_limits<std::int32_t>::max()),
            std::numeric_limits<std::int32_t>::max());
  EXPECT_NE(one->CacheSaltFor("2"), two->CacheSaltFor(""));
  EXPECT_NE(one->CacheSaltFor("a"), one->CacheSaltFor("b"));
  EXPECT_EQ(one->CacheSaltFor("a"), (*Admit("user"))->CacheSaltFor("a"));
}

TEST_F(GateTest, SharesBelongToTheKeyUnlessAGatewayNamesATenant) {
  ApiKey plain = Key("plain");
  plain.weight = 5;
  ApiKey gateway = Key("gateway");
  gateway.gateway = true;
  Open({plain, gateway});
  const auto ask = [&](const std::string& name, std::string_view tenant, std::string_view weight) {
    return gate_->Admit({.key = "text-of-" + name, .tenant = tenant, .weight = weight}, &refusal_);
  };
  const auto own = *ask("plain", "somebody", "1000");
  EXPECT_EQ(own->tenant(), "plain") << "a key without the scope speaks for itself only";
  EXPECT_EQ(own->weight(), 5);
  const auto one = *ask("gateway", "one", "7");
  const auto two = *ask("gateway", "two", "");
  const auto itself = *ask("gateway", "", "7");
  EXPECT_EQ(one->weight(), 7);
  EXPECT_EQ(two->weight(), 1);
  EXPECT_EQ(itself->weight(), 1);
  EXPECT_NE(one->tenant(), two->tenant());
  EXPECT_NE(one->tenant(), "one") << "it may not pass for a key of this name";
  EXPECT_NE(one->CacheSaltFor("s"), two->CacheSaltFor("s"));
  EXPECT_EQ(one->key_name(), "gateway");
  // Neither sees what the other made, and what is left here to be done is done for the same.
  EXPECT_EQ(std::set({one->owner(), two->owner(), itself->owner(), own->owner()}).size(), 4U);
  for (const auto& who : {one, itself}) {
    const auto later = gate_->AdmitOwner(who->owner(), {}, &refusal_);
    ASSERT_TRUE(later.ok());
    EXPECT_EQ((*later)->tenant(), who->tenant());
    EXPECT_EQ((*later)->owner(), who->owner());
  }
  for (const char* const weight : {"0", "1001", "-1", "1.5", "many", "7 "}) {
    const auto refused = ask("gateway", "one", weight);
    ASSERT_FALSE(refused.ok()) << weight;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  }
  EXPECT_FALSE(ask("gateway", std::string(257, 'a'), "").ok());
}

TEST_F(GateTest, WithoutKeysATenantIsBelievedIfToldSo) {
  for (const bool trust : {false, true}) {
    GateOptions options;
    options.trust_tenants = trust;
    Gate gate(options, {}, nullptr, &clock_);
    const auto admitted = *gate.Admit({.tenant = "one", .weight = "3"}, &refusal_);
    EXPECT_EQ(admitted->tenant().empty(), !trust);
    EXPECT_EQ(admitted->weight(), trust ? 3 : 1);
    EXPECT_EQ(admitted->CacheSaltFor("s") == "s", !trust);
    EXPECT_EQ(admitted->owner() == "-", !trust);
    EXPECT_EQ((*gate.AdmitOwner(admitted->owner(), {}, &refusal_))->tenant(), admitted->tenant());
  }
}

TEST_F(GateTest, AnObjectiveIsAPriorityThatItsClientCannotImprove) {
  GateOptions options;
  options.objectives = {{"urgent", -10}, {"bulk", 10}};
  const auto priority = [&](std::string_view objective, std::int32_t asked) {
    Gate gate(options, {}, nullptr, &clock_);
    return (*gate.Admit({.objective = objective}, &refusal_))->PriorityFor(asked);
  };
  EXPECT_EQ(priority("urgent", 3), 3) << "nobody said that it may be believed";
  options.trust_tenants = true;
  EXPECT_EQ(priority("urgent", 3), -7);
  EXPECT_EQ(priority("urgent", -3), -10);
  EXPECT_EQ(priority("bulk", 0), 10);
  EXPECT_EQ(priority("unknown", -3), -3);
  EXPECT_EQ(priority("", -3), -3);
}

TEST_F(GateTest, RequestsPerMinuteComeBackWhenTheRefusalSays) {
  Open({Key("user", {.requests_per_minute = 2}), Key("other")});
  EXPECT_EQ(CodeOf("user"), Code{});
  EXPECT_EQ((*Admit("user"))->Limits().requests.remaining, 0);
  EXPECT_EQ(CodeOf("user"), Code::kResourceExhausted);
  EXPECT_EQ(refusal_.retry_after_ms, 30'000);
  EXPECT_EQ(refusal_.limits.requests.limit, 2);
  EXPECT_EQ(refusal_.limits.requests.remaining, 0);
  EXPECT_EQ(refusal_.limits.requests.reset_ms, 60'000);
  EXPECT_EQ(CodeOf("other"), Code{}) << "one key's limit met another";
  EXPECT_EQ(CodeOf("user", Scope::kAny), Code{}) << "an uncounted operation was counted";
  clock_.AdvanceMs(29'999);
  EXPECT_EQ(CodeOf("user"), Code::kResourceExhausted);
  EXPECT_EQ(refusal_.retry_after_ms, 1);
  clock_.AdvanceMs(1);
  EXPECT_EQ(CodeOf("user"), Code{});
}

TEST_F(GateTest, TokensAreReservedAndSettled) {
  Open({Key("user", {.tokens_per_minute = 600})});
  const auto first = *Admit("user");
  ASSERT_TRUE(first->Reserve(500, &refusal_).ok());
  EXPECT_EQ(first->Limits().tokens.remaining, 100);
  const auto second = *Admit("user");
  const auto refused = second->Reserve(200, &refusal_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(refusal_.retry_after_ms, 10'000);  // 100 tokens at 10 per second
  EXPECT_EQ(refusal_.limits.tokens.limit, 600);
  EXPECT_EQ(refusal_.limits.tokens.remaining, 100);
  first->Settle({.prompt_tokens = 40, .completion_tokens = 10});
  EXPECT_EQ(second->Limits().tokens.remaining, 550);
  EXPECT_TRUE(second->Reserve(200, &refusal_).ok());
}

TEST_F(GateTest, MoreThanWasReservedIsChargedToo) {
  Open({Key("user", {.tokens_per_minute = 600})});
  const auto admission = *Admit("user");
  ASSERT_TRUE(admission->Reserve(100, &refusal_).ok());
  admission->Settle({.prompt_tokens = 150, .completion_tokens = 50});
  EXPECT_EQ((*Admit("user"))->Limits().tokens.remaining, 400);
}

TEST_F(GateTest, PlacesAreGivenBackHoweverARequestEnds) {
  Open({Key("user", {.tokens_per_minute = 600, .max_concurrency = 2})});
  auto settled = *Admit("user");
  auto dropped = *Admit("user");
  ASSERT_TRUE(dropped->Reserve(300, &refusal_).ok());
  EXPECT_EQ(CodeOf("user"), Code::kResourceExhausted);
  EXPECT_GT(refusal_.retry_after_ms, 0);
  settled->Settle({});
  EXPECT_EQ(CodeOf("user"), Code{});
  dropped.reset();
  auto again = Admit("user");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->Limits().tokens.remaining, 600) << "a dropped reservation was not given back";
  auto more = Admit("user");
  EXPECT_TRUE(more.ok());
  ASSERT_EQ(ledger_->records.size(), 1U);  // only what began is recorded
  EXPECT_EQ(ledger_->records.front().usage.outcome, UsageOutcome::kFailed);
}

TEST_F(GateTest, NewKeysReplaceOldOnesAndAllowancesCarryOn) {
  Open({Key("user", {.requests_per_minute = 2}), Key("gone", {.requests_per_minute = 1})});
  EXPECT_EQ(CodeOf("user"), Code{});
  EXPECT_EQ(CodeOf("user"), Code{});
  EXPECT_EQ(CodeOf("gone"), Code{});
  gate_->SetKeys(*KeyTable::Make({Key("user", {.requests_per_minute = 3}), Key("new")}));
  EXPECT_EQ(CodeOf("user"), Code{}) << "the third of now three";
  EXPECT_EQ(CodeOf("user"), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf("gone"), Code::kUnauthenticated);
  EXPECT_EQ(CodeOf("new"), Code{});
  gate_->SetKeys(KeyTable());
  EXPECT_EQ(CodeOf("user"), Code::kUnauthenticated) << "an emptied file opened the server";
}

TEST_F(GateTest, WorkLeftHereRunsAsItsOwner) {
  Open({Key("alice", {.requests_per_minute = 1}), Key("bob")});
  const std::string alice = (**Admit("alice", Scope::kAny)).owner();
  EXPECT_EQ(alice, "name:alice");
  const auto admit = [&](const std::string& owner) {
    refusal_ = {};
    return gate_->AdmitOwner(owner, {.operation = "batch:/op", .request_id = "r"}, &refusal_);
  };
  {
    auto admitted = admit(alice);
    ASSERT_TRUE(admitted.ok());
    EXPECT_EQ((**admitted).key_name(), "alice");
    ASSERT_TRUE((**admitted).Reserve(1, &refusal_).ok());
    (**admitted).Settle({.prompt_tokens = 1});
  }
  EXPECT_EQ(ledger_->records.at(0).operation, "batch:/op");
  EXPECT_EQ(ledger_->records.at(0).key, "alice");
  EXPECT_EQ(admit(alice).error().code(), Code::kResourceExhausted);
  EXPECT_GT(refusal_.retry_after_ms, 0);
  EXPECT_EQ(admit("name:nobody").error().code(), Code::kUnauthenticated);
  EXPECT_EQ(admit("-").error().code(), Code::kUnauthenticated);
  auto left = KeyTable::Make({Key("bob")});
  ASSERT_TRUE(left.ok());
  gate_->SetKeys(*std::move(left));
  EXPECT_EQ(admit(alice).error().code(), Code::kUnauthenticated);
}

TEST_F(GateTest, AnOwnerIsANameOrForNumberedKeysTheirText) {
  const auto owner_of = [&](const std::vector<std::string>& texts, const std::string& text) {
    auto keys = KeysFromTexts(texts);
    EXPECT_TRUE(keys.ok());
    Open(*std::move(keys));
    auto admitted = gate_->Admit({.key = text, .scope = Scope::kAny}, &refusal_);
    EXPECT_TRUE(admitted.ok());
    return admitted.ok() ? (**admitted).owner() : "";
  };
  const std::string first = "text-of-the-first";
  const std::string second = "text-of-the-second";
  const std::string owner = owner_of({first, second}, second);
  EXPECT_EQ(owner_of({second}, second), owner) << "though it is key-1 now";
  EXPECT_NE(owner_of({first, second}, first), owner);
  EXPECT_EQ(owner.find(second), std::string::npos);
  Open({});
  EXPECT_EQ((**Admit("")).owner(), "-");
}

TEST_F(GateTest, AnAdmissionMayOutliveItsGate) {
  Open({Key("user", {.tokens_per_minute = 600})});
  auto admission = *Admit("user");
  ASSERT_TRUE(admission->Reserve(10, &refusal_).ok());
  gate_.reset();
  admission->Settle({.prompt_tokens = 1});
  EXPECT_EQ(ledger_->records.size(), 1U);
}

}  // namespace
}  // namespace inferd::tenant
