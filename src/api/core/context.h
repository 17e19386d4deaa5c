// SPDX-License-Identifier: Apache-2.0
// What every handler may look at, whatever its protocol.
#pragma once

#include "api/core/metrics.h"
#include "api/core/served_model.h"
#include "leader/inference_service.h"

#include <cstdint>

namespace inferd::api {

/// All of it is thread-safe and outlives every request.
struct ServerContext {
  const ServedModel& model;
  leader::InferenceService& service;
  Metrics& metrics;
  bool draining = false;
  std::int64_t arrived_ns = 0;  // of this request
};

}  // namespace inferd::api
