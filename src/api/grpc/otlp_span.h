// SPDX-License-Identifier: Apache-2.0
// Spans in OpenTelemetry's messages: names of its conventions for generative models, and vLLM's
// beside them where they differ.
#pragma once

#include "api/core/request_span.h"
#include "otlp/trace.pb.h"

#include <string_view>

namespace inferd::api {

/// `random`: 24 bytes, for the trace (unless the caller has one) and the span.
void FillSpan(const RequestSpan& span, std::string_view random, otlp::Span* out);

/// Who sends: service.name, service.version, service.instance.id.
void FillResource(std::string_view service,
                  std::string_view version,
                  std::string_view instance,
                  otlp::Resource* out);

}  // namespace inferd::api
