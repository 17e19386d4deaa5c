// SPDX-License-Identifier: Apache-2.0
#include "leader/kv_events.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <string_view>

namespace inferd::leader {
namespace {

using Json = nlohmann::ordered_json;  // the type stands first

/// vLLM's word for the memory that the model computes in, whatever the device.
constexpr const char* kMedium = "GPU";
constexpr int kMaxPort = 65'535;

Json Stored(const KvBlocksStored& event, std::int32_t page_tokens, bool array) {
  const Json parent = event.parent ? Json(*event.parent) : Json();
  if (array) {
    return Json::array({"BlockStored",
                        event.hashes,
                        parent,
                        event.tokens,
                        page_tokens,
                        nullptr,
                        kMedium,
                        nullptr});
  }
  Json extra = Json::array();
  for (std::size_t i = 0; i < event.hashes.size(); ++i) {
    const bool salted = i == 0 && !event.parent && !event.salt.empty();
    extra.push_back(salted ? Json::array({event.salt}) : Json());
  }
  Json json;
  json["type"] = "BlockStored";
  json["block_hashes"] = event.hashes;
  json["parent_block_hash"] = parent;
  json["token_ids"] = event.tokens;
  json["block_size"] = page_tokens;
  json["lora_id"] = nullptr;
  json["medium"] = kMedium;
  json["lora_name"] = nullptr;
  json["extra_keys"] = std::move(extra);
  json["group_idx"] = 0;
  json["kv_cache_spec_kind"] = "full_attention";
  return json;
}

Json Removed(const KvBlocksRemoved& event, bool array) {
  if (array) {
    return Json::array({"BlockRemoved", event.hashes, kMedium});
  }
  Json json;
  json["type"] = "BlockRemoved";
  json["block_hashes"] = event.hashes;
  json["medium"] = kMedium;
  json["group_idx"] = 0;
  return json;
}

Json Cleared(bool array) {
  if (array) {
    return Json::array({"AllBlocksCleared"});
  }
  Json json;
  json["type"] = "AllBlocksCleared";
  return json;
}

}  // namespace

std::vector<std::uint8_t> EncodeKvEvents(const KvEventBatch& batch,
                                         std::int32_t replica,
                                         std::int32_t page_tokens,
                                         bool array_events) {
  Json events = Json::array();
  for (const KvEvent& event : batch.events) {
    if (const auto* stored = std::get_if<KvBlocksStored>(&event)) {
      events.push_back(Stored(*stored, page_tokens, array_events));
    } else if (const auto* removed = std::get_if<KvBlocksRemoved>(&event)) {
      events.push_back(Removed(*removed, array_events));
    } else {
      events.push_back(Cleared(array_events));
    }
  }
  Json message = Json::array();
  message.push_back(batch.unix_seconds);
  message.push_back(std::move(events));
  message.push_back(replica);
  return Json::to_msgpack(message);
}

Result<std::string> KvEndpointOf(const std::string& endpoint, std::int32_t replica) {
  const std::string suffix = "_dp" + std::to_string(replica);
  if (endpoint.starts_with("ipc://") && endpoint.size() > 6) {
    return replica == 0 ? endpoint : endpoint + suffix;
  }
  const std::size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with("tcp://") || colon < 7 || colon == std::string::npos) {
    return InvalidArgument(
        "--kv-events-config: '{}' is no address; give tcp://*:PORT, tcp://HOST:PORT or ipc://PATH",
        endpoint);
  }
  const std::string_view text = std::string_view(endpoint).substr(colon + 1);
  if (text == "*") {
    return endpoint;  // the system gives each its own
  }
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 1 ||
      port + replica > kMaxPort) {
    return InvalidArgument(
        "--kv-events-config: '{}' has the port '{}' for replica {}; give one from 1 to {}",
        endpoint,
        text,
        replica,
        kMaxPort - replica);
  }
  return endpoint.substr(0, colon + 1) + std::to_string(port + replica);
}

}  // namespace inferd::leader
