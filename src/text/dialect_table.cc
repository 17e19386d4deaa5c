// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "text/dialect.h"
#include "text/white_space.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace inferd::text {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;
constexpr std::size_t kMaxEntries = 256;

const std::map<std::string, CallFormat, std::less<>> kFormats = {
    {"json", CallFormat::kJson},
    {"named", CallFormat::kNamed},
    {"tags", CallFormat::kTags},
    {"python", CallFormat::kPython},
    {"channels", CallFormat::kChannels},
};

/// Reads the keys of one entry; what it was not asked for is an unknown key. yaml-cpp throws; this
/// runs inside the one try block of ParseAll().
class Entry {
 public:
  Entry(std::string where, const YAML::Node& node) : where_(std::move(where)), node_(node) {}

  std::string Text(const char* key) {
    known_.emplace_back(key);
    const YAML::Node value = node_[key];
    return value.IsDefined() ? value.as<std::string>() : std::string();
  }
  bool Flag(const char* key) {
    known_.emplace_back(key);
    const YAML::Node value = node_[key];
    return value.IsDefined() && value.as<bool>();
  }
  std::vector<std::string> Texts(const char* key, std::vector<std::string> fallback = {}) {
    known_.emplace_back(key);
    const YAML::Node value = node_[key];
    return value.IsDefined() ? value.as<std::vector<std::string>>() : std::move(fallback);
  }
  TemplateMarks Marks() {
    known_.emplace_back("template");
    const YAML::Node value = node_["template"];
    return value.IsDefined() ? value.as<TemplateMarks>() : TemplateMarks();
  }
  Result<> CheckKeys() const {
    for (const auto& pair : node_) {
      const auto key = pair.first.as<std::string>();
      if (std::ranges::find(known_, key) == known_.end()) {
        return InvalidArgument("{}: key {} is not known", where_, key);
      }
    }
    return {};
  }
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  YAML::Node node_;
  std::vector<std::string> known_;
};

bool AnyEmpty(const std::vector<std::string>& texts) {
  return std::ranges::any_of(texts, [](const std::string& text) { return Trim(text).empty(); });
}

Result<> CheckCalls(const std::string& where, const CallDialect& calls) {
  const auto need = [&](const char* key, const std::string& value) -> Result<> {
    if (Trim(value).empty()) {
      return InvalidArgument("{}: {} is missing", where, key);
    }
    return {};
  };
  if (calls.format == CallFormat::kChannels) {
    return {};
  }
  if (calls.start.empty() || AnyEmpty(calls.start)) {
    return InvalidArgument("{}: start must be a list of markers", where);
  }
  if (calls.section_start.empty() != calls.section_end.empty()) {
    return InvalidArgument("{}: section_start and section_end need each other", where);
  }
  if (calls.format == CallFormat::kJson &&
      (AnyEmpty(calls.name_keys) || AnyEmpty(calls.argument_keys))) {
    return InvalidArgument("{}: name_keys and argument_keys must not be empty", where);
  }
  if (calls.format == CallFormat::kNamed) {
    INFERD_TRY(need("name_end", calls.name_end));
  }
  if (calls.format == CallFormat::kTags) {
    INFERD_TRY(need("key_start", calls.key_start));
    INFERD_TRY(need("key_end", calls.key_end));
    INFERD_TRY(need("value_end", calls.value_end));
    INFERD_TRY(need("end", calls.end));
  }
  return {};
}

