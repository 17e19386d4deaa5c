// SPDX-License-Identifier: Apache-2.0
#include "store/part_file.h"

#include "store/checksum.h"
#include "store/range_set.h"
#include "unit/store/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <thread>

namespace inferd::store {
namespace {

using testing::ElementsAre;

TEST(RangeSet, MergesAndFindsGaps) {
  RangeSet set;
  set.Add({10, 20});
  set.Add({30, 40});
  set.Add({5, 5});
  EXPECT_EQ(set.size(), 2U);
  EXPECT_THAT(set.Missing({0, 50}),
              ElementsAre(ByteRange{0, 10}, ByteRange{20, 30}, ByteRange{40, 50}));
  EXPECT_THAT(set.Missing({12, 35}), ElementsAre(ByteRange{20, 30}));
  EXPECT_EQ(set.EndFrom(10), 20);
  EXPECT_EQ(set.EndFrom(20), 20);
  EXPECT_EQ(set.EndFrom(35), 40);
  set.Add({20, 30});
  EXPECT_EQ(set.size(), 1U);
  EXPECT_TRUE(set.Contains({10, 40}));
  EXPECT_FALSE(set.Contains({9, 12}));
  EXPECT_EQ(set.Total(), 30);
}

TEST(RangeSet, LikeABitmap) {
  std::mt19937 random(1);
  constexpr std::int64_t kSize = 64;
  for (int round = 0; round < 300; ++round) {
    RangeSet set;
    std::vector<bool> bits(kSize);
    for (int i = 0; i < 8; ++i) {
      const std::int64_t begin = random() % kSize;
      const std::int64_t end = begin + random() % (kSize - begin + 1);
      set.Add({begin, end});
      std::fill(bits.begin() + begin, bits.begin() + end, true);
    }
    EXPECT_EQ(set.Total(), std::count(bits.begin(), bits.end(), true));
    std::vector<bool> missing(kSize);
    for (const ByteRange& range : set.Missing({0, kSize})) {
      ASSERT_LT(range.begin, range.end);
      std::fill(missing.begin() + range.begin, missing.begin() + range.end, true);
    }
    missing.flip();
    EXPECT_EQ(missing, bits);
  }
}

TEST(RangeSet, CutsAtMultiples) {
  EXPECT_THAT(CutRanges({{3, 10}, {12, 13}}, 4),
              ElementsAre(ByteRange{3, 4}, ByteRange{4, 8}, ByteRange{8, 10}, ByteRange{12, 13}));
}

class PartFileTest : public testing::Test {
 protected:
  std::unique_ptr<PartFile> Open(std::int64_t size, std::string_view tag) {
    auto part = PartFile::Open(dir_.path() + "/f", size, tag);
    EXPECT_TRUE(part.ok());
    return *std::move(part);
  }
  TempDir dir_;
};

TEST_F(PartFileTest, RemembersWhatIsThere) {
  {
    const auto part = Open(10, "\"a\"");
    EXPECT_THAT(part->Missing(), ElementsAre(ByteRange{0, 10}));
    ASSERT_TRUE(part->Write(4, "efgh").ok());
    ASSERT_TRUE(part->Record({4, 7}).ok());  // one written byte is not recorded
  }
  const auto part = Open(10, "\"a\"");
  EXPECT_THAT(part->Missing(), ElementsAre(ByteRange{0, 4}, ByteRange{7, 10}));
  ASSERT_TRUE(part->Write(0, "abcd").ok());
  ASSERT_TRUE(part->Record({0, 4}).ok());
  ASSERT_TRUE(part->Write(7, "hij").ok());
  ASSERT_TRUE(part->Record({7, 10}).ok());
  ASSERT_TRUE(part->Finish().ok());
  EXPECT_EQ(*base::ReadFile(dir_.path() + "/f", 100), "abcdefghij");
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/f.part"));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/f.part.ranges"));
}

TEST_F(PartFileTest, ForgetsAnotherObject) {
  ASSERT_TRUE(Open(10, "\"a\"")->Record({0, 5}).ok());
  EXPECT_EQ(Open(10, "\"b\"")->have(), 0);
  ASSERT_TRUE(Open(10, "\"b\"")->Record({0, 5}).ok());
  EXPECT_EQ(Open(11, "\"b\"")->have(), 0);
  ASSERT_TRUE(Open(11, "\"b\"")->Record({0, 5}).ok());
  dir_.Write("f.part", "short");
  EXPECT_EQ(Open(11, "\"b\"")->have(), 0);
}

TEST_F(PartFileTest, TakesNoBrokenRecord) {
  const auto have = [&](const std::string& lines) {
    Open(10, "x");
    dir_.Write("f.part.ranges", "10 x\n" + lines);
    return Open(10, "x")->have();
  };
  EXPECT_EQ(have("0 5\n"), 5);
  EXPECT_EQ(have("0 5\n5 "), 5);  // killed while it wrote
  EXPECT_EQ(have("0 5\n5 11\n"), 0);
  EXPECT_EQ(have("-1 5\n"), 0);
  EXPECT_EQ(have("0 5x\n"), 0);
  EXPECT_EQ(have("0 5\nhello\n"), 0);
  EXPECT_EQ(have("0 99999999999999999999\n"), 0);
}

