// SPDX-License-Identifier: Apache-2.0
// POST /v1/files: multipart/form-data with `file`, `purpose` and maybe `expires_after`.
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/files/endpoints.h"
#include "api/files/file_access.h"
#include "api/files/multipart.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <utility>

namespace inferd::api {
namespace {

/// What is between the last slash and the end, without control characters: it is shown, never
/// opened.
std::string ShownName(std::string_view filename) {
  filename = filename.substr(filename.find_last_of("/\\") + 1);
  std::string shown;
  for (const char c : filename.substr(0, limits::kFilenameBytes)) {
    const auto u = static_cast<unsigned char>(c);
    shown += u < 0x20 || u == 0x7f ? '_' : c;
  }
  // As UTF-8, whatever it was.
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  shown = nlohmann::json::parse(nlohmann::json(shown).dump(-1, ' ', false, kReplace))
              .get<std::string>();
  return shown.empty() ? "file" : shown;
}

/// The part of that name, null when there is none; twice is an error.
Result<const FormPart*> PartOf(const std::vector<FormPart>& parts,
                               std::string_view name,
                               Fault* fault) {
  const FormPart* found = nullptr;
  for (const FormPart& part : parts) {
    if (part.name == name) {
      if (found != nullptr) {
        return FieldError(fault, std::string(name), "the form has the part `{}` twice", name);
      }
      found = &part;
    }
  }
  return found;
}

Result<const FormPart*> NeededPart(const std::vector<FormPart>& parts,
                                   std::string_view name,
                                   Fault* fault) {
  INFERD_ASSIGN(const FormPart* const part, PartOf(parts, name, fault));
  if (part == nullptr) {
    fault->code = "missing_required_parameter";
    return FieldError(fault, std::string(name), "the form has no part `{}`", name);
  }
  return part;
}

/// Seconds, 0: for ever.
Result<std::int64_t> ReadExpiry(const std::vector<FormPart>& parts, Fault* fault) {
  const IntLimit& limit = limits::kExpirySeconds;
  INFERD_ASSIGN(const FormPart* const anchor, PartOf(parts, "expires_after[anchor]", fault));
  INFERD_ASSIGN(const FormPart* const seconds, PartOf(parts, limit.name, fault));
  if (anchor != nullptr && anchor->data != "created_at") {
    return FieldError(fault, anchor->name, "expires_after[anchor] must be created_at");
  }
  if (seconds == nullptr) {
    return anchor == nullptr
               ? Result<std::int64_t>(0)
               : FieldError(fault, std::string(limit.name), "expires_after needs its seconds");
  }
  const std::string_view text = seconds->data;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < limit.min ||
      value > limit.max) {
    return FieldError(fault,
                      std::string(limit.name),
                      "expires_after[seconds] must be an integer from {} to {}",
                      limit.min,
                      limit.max);
  }
  return value;
}

}  // namespace

Result<Outcome> UploadFile(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(FileStore* const store, NeedFiles(context, fault));
  fault->code = "invalid_multipart";
  INFERD_ASSIGN(const std::string boundary, MultipartBoundary(request.content_type));
  INFERD_ASSIGN(const std::vector<FormPart> parts, ParseMultipart(request.body, boundary));
  fault->code.clear();
  INFERD_ASSIGN(const FormPart* const purpose, NeededPart(parts, "purpose", fault));
  if (purpose->data != "batch") {
    return FieldError(fault,
                      "purpose",
                      "purpose is '{}'; this server keeps files for `batch` only",
                      Printable(purpose->data));
  }
  INFERD_ASSIGN(const std::int64_t expiry_s, ReadExpiry(parts, fault));
  INFERD_ASSIGN(const FormPart* const file, NeededPart(parts, "file", fault));
  if (!file->filename) {
    return FieldError(fault, "file", "the part `file` has no filename; send it as a file");
  }
  if (file->data.empty()) {
    return FieldError(fault, "file", "the file is empty");
  }
  const auto limit = static_cast<std::size_t>(store->options().max_file_bytes);
  if (file->data.size() > limit) {
    fault->code = "file_too_large";
    return FieldError(fault,
                      "file",
                      "the file has {} bytes; this server takes at most {} (--max-file-bytes)",
                      file->data.size(),
                      limit);
  }
  FileRecord record;
  record.owner = OwnerOf(context);
  record.filename = ShownName(*file->filename);
  record.purpose = "batch";
  record.created_at = UnixNow();
  record.expires_at = expiry_s == 0 ? 0 : record.created_at + expiry_s;
  auto added = store->Add(std::move(record), file->data);
  if (!added.ok()) {
    fault->code = added.error().code() == Code::kFailedPrecondition ? "storage_limit_exceeded" : "";
    return added.error();
  }
  HttpResponse response;
  response.body = FileObject(*added).dump();
  return Outcome(std::move(response));
}

}  // namespace inferd::api