Result<std::shared_ptr<const CallDialect>> ParseCalls(Entry entry) {
  auto calls = std::make_shared<CallDialect>();
  calls->name = entry.Text("name");
  calls->aliases = entry.Texts("aliases");
  calls->marks = entry.Marks();
  const std::string format = entry.Text("format");
  const auto known = kFormats.find(format);
  if (known == kFormats.end()) {
    return InvalidArgument(
        "{}: format \"{}\" is none of json, named, tags, python, channels", entry.where(), format);
  }
  calls->format = known->second;
  calls->section_start = entry.Text("section_start");
  calls->section_end = entry.Text("section_end");
  calls->one_per_section = entry.Flag("one_per_section");
  calls->start = entry.Texts("start");
  calls->end = entry.Text("end");
  calls->separator = entry.Text("separator");
  calls->bare = entry.Flag("bare");
  const std::string ids = entry.Text("ids");
  if (!ids.empty() && ids != "nine") {
    return InvalidArgument("{}: ids \"{}\" is not nine", entry.where(), ids);
  }
  calls->nine_character_ids = ids == "nine";
  calls->list = entry.Flag("list");
  calls->name_keys = entry.Texts("name_keys", calls->name_keys);
  calls->argument_keys = entry.Texts("argument_keys", calls->argument_keys);
  calls->name_prefix = entry.Text("name_prefix");
  calls->index_mark = entry.Text("index_mark");
  calls->id_mark = entry.Text("id_mark");
  calls->name_end = entry.Text("name_end");
  calls->arguments_end = entry.Text("arguments_end");
  calls->key_start = entry.Text("key_start");
  calls->key_end = entry.Text("key_end");
  calls->value_start = entry.Text("value_start");
  calls->value_end = entry.Text("value_end");
  INFERD_TRY(entry.CheckKeys());
  INFERD_TRY(CheckCalls(entry.where(), *calls));
  return std::shared_ptr<const CallDialect>(std::move(calls));
}

Result<std::shared_ptr<const ReasoningDialect>> ParseReasoning(Entry entry) {
  auto reasoning = std::make_shared<ReasoningDialect>();
  reasoning->name = entry.Text("name");
  reasoning->aliases = entry.Texts("aliases");
  reasoning->marks = entry.Marks();
  const std::string format = entry.Text("format");
  if (!format.empty() && format != "channels") {
    return InvalidArgument("{}: format \"{}\" is not channels", entry.where(), format);
  }
  reasoning->channels = format == "channels";
  reasoning->start = entry.Text("start");
  reasoning->end = entry.Text("end");
  INFERD_TRY(entry.CheckKeys());
  if (!reasoning->channels && (Trim(reasoning->start).empty() || Trim(reasoning->end).empty())) {
    return InvalidArgument("{}: start and end must not be empty", entry.where());
  }
  return std::shared_ptr<const ReasoningDialect>(std::move(reasoning));
}

template <class T>
Result<> ParseList(const YAML::Node& root,
                   const char* key,
                   Result<std::shared_ptr<const T>> (*parse)(Entry),
                   std::vector<std::shared_ptr<const T>>* out) {
  const YAML::Node list = root[key];
  if (!list.IsDefined()) {
    return {};
  }
  if (!list.IsSequence() || list.size() > kMaxEntries) {
    return InvalidArgument("{} must be a list of at most {} entries", key, kMaxEntries);
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", key, i);
    if (!list[i].IsMap() || !list[i]["name"].IsDefined()) {
      return InvalidArgument("{} must be a map with a name", at);
    }
    const std::string where = fmt::format("{} ({})", at, list[i]["name"].as<std::string>());
    INFERD_ASSIGN(auto entry, parse(Entry(where, list[i])));
    out->push_back(std::move(entry));
  }
  return {};
}

Result<> ParseAll(std::string_view yaml,
                  std::vector<std::shared_ptr<const CallDialect>>* calls,
                  std::vector<std::shared_ptr<const ReasoningDialect>>* reasoning) {
  if (yaml.size() > kMaxBytes) {
    return InvalidArgument("{} bytes of dialects are more than {}", yaml.size(), kMaxBytes);
  }
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    if (!root.IsMap()) {
      return InvalidArgument("dialects must be a map with calls and reasoning");
    }
    for (const auto& pair : root) {
      const auto key = pair.first.as<std::string>();
      if (key != "calls" && key != "reasoning") {
        return InvalidArgument("key {} is not known; calls and reasoning are", key);
      }
    }
    INFERD_TRY(ParseList(root, "calls", ParseCalls, calls));
    return ParseList(root, "reasoning", ParseReasoning, reasoning);
  } catch (const YAML::Exception& e) {
    return InvalidArgument("dialects are not valid YAML: {}", e.what());
  }
}

