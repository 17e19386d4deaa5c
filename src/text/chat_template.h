// SPDX-License-Identifier: Apache-2.0
// A model's chat template: messages to prompt text. Jinja as transformers configures it, in an
// interpreter that has no access to host objects, files or other templates.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct inferd_template;

namespace inferd::text {

/// Special token literals that templates refer to as bos_token, eos_token, ...; nullopt is
/// undefined in the template.
struct SpecialTokens {
  std::optional<std::string> bos = std::nullopt;
  std::optional<std::string> eos = std::nullopt;
  std::optional<std::string> pad = std::nullopt;
  std::optional<std::string> unk = std::nullopt;
};

struct RenderOptions {
  /// Seconds since 1970 that strftime_now formats (in local time); nullopt is the system's clock.
  std::optional<std::int64_t> now_s = std::nullopt;
};

/// Immutable and thread-safe. Render is bounded (1 million interpreter steps, 4 MiB of output) but
/// may take milliseconds: never call it on an I/O thread.
class ChatTemplate {
 public:
  /// InvalidArgument with line and reason for a template that does not parse or that reaches for
  /// dunder names.
  static Result<std::shared_ptr<const ChatTemplate>> Compile(std::string_view source,
                                                             const SpecialTokens& specials);

  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;
  ~ChatTemplate();

  /// `variables_json`: an object with what transformers passes: "messages", "tools" (absent or null
  /// if none), "documents", "add_generation_prompt", ... Key order is kept and visible to `tojson`.
  /// `kwargs_json`: the client's chat_template_kwargs, an object or empty. Its names become
  /// variables; a name that the server itself sets (messages, tools, add_generation_prompt,
  /// bos_token, ...) or that is a function of the template language is refused. InvalidArgument:
  /// malformed JSON, a refused name, the text the template gave to raise_exception, or an error in
  /// the template. ResourceExhausted: a limit was hit.
  Result<std::string> Render(std::string_view variables_json,
                             std::string_view kwargs_json = {},
                             RenderOptions options = {}) const;

  /// The template mentions a variable of this name (for example "tools", "enable_thinking").
  bool Mentions(std::string_view variable) const;

 private:
  ChatTemplate() = default;

  inferd_template* handle_ = nullptr;  // owned
};

}  // namespace inferd::text
