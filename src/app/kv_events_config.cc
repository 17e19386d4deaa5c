// SPDX-License-Identifier: Apache-2.0
#include "app/kv_events_config.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <cstddef>

namespace inferd::app {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMost = 10'000'000;
constexpr std::size_t kMaxTopicBytes = 1'024;

Result<> ReadInt(const std::string& key, const Json& value, std::int64_t least, std::int64_t* out) {
  if (!value.is_number_integer() || value < least || value > kMost) {
    return InvalidArgument("--kv-events-config: {} is {}; it must be a whole number from {} to {}",
                           key,
                           value.dump(),
                           least,
                           kMost);
  }
  *out = value.get<std::int64_t>();
  return {};
}

Result<> ReadText(const std::string& key, const Json& value, std::string* out) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > kMaxTopicBytes) {
    return InvalidArgument("--kv-events-config: {} is {}; it must be a text of at most {} bytes",
                           key,
                           value.dump(),
                           kMaxTopicBytes);
  }
  *out = value.get<std::string>();
  return {};
}

Result<> ReadEncoding(const Json& value, leader::KvEventsOptions* out) {
  if (value != "map" && value != "array") {
    return InvalidArgument(
        "--kv-events-config: encoding is {}; it must be \"map\", as vLLM has it since 0.24, or "
        "\"array\", as it had it before",
        value.dump());
  }
  out->array_events = value == "array";
  return {};
}

Result<> ReadKey(const std::string& key, const Json& value, leader::KvEventsOptions* out) {
  if (key == "enable_kv_cache_events" && value.is_boolean()) {
    out->enabled = value.get<bool>();
    return {};
  }
  if (key == "publisher" && (value == "zmq" || value == "null" || value.is_null())) {
    return {};
  }
  if (key == "endpoint") {
    return ReadText(key, value, &out->endpoint);
  }
  if (key == "replay_endpoint") {
    return value.is_null() ? Result<>() : ReadText(key, value, &out->replay_endpoint);
  }
  if (key == "topic") {
    return ReadText(key, value, &out->topic);
  }
  if (key == "encoding") {
    return ReadEncoding(value, out);
  }
  if (key == "buffer_steps") {
    return ReadInt(key, value, 0, &out->buffer_steps);
  }
  if (key == "hwm") {
    return ReadInt(key, value, 1, &out->hwm);
  }
  if (key == "max_queue_size") {
    return ReadInt(key, value, 1, &out->max_queue_size);
  }
  return InvalidArgument(
      "--kv-events-config: {} is {}; the keys are enable_kv_cache_events (true or false), "
      "publisher "
      "(\"zmq\" or \"null\"), endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, topic "
      "and encoding",
      key,
      value.dump());
}

}  // namespace

Result<leader::KvEventsOptions> ParseKvEventsConfig(const std::string& text,
                                                    std::int32_t num_replicas) {
  leader::KvEventsOptions options;
  if (text.empty()) {
    return options;
  }
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return InvalidArgument(
        "--kv-events-config is '{}'; give a JSON object such as "
        "{{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\"}}",
        text);
  }
  for (const auto& [key, value] : json.items()) {
    INFERD_TRY(ReadKey(key, value, &options));
  }
  options.enabled = options.enabled && json.value("publisher", Json()) != "null";
  for (const std::string* endpoint : {&options.endpoint, &options.replay_endpoint}) {
    if (!endpoint->empty() || endpoint == &options.endpoint) {
      INFERD_TRY(leader::KvEndpointOf(*endpoint, 0));
      INFERD_TRY(leader::KvEndpointOf(*endpoint, num_replicas - 1));
    }
  }
  return options;
}

}  // namespace inferd::app