bool Shows(std::string_view chat_template, const TemplateMarks& marks) {
  return std::ranges::any_of(marks, [&](const std::vector<std::string>& all) {
    return !all.empty() && std::ranges::all_of(all, [&](const std::string& mark) {
      return chat_template.find(mark) != std::string_view::npos;
    });
  });
}

template <class T>
Result<std::shared_ptr<const T>> Choose(const std::vector<std::shared_ptr<const T>>& entries,
                                        std::string_view chat_template,
                                        std::string_view asked,
                                        std::string_view what) {
  if (asked == "none") {
    return std::shared_ptr<const T>();
  }
  const bool automatic = asked.empty() || asked == "auto";
  std::string names;
  for (const auto& entry : entries) {
    if (automatic ? Shows(chat_template, entry->marks)
                  : entry->name == asked ||
                        std::ranges::find(entry->aliases, asked) != entry->aliases.end()) {
      return entry;
    }
    names += ", " + entry->name;
  }
  if (!automatic) {
    return InvalidArgument(
        "there is no {} dialect `{}`; there are auto, none{}", what, asked, names);
  }
  return std::shared_ptr<const T>();
}

}  // namespace

std::vector<std::string> Dialect::Markers() const {
  std::vector<std::string> markers;
  const auto add = [&](std::string_view marker) {
    if (const std::string_view trimmed = Trim(marker); !trimmed.empty()) {
      markers.emplace_back(trimmed);
    }
  };
  if (channels()) {
    for (const std::string_view marker : harmony::kMarkers) {
      add(marker);
    }
  }
  if (reasoning != nullptr) {
    add(reasoning->start);
    add(reasoning->end);
  }
  if (calls != nullptr) {
    for (const std::string& start : calls->start) {
      add(start);
    }
    for (const auto* marker : {&calls->section_start,
                               &calls->section_end,
                               &calls->end,
                               &calls->name_prefix,
                               &calls->id_mark,
                               &calls->name_end,
                               &calls->arguments_end,
                               &calls->key_start,
                               &calls->key_end,
                               &calls->value_start,
                               &calls->value_end}) {
      add(*marker);
    }
  }
  return markers;
}

std::shared_ptr<const std::vector<bool>> MarkerTokens(const Tokenizer& tokenizer,
                                                      const Dialect& dialect) {
  const std::vector<std::string> markers = dialect.Markers();
  auto shown = std::make_shared<std::vector<bool>>(tokenizer.vocab_size(), false);
  bool any = false;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) {
      continue;
    }
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (!bytes.empty() && std::ranges::any_of(markers, [&](const std::string& marker) {
          return marker.find(bytes) != std::string::npos;
        })) {
      (*shown)[static_cast<std::size_t>(id)] = true;
      any = true;
    }
  }
  return any ? shown : nullptr;
}

Result<DialectTable> DialectTable::Load(std::string_view users) {
  DialectTable table;
  if (!users.empty()) {
    INFERD_TRY(ParseAll(users, &table.calls_, &table.reasoning_));
  }
  INFERD_TRY(ParseAll(BuiltInDialects(), &table.calls_, &table.reasoning_));
  return table;
}

Result<Dialect> DialectTable::Select(std::string_view chat_template,
                                     std::string_view calls,
                                     std::string_view reasoning) const {
  Dialect dialect;
  INFERD_ASSIGN(dialect.calls, Choose(calls_, chat_template, calls, "tool call"));
  INFERD_ASSIGN(dialect.reasoning, Choose(reasoning_, chat_template, reasoning, "reasoning"));
  return dialect;
}

}  // namespace inferd::text
