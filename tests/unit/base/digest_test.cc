// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

namespace inferd::base {
namespace {

std::string Of(DigestKind kind, std::string_view text, std::size_t piece) {
  auto digest = Digest::Make(kind);
  EXPECT_TRUE(digest.ok());
  for (std::size_t at = 0; at < text.size(); at += piece) {
    digest->Update(std::as_bytes(std::span(text.substr(at, piece))));
  }
  return ToHex(digest->Finish());
}

// The check values of the CRC catalogue, and of RFC 1321, 3174 and 6234.
TEST(Digest, KnownValues) {
  const std::string digits = "123456789";
  for (const std::size_t piece : {1U, 4U, 8U, 9U}) {
    EXPECT_EQ(Of(DigestKind::kCrc32, digits, piece), "cbf43926");
    EXPECT_EQ(Of(DigestKind::kCrc32c, digits, piece), "e3069283");
    EXPECT_EQ(Of(DigestKind::kCrc64Nvme, digits, piece), "ae8b14860a799888");
  }
  EXPECT_EQ(Of(DigestKind::kMd5, "abc", 2), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(Of(DigestKind::kSha1, "abc", 1), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(Of(DigestKind::kSha256, "abc", 3),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digest, PiecesDoNotMatter) {
  const std::string text(1000, 'x');
  for (const DigestKind kind : {DigestKind::kCrc32, DigestKind::kCrc64Nvme, DigestKind::kMd5}) {
    EXPECT_EQ(Of(kind, text, 1000), Of(kind, text, 13));
  }
}

TEST(Digest, BeginsAnewAfterFinish) {
  for (const DigestKind kind : {DigestKind::kCrc32c, DigestKind::kSha256}) {
    auto digest = *Digest::Make(kind);
    const std::string nothing = digest.Finish();
    digest.Update(std::as_bytes(std::span("abc", 3)));
    EXPECT_NE(digest.Finish(), nothing);
    EXPECT_EQ(digest.Finish(), nothing);
  }
}

TEST(Digest, Base64) {
  EXPECT_EQ(ToBase64("abc"), "YWJj");
  EXPECT_EQ(ToBase64("abcd"), "YWJjZA==");
}

}  // namespace
}  // namespace inferd::base
