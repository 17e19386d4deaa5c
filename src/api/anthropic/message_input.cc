// SPDX-License-Identifier: Apache-2.0
#include "api/anthropic/message_input.h"

#include "api/chat/chat_messages.h"
#include "api/core/limits.h"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

void AppendLine(const std::string& more, std::string* text) {
  if (!text->empty() && !more.empty()) {
    *text += '\n';
  }
  *text += more;
}

Error NotTaken(const std::string& path, const std::string& type, Fault* fault) {
  return FieldError(fault,
                    path + ".type",
                    "{}.type is `{}`, which this model does not take",
                    path,
                    type.substr(0, 50));
}

/// Calls visit(block fields, type, path) for each block of a list.
template <class F>
Result<> VisitBlocks(const Json& blocks, const std::string& path, Fault* fault, F&& visit) {
  if (!blocks.is_array()) {
    return FieldError(
        fault, path, "{} must be a string or a list of blocks, not {}", path, blocks.type_name());
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!blocks[i].is_object()) {
      return FieldError(fault, at, "{} must be an object, not {}", at, blocks[i].type_name());
    }
    const Fields block(blocks[i], fault, at + ".");
    INFERD_ASSIGN(const std::string type, block.NeededString("type"));
    INFERD_TRY(visit(block, type, at));
  }
  return {};
}

/// A string, or blocks of text only.
Result<std::string> TextOf(const Json& content, const std::string& path, Fault* fault) {
  if (content.is_string()) {
    return content.get<std::string>();
  }
  std::string text;
  INFERD_TRY(VisitBlocks(
      content,
      path,
      fault,
      [&](const Fields& block, const std::string& type, const std::string& at) -> Result<> {
        if (type != "text") {
          return NotTaken(at, type, fault);
        }
        INFERD_ASSIGN(const std::string piece, block.NeededString("text"));
        AppendLine(piece, &text);
        return {};
      }));
  return text;
}

/// Takes the turns of a conversation one by one.
class Conversation {
 public:
  explicit Conversation(Fault* fault) : fault_(fault) {}

  void AddText(const std::string& role, const std::string& text) {
    Json& message = MessageOf(role);
    AppendLine(text, message["content"].get_ptr<std::string*>());
  }

  Result<> AddUserBlocks(const Json& content, const std::string& path) {
    return VisitBlocks(
        content,
        path,
        fault_,
        [&](const Fields& block, const std::string& type, const std::string& at) -> Result<> {
          if (type == "text") {
            INFERD_ASSIGN(const std::string text, block.NeededString("text"));
            AddText("user", text);
            return {};
          }
          if (type != "tool_result") {
            return NotTaken(at, type, fault_);
          }
          INFERD_ASSIGN(std::string id, block.NeededString("tool_use_id"));
          std::string text;
          if (const Json* const result = block.Find("content")) {
            INFERD_ASSIGN(text, TextOf(*result, at + ".content", fault_));
          }
          Json message = {{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}};
          if (const auto name = names_.find(id); name != names_.end()) {
            message["name"] = *name;
          }
          messages_.push_back(std::move(message));
          return {};
        });
  }

  Result<> AddAssistantBlocks(const Json& content, const std::string& path) {
    AddText("assistant", "");
    return VisitBlocks(
        content,
        path,
        fault_,
        [&](const Fields& block, const std::string& type, const std::string& at) -> Result<> {
          Json& message = messages_.back();
          if (type == "text") {
            INFERD_ASSIGN(const std::string text, block.NeededString("text"));
            AddText("assistant", text);
          } else if (type == "thinking") {
            INFERD_ASSIGN(std::string thinking, block.NeededString("thinking"));
            SetReasoning(std::move(thinking), &message);
          } else if (type == "tool_use") {
            INFERD_TRY(AddCall(block, at, &message));
          } else if (type != "redacted_thinking") {  // which no one but its maker can read
            return NotTaken(at, type, fault_);
          }
          return {};
        });
  }

  Json Take() { return std::move(messages_); }

 private:
  /// The last message if it is of this role, else a new one.
  Json& MessageOf(const std::string& role) {
    if (messages_.empty() || messages_.back()["role"] != role) {
      messages_.push_back({{"role", role}, {"content", ""}});
    }
    return messages_.back();
  }

  Result<> AddCall(const Fields& block, const std::string& path, Json* message) {
    INFERD_ASSIGN(std::string id, block.NeededString("id"));
    INFERD_ASSIGN(std::string name, block.NeededString("name"));
    const Json* const input = block.Find("input");
    if (input == nullptr || !input->is_object()) {
      return FieldError(fault_, path + ".input", "{}.input must be an object", path);
    }
    names_[id] = name;
    (*message)["tool_calls"].push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", std::move(name)}, {"arguments", *input}}}});
    return {};
  }

  Fault* fault_;
  Json messages_ = Json::array();
  nlohmann::json names_ = nlohmann::json::object();  // of tools by the id of their call
};

}  // namespace

Result<Json> ReadAnthropicMessages(const Fields& fields) {
  Fault* const fault = fields.fault();
  INFERD_ASSIGN(const Json* const given, MessageList(fields));
  Conversation conversation(fault);
  if (const Json* const system = fields.Find("system")) {
    INFERD_ASSIGN(const std::string text, TextOf(*system, "system", fault));
    if (!text.empty()) {
      conversation.AddText("system", text);
    }
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    const Json& item = (*given)[i];
    if (!item.is_object()) {
      return FieldError(fault, path, "{} must be an object, not {}", path, item.type_name());
    }
    const Fields message(item, fault, path + ".");
    INFERD_ASSIGN(const auto role, message.String("role"));
    if (!role || (*role != "user" && *role != "assistant" && *role != "system")) {
      return FieldError(fault, path + ".role", "{}.role must be user, assistant or system", path);
    }
    const std::string at = path + ".content";
    const Json* const content = message.Find("content");
    if (content == nullptr) {
      return FieldError(fault, at, "{} is missing", at);
    }
    if (content->is_string() || *role == "system") {
      INFERD_ASSIGN(const std::string text, TextOf(*content, at, fault));
      conversation.AddText(*role, text);
    } else if (*role == "user") {
      INFERD_TRY(conversation.AddUserBlocks(*content, at));
    } else {
      INFERD_TRY(conversation.AddAssistantBlocks(*content, at));
    }
  }
  Json messages = conversation.Take();
  if (messages.empty()) {
    return FieldError(fault, "messages", "messages holds no text");
  }
  return messages;
}

}  // namespace inferd::api
