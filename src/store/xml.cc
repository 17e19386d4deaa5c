// SPDX-License-Identifier: Apache-2.0
#include "store/xml.h"

#include "base/error.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

namespace inferd::store {
namespace {

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxName = 128;
constexpr std::uint32_t kMaxCodePoint = 0x10FFFF;

void AppendUtf8(std::uint32_t code, std::string* out) {
  const auto put = [out](std::uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0U | code >> 6U);
    put(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    put(0xE0U | code >> 12U);
    put(0x80U | (code >> 6U & 0x3FU));
    put(0x80U | (code & 0x3FU));
  } else {
    put(0xF0U | code >> 18U);
    put(0x80U | (code >> 12U & 0x3FU));
    put(0x80U | (code >> 6U & 0x3FU));
    put(0x80U | (code & 0x3FU));
  }
}

// What stands between & and ;. False if that is nothing known.
bool AppendEntity(std::string_view name, std::string* out) {
  constexpr std::pair<std::string_view, char> kNamed[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  for (const auto& [known, character] : kNamed) {
    if (name == known) {
      out->push_back(character);
      return true;
    }
  }
  if (name.size() < 2 || name.front() != '#') {
    return false;
  }
  const bool hex = name[1] == 'x';
  const std::string_view digits = name.substr(hex ? 2 : 1);
  std::uint32_t code = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (error != std::errc() || end != digits.data() + digits.size() || code == 0 || surrogate ||
      code > kMaxCodePoint) {
    return false;
  }
  AppendUtf8(code, out);
  return true;
}

std::string_view NameIn(std::string_view inside) {
  const auto end = std::ranges::find_if(
      inside, [](unsigned char c) { return std::isspace(c) != 0 || c == '/'; });
  std::string_view name = inside.substr(0, static_cast<std::size_t>(end - inside.begin()));
  const auto colon = name.rfind(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

}  // namespace

Error XmlReader::Malformed(std::string_view why) const {
  return InvalidArgument("{}: {} at byte {}", what_, why, at_);
}

Result<std::string> XmlReader::Resolved(std::string_view text) const {
  std::string resolved;
  while (!text.empty()) {
    const auto start = text.find('&');
    resolved.append(text.substr(0, start));
    if (start == std::string_view::npos) {
      break;
    }
    const auto end = text.find(';', start);
    if (end == std::string_view::npos ||
        !AppendEntity(text.substr(start + 1, end - start - 1), &resolved)) {
      return Malformed("unknown entity");
    }
    text.remove_prefix(end + 1);
  }
  return resolved;
}

Result<XmlToken> XmlReader::Close(std::string_view inside) {
  const std::string name(NameIn(inside));
  if (open_.empty() || open_.back() != name) {
    return Malformed("</" + name.substr(0, kMaxName) + "> closes nothing");
  }
  open_.pop_back();
  return XmlToken{XmlToken::Kind::kClose, name};
}

Result<XmlToken> XmlReader::Open(std::string_view inside) {
  const std::string name(NameIn(inside));
  if (name.empty() || name.size() > kMaxName) {
    return Malformed("an element without a name");
  }
  if (open_.size() >= kMaxDepth) {
    return Malformed("elements are nested too deep");
  }
  open_.push_back(name);
  close_next_ = inside.ends_with('/');
  return XmlToken{XmlToken::Kind::kOpen, name};
}

// At a '<'.
Result<XmlToken> XmlReader::Markup() {
  const std::string_view rest = xml_.substr(at_);
  constexpr std::string_view kData = "<![CDATA[";
  if (rest.starts_with(kData)) {
    const auto end = rest.find("]]>");
    if (end == std::string_view::npos) {
      return Malformed("CDATA has no end");
    }
    at_ += end + 3;
    return XmlToken{XmlToken::Kind::kText,
                    std::string(rest.substr(kData.size(), end - kData.size()))};
  }
  if (rest.starts_with("<!--") || rest.starts_with("<?")) {
    const std::string_view close = rest[1] == '?' ? "?>" : "-->";
    const auto end = rest.find(close, 2);
    if (end == std::string_view::npos) {
      return Malformed("a comment has no end");
    }
    at_ += end + close.size();
    return XmlToken{XmlToken::Kind::kText, ""};
  }
  if (rest.starts_with("<!")) {
    return Malformed("a document type is not taken");
  }
  const auto end = rest.find('>');
  if (end == std::string_view::npos) {
    return Malformed("an element has no end");
  }
  const std::string_view inside = rest.substr(1, end - 1);
  INFERD_ASSIGN(XmlToken token, inside.starts_with('/') ? Close(inside.substr(1)) : Open(inside));
  at_ += end + 1;
  return token;
}

Result<XmlToken> XmlReader::Next() {
  if (close_next_) {
    close_next_ = false;
    return Close(std::string(open_.back()));
  }
  while (at_ < xml_.size()) {
    if (xml_[at_] == '<') {
      INFERD_ASSIGN(XmlToken token, Markup());
      if (token.kind != XmlToken::Kind::kText || !token.text.empty()) {
        return token;
      }
      continue;
    }
    const auto end = std::min(xml_.find('<', at_), xml_.size());
    INFERD_ASSIGN(std::string text, Resolved(xml_.substr(at_, end - at_)));
    at_ = end;
    if (!open_.empty()) {
      return XmlToken{XmlToken::Kind::kText, std::move(text)};
    }
    if (text.find_first_not_of(" \t\r\n\xEF\xBB\xBF") != std::string::npos) {
      return Malformed("text outside of elements");
    }
  }
  if (!open_.empty()) {
    return Malformed("<" + open_.back() + "> is not closed");
  }
  return XmlToken{};
}

Result<std::string> XmlReader::Text() {
  const std::size_t depth = open_.size();
  std::string text;
  while (open_.size() >= depth) {
    INFERD_ASSIGN(const XmlToken token, Next());
    if (token.kind == XmlToken::Kind::kText && open_.size() == depth) {
      text += token.text;
    }
  }
  return text;
}

}  // namespace inferd::store
