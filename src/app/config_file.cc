// SPDX-License-Identifier: Apache-2.0
// The settings as YAML: reading a file, printing the effective one. The only file of this room that
// knows yaml-cpp, which throws.
#include "app/settings.h"
#include "base/error.h"

#include <yaml-cpp/yaml.h>

#include <exception>
#include <map>

namespace inferd::app {
namespace {

std::string Quote(const std::string& text) {
  YAML::Emitter out;
  out.SetStringFormat(YAML::DoubleQuoted);
  out << text;
  return out.c_str();
}

struct AsYaml {
  std::string operator()(const std::string* value) const { return Quote(*value); }
  std::string operator()(const std::int64_t* value) const { return std::to_string(*value); }
  std::string operator()(const double* value) const { return fmt::format("{}", *value); }
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const std::vector<std::string>* value) const {
    std::string list;
    for (const auto& item : *value) {
      list += (list.empty() ? "" : ", ") + Quote(item);
    }
    return "[" + list + "]";
  }
  std::string operator()(const std::vector<std::int64_t>* value) const {
    std::string list;
    for (const auto item : *value) {
      list += (list.empty() ? "" : ", ") + std::to_string(item);
    }
    return "[" + list + "]";
  }
};

Result<> ApplyNode(const YAML::Node& node,
                   const std::string& path,
                   const std::string& file,
                   const std::map<std::string, const Setting*>& by_key) {
  const auto found = by_key.find(path);
  if (found != by_key.end()) {
    std::string text;
    if (node.IsSequence()) {
      for (const auto& item : node) {
        text += (text.empty() ? "" : ",") + item.as<std::string>();
      }
    } else if (node.IsScalar()) {
      text = node.as<std::string>();
    } else if (node.IsMap()) {
      return InvalidArgument("{}: {} must be a value, not a map", file, path);
    }
    return SetFromText(*found->second, file + ": " + path, text);
  }
  if (!node.IsMap()) {
    std::vector<std::string> names;
    for (const auto& [key, setting] : by_key) {
      names.push_back(key);
    }
    const std::string near = Nearest(path, names);
    return InvalidArgument(
        "{}: unknown key '{}'{}", file, path, near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    INFERD_TRY(ApplyNode(entry.second, path.empty() ? key : path + "." + key, file, by_key));
  }
  return {};
}

}  // namespace

std::string ToYaml(const Setting& setting) {
  if (setting.secret) {
    return std::holds_alternative<std::string*>(setting.value) ? "\"\"" : "[]";
  }
  return std::visit(AsYaml{}, setting.value);
}

Result<> ApplyYaml(const std::string& text,
                   const std::string& file,
                   const std::vector<Setting>& settings) {
  std::map<std::string, const Setting*> by_key;
  for (const Setting& setting : settings) {
    by_key.emplace(setting.key, &setting);
  }
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) {
      return {};
    }
    if (!root.IsMap()) {
      return InvalidArgument(
          "{}: the file must be a map of rooms, as `inferd --print-config` shows it", file);
    }
    return ApplyNode(root, "", file, by_key);
  } catch (const std::exception& error) {
    return InvalidArgument("{}: {}", file, error.what());
  }
}

std::string PrintConfig(const std::vector<Setting>& settings) {
  std::string out;
  std::string room;
  for (const Setting& setting : settings) {
    const std::size_t dot = setting.key.find('.');
    if (const std::string of = setting.key.substr(0, dot); of != room) {
      room = of;
      out += room + ":\n";
    }
    out += "  # " + setting.help + " (" + setting.flags.front() + ")\n";
    out += "  " + setting.key.substr(dot + 1) + ": " + ToYaml(setting) + "\n";
  }
  return out;
}

}  // namespace inferd::app
