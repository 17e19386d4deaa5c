// SPDX-License-Identifier: Apache-2.0
#include "store/checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

namespace inferd::store {
namespace {

constexpr int kMaxParts = 10'000;
constexpr std::size_t kMd5Hex = 32;

// "DIGEST-7" has seven parts, "DIGEST" none; nullopt if it is neither.
std::optional<int> PartsOf(std::string_view text) {
  const auto dash = text.rfind('-');
  if (dash == std::string_view::npos) {
    return 0;
  }
  int parts = 0;
  const auto [end, error] =
      std::from_chars(text.data() + dash + 1, text.data() + text.size(), parts);
  if (error != std::errc() || end != text.data() + text.size() || parts < 1 || parts > kMaxParts) {
    return std::nullopt;
  }
  return parts;
}

std::optional<ObjectChecksum> FromEtag(const HttpAnswer& head) {
  std::string_view etag = head.Header("etag");
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  const std::string_view digest = etag.substr(0, etag.find('-'));
  const bool hex = std::ranges::all_of(
      digest, [](unsigned char c) { return std::isxdigit(c) != 0 && std::isupper(c) == 0; });
  const auto parts = PartsOf(etag);
  if (digest.size() != kMd5Hex || !hex || !parts ||
      head.Header("x-amz-server-side-encryption").starts_with("aws:kms") ||
      !head.Header("x-amz-server-side-encryption-customer-algorithm").empty()) {
    return std::nullopt;
  }
  return ObjectChecksum{base::DigestKind::kMd5, std::string(etag), true, *parts, 0};
}

}  // namespace

std::optional<ObjectChecksum> ChecksumOf(const HttpAnswer& head) {
  using base::DigestKind;
  for (const DigestKind kind : {DigestKind::kSha256,
                                DigestKind::kCrc64Nvme,
                                DigestKind::kCrc32c,
                                DigestKind::kCrc32,
                                DigestKind::kSha1}) {
    const std::string_view value =
        head.Header(fmt::format("x-amz-checksum-{}", base::DigestName(kind)));
    if (const auto parts = PartsOf(value); !value.empty() && parts) {
      return ObjectChecksum{kind, std::string(value), false, *parts, 0};
    }
  }
  return FromEtag(head);
}

Result<ObjectHasher> ObjectHasher::Make(const ObjectChecksum& checksum) {
  INFERD_ASSIGN(base::Digest part, base::Digest::Make(checksum.kind));
  INFERD_ASSIGN(base::Digest whole, base::Digest::Make(checksum.kind));
  ObjectHasher hasher(checksum, std::move(part), std::move(whole));
  hasher.left_ = checksum.part_bytes;
  return hasher;
}

void ObjectHasher::EndPart() {
  const std::string digest = part_.Finish();
  whole_.Update(std::as_bytes(std::span(digest)));
  left_ = checksum_.part_bytes;
  ++parts_;
}

void ObjectHasher::Update(std::span<const std::byte> data) {
  if (checksum_.parts == 0) {
    part_.Update(data);
    return;
  }
  while (!data.empty()) {
    const auto now = std::min(data.size(), static_cast<std::size_t>(left_));
    part_.Update(data.first(now));
    data = data.subspan(now);
    left_ -= static_cast<std::int64_t>(now);
    if (left_ == 0) {
      EndPart();
    }
  }
}

std::string ObjectHasher::Finish() {
  if (checksum_.parts > 0 && left_ < checksum_.part_bytes) {
    EndPart();
  }
  const std::string digest = checksum_.parts > 0 ? whole_.Finish() : part_.Finish();
  const std::string text = checksum_.hex ? base::ToHex(digest) : base::ToBase64(digest);
  return checksum_.parts > 0 ? fmt::format("{}-{}", text, parts_) : text;
}

}  // namespace inferd::store
