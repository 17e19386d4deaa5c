// SPDX-License-Identifier: Apache-2.0
#include "leader/kv_events.h"

#include "leader/kv_event_recorder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace inferd::leader {
namespace {

using Json = nlohmann::ordered_json;

Json Decoded(const std::vector<KvEvent>& events, bool array) {
  return Json::from_msgpack(EncodeKvEvents({1.5, events}, 3, 32, array));
}

const std::vector<KvEvent> kOfEachKind = {
    KvAllCleared{},
    KvBlocksStored{{~std::uint64_t{0}, 7}, std::nullopt, {1, 2}, "salt"},
    KvBlocksStored{{8}, 7, {3}, "salt"},
    KvBlocksRemoved{{7, 8}},
};

TEST(KvEvents, MapsAsVllmWritesThem) {
  EXPECT_EQ(Decoded(kOfEachKind, false), Json::parse(R"([1.5, [
      {"type": "AllBlocksCleared"},
      {"type": "BlockStored", "block_hashes": [18446744073709551615, 7], "parent_block_hash": null,
       "token_ids": [1, 2], "block_size": 32, "lora_id": null, "medium": "GPU", "lora_name": null,
       "extra_keys": [["salt"], null], "group_idx": 0, "kv_cache_spec_kind": "full_attention"},
      {"type": "BlockStored", "block_hashes": [8], "parent_block_hash": 7,
       "token_ids": [3], "block_size": 32, "lora_id": null, "medium": "GPU", "lora_name": null,
       "extra_keys": [null], "group_idx": 0, "kv_cache_spec_kind": "full_attention"},
      {"type": "BlockRemoved", "block_hashes": [7, 8], "medium": "GPU", "group_idx": 0}], 3])"));
}

TEST(KvEvents, ArraysAsVllmWroteThem) {
  EXPECT_EQ(Decoded(kOfEachKind, true), Json::parse(R"([1.5, [
      ["AllBlocksCleared"],
      ["BlockStored", [18446744073709551615, 7], null, [1, 2], 32, null, "GPU", null],
      ["BlockStored", [8], 7, [3], 32, null, "GPU", null],
      ["BlockRemoved", [7, 8], "GPU"]], 3])"));
}

TEST(KvEvents, EachReplicaHasItsEndpoint) {
  EXPECT_EQ(*KvEndpointOf("tcp://*:5557", 0), "tcp://*:5557");
  EXPECT_EQ(*KvEndpointOf("tcp://*:5557", 2), "tcp://*:5559");
  EXPECT_EQ(*KvEndpointOf("tcp://[::1]:5557", 1), "tcp://[::1]:5558");
  EXPECT_EQ(*KvEndpointOf("tcp://127.0.0.1:*", 1), "tcp://127.0.0.1:*");
  EXPECT_EQ(*KvEndpointOf("ipc:///run/kv", 0), "ipc:///run/kv");
  EXPECT_EQ(*KvEndpointOf("ipc:///run/kv", 1), "ipc:///run/kv_dp1");
  for (const char* bad : {"",
                          "ipc://",
                          "tcp://",
                          "tcp://host",
                          "tcp://host:",
                          "tcp://host:x1",
                          "tcp://host:0",
                          "tcp://host:65536",
                          "inproc://x",
                          "5557"}) {
    EXPECT_FALSE(KvEndpointOf(bad, 0).ok()) << bad;
  }
  EXPECT_NE(KvEndpointOf("tcp://*:65535", 1).error().message().find("1 to 65534"),
            std::string::npos);
}

class Recorder {
 public:
  KvEventRecorder recorder{[this](KvEventBatch batch) {
    if (full) {
      return false;
    }
    taken.push_back(Json::from_msgpack(EncodeKvEvents(batch, 0, 2, true))[1]);
    return true;
  }};
  bool full = false;
  std::vector<Json> taken;

  void Store(std::uint64_t hash, std::optional<std::uint64_t> parent) {
    const std::vector<std::int32_t> tokens = {static_cast<std::int32_t>(hash), 0};
    recorder.OnStored({hash, parent}, tokens, "");
  }
};

Json Stored(const Json& hashes, const Json& parent, const Json& tokens) {
  return Json::array({"BlockStored", hashes, parent, tokens, 2, nullptr, "GPU", nullptr});
}

TEST(KvEventRecorder, BlocksThatFollowEachOtherAreOneEvent) {
  Recorder r;
  r.recorder.Flush();
  EXPECT_TRUE(r.taken.empty()) << "nothing has happened";
  r.Store(1, {});
  r.Store(2, 1);
  r.Store(5, 4);
  r.recorder.OnRemoved(1);
  r.recorder.OnRemoved(5);
  r.Store(6, 5);
  r.recorder.Flush();
  ASSERT_EQ(r.taken.size(), 1U);
  EXPECT_EQ(r.taken[0],
            Json::array({Stored({1, 2}, nullptr, {1, 0, 2, 0}),
                         Stored({5}, 4, {5, 0}),
                         Json::array({"BlockRemoved", {1, 5}, "GPU"}),
                         Stored({6}, 5, {6, 0})}));
}

TEST(KvEventRecorder, WhatSeveralGroupsHoldGoesWithTheLast) {
  Recorder r;
  r.Store(1, {});
  r.Store(1, {});
  r.recorder.OnRemoved(1);
  r.recorder.Flush();
  EXPECT_EQ(r.taken[0], Json::array({Stored({1}, nullptr, {1, 0})}));
  r.recorder.OnRemoved(1);
  r.recorder.OnRemoved(1);
  r.recorder.Flush();
  EXPECT_EQ(r.taken[1], Json::array({Json::array({"BlockRemoved", {1}, "GPU"})}));
}

TEST(KvEventRecorder, AfterALossTheNextBatchBeginsWithAClearing) {
  Recorder r;
  r.full = true;
  r.Store(1, {});
  r.recorder.Flush();
  r.Store(2, 1);
  r.recorder.Flush();
  r.full = false;
  r.recorder.OnRemoved(1);
  r.recorder.Flush();
  r.recorder.OnRemoved(2);
  r.recorder.Flush();
  EXPECT_EQ(r.recorder.num_dropped(), 2U);
  EXPECT_EQ(r.recorder.num_batches(), 2U);
  ASSERT_EQ(r.taken.size(), 2U);
  const Json cleared = Json::array({"AllBlocksCleared"});
  EXPECT_EQ(r.taken[0], Json::array({cleared, Json::array({"BlockRemoved", {1}, "GPU"})}));
  EXPECT_EQ(r.taken[1], Json::array({Json::array({"BlockRemoved", {2}, "GPU"})}));
}

TEST(KvEventRecorder, AfterALossTheClearingDoesNotWaitForAnEvent) {
  Recorder r;
  r.full = true;
  r.Store(1, {});
  r.recorder.Flush();
  r.recorder.Flush();
  EXPECT_EQ(r.recorder.num_dropped(), 1U) << "a second try loses nothing more";
  r.full = false;
  r.recorder.Flush();
  r.recorder.Flush();
  ASSERT_EQ(r.taken.size(), 1U);
  EXPECT_EQ(r.taken[0], Json::array({Json::array({"AllBlocksCleared"})}));
}

TEST(KvEventRecorder, AClearingUndoesWhatCameBefore) {
  Recorder r;
  r.Store(1, {});
  r.recorder.OnCleared();
  r.Store(1, {});
  r.recorder.Flush();
  EXPECT_EQ(r.taken[0],
            Json::array({Json::array({"AllBlocksCleared"}), Stored({1}, nullptr, {1, 0})}));
}

}  // namespace
}  // namespace inferd::leader
