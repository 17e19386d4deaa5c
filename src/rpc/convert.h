// SPDX-License-Identifier: Apache-2.0
// Between the plain structs and the generated protobuf types. Values from a peer are checked here,
// once: counts, ranges and missing parts end in kInvalidArgument, never in the engine.
#pragma once

#include "inferd/result.h"
#include "rpc/messages.h"

namespace inferd::v1 {
class FromWorker;
class ToWorker;
}  // namespace inferd::v1

namespace inferd::rpc {

void ToProto(const FromWorker& message, v1::FromWorker* proto);
void ToProto(const ToWorker& message, v1::ToWorker* proto);
Result<FromWorker> FromProto(const v1::FromWorker& proto);
Result<ToWorker> FromProto(const v1::ToWorker& proto);

}  // namespace inferd::rpc
