// SPDX-License-Identifier: Apache-2.0
// JSON by string assembly, for what is written per token. (Built as objects, one event costs a
// hundred times as much.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace inferd::api {

/// Appends `text` with JSON's escapes, without quotes. `text` is valid UTF-8; it goes through
/// unescaped.
void AppendEscaped(std::string_view text, std::string* out);
/// The same with quotes around it.
void AppendQuoted(std::string_view text, std::string* out);
void AppendInt(std::int64_t value, std::string* out);
/// A finite number in the shortest form that reads back as the same float; minus infinity and NaN,
/// which JSON lacks, as -9999.0.
void AppendLogprob(float value, std::string* out);

}  // namespace inferd::api