TEST_F(PartFileTest, WhatFollowsABrokenLineIsKept) {
  Open(10, "x");
  dir_.Write("f.part.ranges", "10 x\n0 5\n5 ");
  ASSERT_TRUE(Open(10, "x")->Record({7, 9}).ok());
  EXPECT_EQ(Open(10, "x")->have(), 7);
}

// After a power cut the record may be there and the bytes not.
TEST_F(PartFileTest, InPlaceOnlyThisBootCounts) {
  const auto open = [&] {
    return *PartFile::Open(dir_.path() + "/f", 10, "x", PartPlace::kInPlace);
  };
  ASSERT_TRUE(open()->Write(0, "abcde").ok());
  ASSERT_TRUE(open()->Record({0, 5}).ok());
  EXPECT_EQ(open()->have(), 5);
  dir_.Write("f.ranges", "10 x\n0 5 another-boot\n5 6\n");
  EXPECT_EQ(open()->have(), 0);
  // What others may have mapped stays, and so does what they have recorded.
  EXPECT_EQ(*base::ReadFile(dir_.path() + "/f", 100), std::string("abcde\0\0\0\0\0", 10));
  ASSERT_TRUE(open()->Record({2, 4}).ok());
  EXPECT_THAT(open()->Missing(), ElementsAre(ByteRange{0, 2}, ByteRange{4, 10}));
  EXPECT_THAT(*base::ReadFile(dir_.path() + "/f.ranges", 200),
              testing::HasSubstr("another-boot\n"));
}

TEST_F(PartFileTest, AReaderFollowsTheWriters) {
  const auto part = Open(10, "x");
  std::int64_t end = 0;
  std::thread reader([&] { end = part->AwaitFrom(0); });
  ASSERT_TRUE(part->Record({5, 10}).ok());
  ASSERT_TRUE(part->Record({0, 5}).ok());
  reader.join();
  EXPECT_EQ(end, 10);
  std::thread stopped([&] { end = Open(20, "y")->AwaitFrom(20); });
  stopped.join();
  EXPECT_EQ(end, 20);
  part->Stop();
  EXPECT_EQ(part->AwaitFrom(3), 3);
}

// --- Checksums. ---

HttpAnswer Head(const std::map<std::string, std::string>& headers) {
  HttpAnswer answer;
  answer.headers = headers;
  return answer;
}

TEST(Checksum, TheStrongestHeaderWins) {
  const std::string md5 = "\"900150983cd24fb0d6963f7d28e17f72\"";
  EXPECT_EQ(ChecksumOf(Head({{"etag", md5}}))->kind, base::DigestKind::kMd5);
  EXPECT_EQ(ChecksumOf(Head({{"etag", md5}, {"x-amz-checksum-crc32", "a=="}}))->kind,
            base::DigestKind::kCrc32);
  EXPECT_EQ(
      ChecksumOf(Head({{"x-amz-checksum-sha256", "a="}, {"x-amz-checksum-crc32", "a=="}}))->kind,
      base::DigestKind::kSha256);
  const auto parts = ChecksumOf(Head({{"etag", "\"900150983cd24fb0d6963f7d28e17f72-12\""}}));
  EXPECT_EQ(parts->parts, 12);
  // What is no MD5 of the bytes.
  for (const char* etag : {"",
                           "\"\"",
                           "\"abc\"",
                           "\"900150983cd24fb0d6963f7d28e17f72-\"",
                           "\"900150983cd24fb0d6963f7d28e17f72-0\"",
                           "\"900150983cd24fb0d6963f7d28e17f72-99999\"",
                           "\"900150983CD24FB0D6963F7D28E17F72\"",
                           "W/\"900150983cd24fb0d6963f7d28e17f72\""}) {
    EXPECT_FALSE(ChecksumOf(Head({{"etag", etag}}))) << etag;
  }
  EXPECT_FALSE(ChecksumOf(Head({{"etag", md5}, {"x-amz-server-side-encryption", "aws:kms"}})));
  EXPECT_TRUE(ChecksumOf(Head({{"etag", md5}, {"x-amz-server-side-encryption", "AES256"}})));
}

std::string Computed(const ObjectChecksum& checksum, std::string_view text, std::size_t piece) {
  auto hasher = ObjectHasher::Make(checksum);
  EXPECT_TRUE(hasher.ok());
  for (std::size_t at = 0; at < text.size(); at += piece) {
    hasher->Update(std::as_bytes(std::span(text.substr(at, piece))));
  }
  return hasher->Finish();
}

// md5(md5("abcd") md5("efgh") md5("ij")), by hashlib.
TEST(Checksum, OfPartsAndOfTheWhole) {
  ObjectChecksum checksum;
  checksum.hex = true;
  EXPECT_EQ(Computed(checksum, "abc", 2), "900150983cd24fb0d6963f7d28e17f72");
  checksum.parts = 3;
  checksum.part_bytes = 4;
  for (const std::size_t piece : {1U, 3U, 4U, 7U, 10U}) {
    EXPECT_EQ(Computed(checksum, "abcdefghij", piece), "446feba4c1b5cc7ad93bf4d44a0e36ac-3");
  }
  EXPECT_EQ(Computed(checksum, "abcdefgh", 8), "cb93ad6c9c920e2602b79a11ded63ddb-2");
  checksum = {base::DigestKind::kCrc32, "", false, 0, 0};
  EXPECT_EQ(Computed(checksum, "123456789", 4), "y/Q5Jg==");
}

}  // namespace
}  // namespace inferd::store
