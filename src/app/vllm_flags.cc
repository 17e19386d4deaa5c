// SPDX-License-Identifier: Apache-2.0
#include "app/vllm_flags.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <utility>

namespace inferd::app {
namespace {

constexpr const char* kControlPortOfMaster = "7000";

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// -1 and .5 are values.
bool BeginsFlag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word[1] != '.' && !IsDigit(word[1]);
}

std::vector<std::string_view> WordsOf(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    words.push_back(text.substr(0, space));
    text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  }
  return words;
}

bool Names(const VllmFlag& flag, std::string_view name) {
  return std::ranges::any_of(WordsOf(flag.names), [&](std::string_view one) {
    return one == name || (one.ends_with('*') && name.starts_with(one.substr(0, one.size() - 1)));
  });
}

/// Null: no flag of vLLM's.
const VllmFlag* FirstRow(std::string_view name) {
  const auto flags = VllmFlags();
  const auto row =
      std::ranges::find_if(flags, [&](const VllmFlag& flag) { return Names(flag, name); });
  return row == flags.end() ? nullptr : &*row;
}

/// Never null for a name that has a first row.
const VllmFlag* RowFor(std::string_view name, std::string_view value) {
  const auto flags = VllmFlags();
  const auto row = std::ranges::find_if(flags, [&](const VllmFlag& flag) {
    return Names(flag, name) &&
           (flag.values.empty() || std::ranges::count(WordsOf(flag.values), value) > 0);
  });
  return row == flags.end() ? nullptr : &*row;
}

/// A word of the command line that begins with a dash.
struct AskedFlag {
  std::string full;  // without the value
  std::string name;  // of the table: without --no- and without the key after a dot
  bool has_key = false;
  bool negated = false;
  std::optional<std::string> value;  // after =
};

AskedFlag ParseFlagWord(const std::string& word) {
  AskedFlag asked;
  const std::size_t equals = word.find('=');
  asked.full = word.substr(0, equals);
  if (equals != std::string::npos) {
    asked.value = word.substr(equals + 1);
  }
  const std::size_t dot = asked.full.find('.');
  asked.has_key = dot != std::string::npos;
  asked.name = asked.full.substr(0, dot);
  if (asked.name.size() > 2 && asked.name.starts_with("-O") && IsDigit(asked.name[2])) {
    asked.value = asked.name.substr(2);  // -O3
    asked.name = asked.full = "-O";
  }
  if (asked.name.starts_with("--")) {
    std::ranges::replace(asked.name, '_', '-');
  }
  return asked;
}

/// a,b of ["a", "b"]; other texts stay.
std::string CommaList(const std::string& text) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array() ||
      !std::ranges::all_of(list, [](const nlohmann::json& item) { return item.is_string(); })) {
    return text;
  }
  std::string joined;
  for (const nlohmann::json& item : list) {
    joined += (joined.empty() ? "" : ",") + item.get<std::string>();
  }
  return joined;
}

class VllmTranslator {
 public:
  VllmTranslator(const std::vector<std::string>& words, const IsOwnFlag& is_own)
      : words_(words), is_own_(is_own) {}

