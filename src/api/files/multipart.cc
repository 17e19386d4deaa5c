// SPDX-License-Identifier: Apache-2.0
#include "api/files/multipart.h"

#include "api/core/token_char.h"
#include "base/error.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace inferd::api {
namespace {

constexpr std::size_t kShownBytes = 80;
constexpr std::size_t kBoundaryBytes = 70;  // RFC 2046, 5.1.1

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

void SkipBlanks(std::string_view* text) {
  while (text->starts_with(' ') || text->starts_with('\t')) {
    text->remove_prefix(1);
  }
}

std::string_view TakeToken(std::string_view* text) {
  std::size_t size = 0;
  while (size < text->size() && IsTokenChar((*text)[size])) {
    ++size;
  }
  const std::string_view token = text->substr(0, size);
  text->remove_prefix(size);
  return token;
}

/// A token or a quoted string; a backslash escapes a quote or a backslash only, since browsers send
/// the backslashes of a path as they are.
std::optional<std::string> TakeValue(std::string_view* text) {
  if (!text->starts_with('"')) {
    const std::string_view token = TakeToken(text);
    return token.empty() ? std::nullopt : std::optional(std::string(token));
  }
  std::string value;
  for (std::size_t i = 1; i < text->size(); ++i) {
    char c = (*text)[i];
    if (c == '"') {
      text->remove_prefix(i + 1);
      return value;
    }
    if (c == '\\' && i + 1 < text->size() && ((*text)[i + 1] == '"' || (*text)[i + 1] == '\\')) {
      c = (*text)[++i];
    }
    value += c;
  }
  return std::nullopt;
}

struct Parameter {
  std::string_view name;
  std::string value;
};

/// ; name=value ... to the end of the text; nullopt when it is something else.
std::optional<std::vector<Parameter>> TakeParameters(std::string_view text) {
  std::vector<Parameter> parameters;
  for (SkipBlanks(&text); !text.empty(); SkipBlanks(&text)) {
    if (!text.starts_with(';')) {
      return std::nullopt;
    }
    text.remove_prefix(1);
    SkipBlanks(&text);
    const std::string_view name = TakeToken(&text);
    if (name.empty() || !text.starts_with('=')) {
      return std::nullopt;
    }
    text.remove_prefix(1);
    auto value = TakeValue(&text);
    if (!value) {
      return std::nullopt;
    }
    parameters.push_back({name, *std::move(value)});
  }
  return parameters;
}

bool IsBoundary(std::string_view text) {
  return !text.empty() && text.size() <= kBoundaryBytes && text.back() != ' ' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                  std::string_view("'()+_,-./:=? ").find(c) != std::string_view::npos;
         });
}

bool HasControls(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u == 0x7f || (u < 0x20 && c != '\t');
  });
}

