// SPDX-License-Identifier: Apache-2.0
// A request of the gRPC API as the JSON object that it stands for, so that one set of parsers,
// limits and messages serves both (core/fields.h).
#pragma once

#include "api/core/error_map.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

namespace google::protobuf {
class Message;
}

namespace inferd::api {

/// Fields that are set, under their own names or those of the option `as`
/// (inferd/v1/options.proto); order of declaration. Refuses numbers that JSON has not (NaN), JSON
/// text that is none, and two fields that stand for the same one.
Result<nlohmann::ordered_json> ToJson(const google::protobuf::Message& message, Fault* fault);

}  // namespace inferd::api
