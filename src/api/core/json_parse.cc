// SPDX-License-Identifier: Apache-2.0
#include "api/core/json_parse.h"

#include "api/core/limits.h"
#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

/// Builds the document and keeps the limits on the way, before anything large exists. Methods
/// answer false to stop.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(Json* root) : root_(root) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return Stop("binary values are not JSON"); }

  bool start_object(std::size_t /*size*/) override { return Open(Json::object()); }
  bool start_array(std::size_t /*size*/) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Frame& frame = stack_.back();
    frame.key = std::move(name);
    if (frame.keys.size() >= limits::kJsonKeysPerObject) {
      return Stop(fmt::format("an object has more than {} keys", limits::kJsonKeysPerObject));
    }
    if (!frame.keys.insert(frame.key).second) {
      return Stop("the key appears twice in one object");
    }
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& /*last_token*/,
                   const nlohmann::json::exception& exception) override {
    // out_of_range.406 is a number no double can hold; all others are syntax or UTF-8.
    return Stop(exception.id == 406 ? "the number is out of range"
                                    : fmt::format("malformed JSON at byte {}", position));
  }

  const std::string& why() const { return why_; }

  /// "messages[0].content": where the builder stands.
  std::string Path() const {
    std::string path;
    for (const Frame& frame : stack_) {
      if (frame.node->is_array()) {
        path += fmt::format("[{}]", frame.node->size());
      } else if (!frame.key.empty()) {
        path += path.empty() ? frame.key : "." + frame.key;
      }
    }
    return path.size() <= 200 ? path : "";
  }

 private:
  struct Frame {
    Json* node;  // stable: a parent gets no further element while a child is open
    std::string key;
    std::unordered_set<std::string> keys;
  };

  bool Stop(std::string why) {
    if (why_.empty()) {
      why_ = std::move(why);
    }
    return false;
  }

  Json* Place(Json value) {
    if (++values_ > limits::kJsonValues) {
      Stop(fmt::format("the body has more than {} values", limits::kJsonValues));
      return nullptr;
    }
    if (stack_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    Frame& frame = stack_.back();
    if (frame.node->is_array()) {
      auto& items = frame.node->get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    auto& members =
        frame.node->get_ref<Json::object_t&>();  // a vector of pairs: append, known to be new
    members.Container::emplace_back(frame.key, std::move(value));
    return &members.back().second;
  }

  bool Add(Json value) { return Place(std::move(value)) != nullptr; }

  bool Open(Json container) {
    if (stack_.size() >= limits::kJsonDepth) {
      return Stop(fmt::format("the body nests deeper than {} levels", limits::kJsonDepth));
    }
    Json* const node = Place(std::move(container));
    if (node == nullptr) {
      return false;
    }
    stack_.push_back({node, {}, {}});
    return true;
  }

  bool Close() {
    stack_.pop_back();
    return true;
  }

  Json* root_;
  std::vector<Frame> stack_;
  std::size_t values_ = 0;
  std::string why_;
};

}  // namespace

Result<nlohmann::ordered_json> ParseJsonObject(std::string_view body, Fault* fault) {
  Json root;
  Builder builder(&root);
  if (!Json::sax_parse(body.begin(), body.end(), &builder)) {
    fault->param = builder.Path();
    return InvalidArgument("The request body is not valid: {}", builder.why());
  }
  if (!root.is_object()) {
    return InvalidArgument("The request body must be a JSON object");
  }
  return root;
}

}  // namespace inferd::api