  Result<VllmWords> Run() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_++];
      if (!BeginsFlag(word)) {
        out_.words.push_back(word);
        continue;
      }
      AskedFlag asked = ParseFlagWord(word);
      if (is_own_(asked.full)) {
        TakeOwn(asked, word);
        continue;
      }
      const VllmFlag* flag = FirstRow(asked.name);
      if (flag == nullptr && asked.name.starts_with("--no-")) {
        asked.name.erase(2, 3);
        asked.negated = true;
        flag = FirstRow(asked.name);
      }
      if (!IsMeant(asked, flag)) {
        out_.words.push_back(word);  // the parser says that it is unknown
        continue;
      }
      INFERD_TRY(TakeForeign(asked, *flag));
    }
    TakeMaster();
    return std::move(out_);
  }

 private:
  static bool IsMeant(const AskedFlag& asked, const VllmFlag* flag) {
    return flag != nullptr && (!asked.negated || flag->shape == FlagShape::kSwitch) &&
           (asked.has_key ? flag->shape == FlagShape::kJson : flag->fate != FlagFate::kOwn);
  }

  void TakeOwn(const AskedFlag& asked, const std::string& word) {
    const VllmFlag* const flag = asked.has_key ? nullptr : FirstRow(asked.name);
    has_leader_ = has_leader_ || asked.full == "--leader" || asked.full == "--cluster.leader";
    if (flag == nullptr || flag->shape != FlagShape::kJsonList) {
      out_.words.push_back(word);
    } else if (asked.value) {
      out_.words.push_back(asked.full + "=" + CommaList(*asked.value));
    } else {
      out_.words.push_back(word);
      if (at_ < words_.size() && words_[at_].starts_with('[')) {
        out_.words.push_back(CommaList(words_[at_++]));
      }
    }
  }

  Result<std::vector<std::string>> TakeValues(const AskedFlag& asked, FlagShape shape) {
    if (asked.value) {
      return std::vector{*asked.value};
    }
    std::vector<std::string> values;
    if (shape == FlagShape::kSwitch) {
      return values;
    }
    const std::size_t most = shape == FlagShape::kList ? words_.size() : 1;
    while (values.size() < most && at_ < words_.size() && !BeginsFlag(words_[at_])) {
      values.push_back(words_[at_++]);
    }
    if (values.empty() && shape != FlagShape::kOptional) {
      return InvalidArgument("{} needs a value", asked.full);
    }
    return values;
  }

  Result<> TakeForeign(AskedFlag asked, const VllmFlag& flag) {
    if (flag.fate == FlagFate::kOwn) {
      return InvalidArgument(
          "{}: give {} one JSON object with all its keys", asked.full, asked.name);
    }
    INFERD_ASSIGN(const std::vector<std::string> values, TakeValues(asked, flag.shape));
    const std::string value = values.empty() ? std::string() : values.front();
    if (flag.shape == FlagShape::kSwitch &&
        (value == "false" || value == "False" || value == "0")) {
      asked.negated = !asked.negated;
    }
    const VllmFlag& row = *RowFor(asked.name, value);
    switch (row.fate) {
      case FlagFate::kAlias:
        TakeAlias(asked, row, values);
        break;
      case FlagFate::kAnyway:
        if (asked.negated) {
          Warn(asked.full, row.text);
        }
        break;
      case FlagFate::kIgnored:
        Warn(asked.full, row.text);
        break;
      case FlagFate::kOwn:
      case FlagFate::kRefused:
        if (!asked.negated) {
          // Only a value that decides is shown: others may be secrets.
          return InvalidArgument(
              "{}{}: {}", asked.full, &row == &flag ? "" : " " + value, row.text);
        }
        break;
    }
    return {};
  }

  void TakeAlias(const AskedFlag& asked,
                 const VllmFlag& row,
                 const std::vector<std::string>& values) {
    if (asked.name == "--master-addr") {
      out_.master_address = values.front();
    } else if (asked.name == "--master-port") {
      out_.master_port = values.front();
    } else if (row.shape == FlagShape::kSwitch) {
      const bool is_no = row.text.starts_with("--no-");
      const std::string bare(row.text.substr(is_no ? 5 : 2));
      out_.words.push_back((is_no == asked.negated ? "--" : "--no-") + bare);
    } else {
      std::string list;
      for (const std::string& value : values) {
        list += (list.empty() ? "" : ",") + value;
      }
      out_.words.push_back(std::string(row.text) + "=" + list);
    }
  }

  void TakeMaster() {
    if (has_leader_ && !out_.master_address.empty()) {
      Warn("--master-addr", "--leader is given, too");
      out_.master_address.clear();
    } else if (out_.master_address.empty() && !out_.master_port.empty()) {
      Warn("--master-port", "it goes with --master-addr");
    }
    if (out_.master_port.empty()) {
      out_.master_port = kControlPortOfMaster;
    }
  }

  void Warn(const std::string& name, std::string_view why) {
    std::string text = fmt::format("{} has no effect: {}", name, why);
    if (std::ranges::count(out_.warnings, text) == 0) {
      out_.warnings.push_back(std::move(text));
    }
  }

  const std::vector<std::string>& words_;
  const IsOwnFlag& is_own_;
  std::size_t at_ = 0;  // the next word
  bool has_leader_ = false;
  VllmWords out_;
};

}  // namespace

std::vector<std::string> VllmFlagNames() {
  std::vector<std::string> names;
  for (const VllmFlag& flag : VllmFlags()) {
    for (const std::string_view name : WordsOf(flag.names)) {
      if (flag.fate != FlagFate::kRefused && !name.ends_with('*')) {
        names.emplace_back(name);
      }
    }
  }
  return names;
}

Result<VllmWords> TranslateVllmFlags(const std::vector<std::string>& words,
                                     const IsOwnFlag& is_own) {
  return VllmTranslator(words, is_own).Run();
}

std::string LeaderOfMaster(const VllmWords& vllm, std::int64_t node_rank) {
  const bool is_ipv6 = vllm.master_address.find(':') != std::string::npos;
  if (is_ipv6) {
    const bool has_brackets = vllm.master_address.starts_with('[');
    return (has_brackets ? vllm.master_address : "[" + vllm.master_address + "]") + ":" +
           vllm.master_port;
  }
  // The first host listens on all addresses, as with vLLM: its own name may not resolve yet.
  return (node_rank == 0 ? "0.0.0.0" : vllm.master_address) + ":" + vllm.master_port;
}

}  // namespace inferd::app