/// How browsers write a quote or a line break into a name (WHATWG).
std::string Unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view three = text.substr(i, 3);
    if (three == "%22" || three == "%0D" || three == "%0A") {
      out += three == "%22" ? '"' : ' ';
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Result<> ReadDisposition(std::string_view value, FormPart* part) {
  const std::string_view type = TakeToken(&value);
  const auto parameters = TakeParameters(value);
  if (!EqualsIgnoringCase(type, "form-data") || !parameters) {
    return InvalidArgument(
        "a part's Content-Disposition must be: form-data; name=\"...\", with a filename for files");
  }
  bool named = false;
  for (const Parameter& parameter : *parameters) {
    const bool is_name = EqualsIgnoringCase(parameter.name, "name");
    const bool is_filename = EqualsIgnoringCase(parameter.name, "filename");
    if ((is_name && named) || (is_filename && part->filename)) {
      return InvalidArgument("a part's Content-Disposition has `{}` twice", parameter.name);
    }
    if (parameter.value.size() > kMultipartNameBytes) {
      return InvalidArgument("a part's `{}` is longer than {} bytes",
                             parameter.name.substr(0, 20),
                             kMultipartNameBytes);
    }
    if (is_name) {
      named = true;
      part->name = Unescaped(parameter.value);
    } else if (is_filename) {
      part->filename = Unescaped(parameter.value);
    }
  }
  if (part->name.empty()) {
    return InvalidArgument("a part's Content-Disposition has no name");
  }
  return {};
}

/// One header line of a part, without its line end.
Result<> ReadField(std::string_view line, bool* disposed, FormPart* part) {
  const std::size_t colon = line.find(':');
  std::string_view name = line.substr(0, colon);
  if (colon == std::string_view::npos || name.empty() ||
      !std::all_of(name.begin(), name.end(), IsTokenChar) || HasControls(line)) {
    return InvalidArgument("a part has a header line that is no `Name: value`");
  }
  std::string_view value = line.substr(colon + 1);
  SkipBlanks(&value);
  while (value.ends_with(' ') || value.ends_with('\t')) {
    value.remove_suffix(1);
  }
  if (EqualsIgnoringCase(name, "Content-Disposition")) {
    if (*disposed) {
      return InvalidArgument("a part has two Content-Disposition headers");
    }
    *disposed = true;
    return ReadDisposition(value, part);
  }
  if (EqualsIgnoringCase(name, "Content-Transfer-Encoding") && !EqualsIgnoringCase(value, "7bit") &&
      !EqualsIgnoringCase(value, "8bit") && !EqualsIgnoringCase(value, "binary")) {
    return InvalidArgument(
        "a part has the Content-Transfer-Encoding `{}`; form data is sent as it is, without one",
        Printable(value));
  }
  return {};
}

/// The header lines up to and with the empty one; moves `rest` behind them.
Result<> ReadHead(std::string_view* rest, FormPart* part) {
  bool disposed = false;
  const std::size_t limit = std::min(rest->size(), kMultipartHeadBytes);
  for (std::size_t at = 0;;) {
    const std::size_t end = rest->substr(0, limit).find("\r\n", at);
    if (end == std::string_view::npos) {
      return limit == kMultipartHeadBytes
                 ? InvalidArgument("the headers of a part are longer than {} bytes",
                                   kMultipartHeadBytes)
                 : InvalidArgument("the body ends within the headers of a part");
    }
    const std::string_view line = rest->substr(at, end - at);
    at = end + 2;
    if (line.empty()) {
      rest->remove_prefix(at);
      break;
    }
    INFERD_TRY(ReadField(line, &disposed, part));
  }
  if (!disposed) {
    return InvalidArgument("a part has no Content-Disposition header");
  }
  return {};
}

enum class Delimiter { kNext, kLast };

/// What stands behind a boundary: the line end before a part, or "--" and the end of the body.
Result<Delimiter> ReadDelimiter(std::string_view* rest) {
  const bool last = rest->starts_with("--");
  rest->remove_prefix(last ? 2 : 0);
  SkipBlanks(rest);
  if (last) {
    if (!rest->empty() && *rest != "\r\n") {
      return InvalidArgument("there is something behind the last boundary");
    }
    return Delimiter::kLast;
  }
  if (!rest->starts_with("\r\n")) {
    return InvalidArgument("a boundary is not followed by a line end; does the content have it?");
  }
  rest->remove_prefix(2);
  return Delimiter::kNext;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string shown(text.substr(0, kShownBytes));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < 0x20 || c == 0x7f; }, '?');
  return shown;
}

Result<std::string> MultipartBoundary(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  std::string_view trimmed = type;
  while (trimmed.ends_with(' ')) {
    trimmed.remove_suffix(1);
  }
  if (!EqualsIgnoringCase(trimmed, "multipart/form-data")) {
    return InvalidArgument("the Content-Type is '{}'; a file is sent as multipart/form-data",
                           Printable(trimmed));
  }
  const auto parameters = TakeParameters(content_type.substr(type.size()));
  if (!parameters) {
    return InvalidArgument("the parameters of the Content-Type cannot be read");
  }
  std::optional<std::string> boundary;
  for (const Parameter& parameter : *parameters) {
    if (EqualsIgnoringCase(parameter.name, "boundary")) {
      if (boundary) {
        return InvalidArgument("the Content-Type has two boundaries");
      }
      boundary = parameter.value;
    }
  }
  if (!boundary || !IsBoundary(*boundary)) {
    return InvalidArgument("the Content-Type needs a boundary of 1 to {} characters",
                           kBoundaryBytes);
  }
  return *std::move(boundary);
}

Result<std::vector<FormPart>> ParseMultipart(std::string_view body, std::string_view boundary) {
  const std::string delimiter = "\r\n--" + std::string(boundary);
  std::string_view rest = body;
  if (!rest.starts_with(std::string_view(delimiter).substr(2))) {
    return InvalidArgument("the body does not begin with the boundary of its Content-Type");
  }
  rest.remove_prefix(delimiter.size() - 2);
  std::vector<FormPart> parts;
  for (;;) {
    INFERD_ASSIGN(const Delimiter kind, ReadDelimiter(&rest));
    if (kind == Delimiter::kLast) {
      break;
    }
    if (parts.size() == kMultipartParts) {
      return InvalidArgument("the form has more than {} parts", kMultipartParts);
    }
    FormPart part;
    INFERD_TRY(ReadHead(&rest, &part));
    const std::size_t end = rest.find(delimiter);
    if (end == std::string_view::npos) {
      return InvalidArgument("the part `{}` has no end: its boundary is missing",
                             Printable(part.name));
    }
    part.data = rest.substr(0, end);
    rest.remove_prefix(end + delimiter.size());
    parts.push_back(std::move(part));
  }
  if (parts.empty()) {
    return InvalidArgument("the form has no parts");
  }
  return parts;
}

}  // namespace inferd::api
