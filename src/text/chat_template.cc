// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include "text/rust_call.h"

#include <nlohmann/json.hpp>

namespace inferd::text {

ChatTemplate::~ChatTemplate() { inferd_template_free(handle_); }

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::Compile(std::string_view source,
                                                                  const SpecialTokens& specials) {
  nlohmann::json variables = nlohmann::json::object();
  const auto set = [&](const char* name, const std::optional<std::string>& value) {
    if (value.has_value()) {
      variables[name] = *value;
    }
  };
  set("bos_token", specials.bos);
  set("eos_token", specials.eos);
  set("pad_token", specials.pad);
  set("unk_token", specials.unk);
  // A vocabulary may hold tokens that are not UTF-8; `replace` keeps dump() from throwing.
  const std::string specials_json =
      variables.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);

  std::shared_ptr<ChatTemplate> chat_template(new ChatTemplate());
  RustBuffer error;
  INFERD_TRY(
      ToResult(inferd_template_compile(
                   ToBytes(source), ToBytes(specials_json), &chat_template->handle_, error.out()),
               error));
  return std::shared_ptr<const ChatTemplate>(std::move(chat_template));
}

Result<std::string> ChatTemplate::Render(std::string_view variables_json,
                                         std::string_view kwargs_json,
                                         RenderOptions options) const {
  RustBuffer text;
  RustBuffer error;
  INFERD_TRY(ToResult(inferd_template_render(handle_,
                                             ToBytes(variables_json),
                                             ToBytes(kwargs_json),
                                             options.now_s.value_or(-1),
                                             text.out(),
                                             error.out()),
                      error));
  return text.ToString();
}

bool ChatTemplate::Mentions(std::string_view variable) const {
  return inferd_template_mentions(handle_, ToBytes(variable)) != 0;
}

}  // namespace inferd::text
