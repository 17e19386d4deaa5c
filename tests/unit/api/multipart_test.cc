// SPDX-License-Identifier: Apache-2.0
// multipart/form-data: a corpus of bodies with one verdict each, and that no cut of a good body and
// no changed byte makes the parser misbehave.
#include "api/files/multipart.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {
namespace {

const std::string kPurpose = "Content-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch";
const std::string kFile =
    "Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
    "Content-Type: application/octet-stream\r\n\r\n{}\n";

std::string Form(const std::vector<std::string>& parts) {
  std::string body;
  for (const std::string& part : parts) {
    body += "--b\r\n" + part + "\r\n";
  }
  return body + "--b--\r\n";
}

std::string With(const std::string& head) { return Form({head + "\r\n\r\nx"}); }

TEST(Multipart, TakesAFormApart) {
  const std::string body = Form({kPurpose, kFile});
  const auto parts = ParseMultipart(body, "b");
  ASSERT_TRUE(parts.ok()) << parts.error().message();
  ASSERT_EQ(parts->size(), 2U);
  EXPECT_EQ((*parts)[0].name, "purpose");
  EXPECT_FALSE((*parts)[0].filename.has_value());
  EXPECT_EQ((*parts)[0].data, "batch");
  EXPECT_EQ((*parts)[1].filename, "in.jsonl");
  EXPECT_EQ((*parts)[1].data, "{}\n");
}

TEST(Multipart, ContentMayHoldAnythingButItsBoundary) {
  std::string content("\0\r\n--\r\n-b--b\r\n--a\r\n\xff", 20);
  const std::string body = Form({"Content-Disposition: form-data; name=x\r\n\r\n" + content});
  const auto parts = ParseMultipart(body, "b");
  ASSERT_TRUE(parts.ok()) << parts.error().message();
  EXPECT_EQ(parts->front().data, content);
  const std::string empty = Form({"Content-Disposition: form-data; name=x\r\n\r\n"});
  ASSERT_TRUE(ParseMultipart(empty, "b").ok());
  EXPECT_EQ(ParseMultipart(empty, "b")->front().data, "");
}

struct Verdict {
  std::string body;
  std::string_view reason;  // part of the message; empty: it is good
};

TEST(Multipart, CorpusOfBodies) {
  const std::string name = "Content-Disposition: form-data; name=";
  const std::string many(64, 'a');
  std::vector<std::string> parts17(17, kPurpose);
  const Verdict corpus[] = {
      {Form({kPurpose}), ""},
      {"--b\r\n" + kPurpose + "\r\n--b--", ""},                // no line end at the end
      {"--b \t\r\n" + kPurpose + "\r\n--b-- \r\n", ""},        // transport padding
      {With(name + "x"), ""},                                  // a token
      {With("content-disposition:form-data;name=\"x\""), ""},  // no blanks, any case
      {With(name + "\"a\\\"b\\\\c\""), ""},
      {With(name + "\"x\"; filename=\"C:\\dir\\f.txt\""), ""},
      {With(name + "\"x\"; filename=\"\xc3\xbc.jsonl\""), ""},
      {With(name + "\"x\"; filename*=UTF-8''%c3%bc"), ""},  // must not be sent; is not looked at
      {With(name + "x\r\nContent-Transfer-Encoding: binary"), ""},
      {With(name + "x\r\nX-Other: y"), ""},
      {"", "does not begin with the boundary"},
      {"--", "does not begin"},
      {"preamble\r\n" + Form({kPurpose}), "does not begin"},
      {"\r\n" + Form({kPurpose}), "does not begin"},
      {"--c\r\n" + kPurpose + "\r\n--c--", "does not begin"},
      {"--b--\r\n", "no parts"},
      {"--b--", "no parts"},
      {"--b", "not followed by a line end"},
      {"--b\n" + kPurpose + "\n--b--", "not followed by a line end"},
      {"--bb\r\n" + kPurpose + "\r\n--bb--", "not followed by a line end"},
      {"--b\r\n" + kPurpose, "has no end"},
      {"--b\r\n" + kPurpose + "\r\n", "has no end"},
      {"--b\r\n" + kPurpose + "\r\n--", "has no end"},
      {"--b\r\n" + kPurpose + "\r\n--b", "not followed"},
      {"--b\r\n" + kPurpose + "\r\n--b-", "not followed"},
      {"--b\r\n" + kPurpose + "\r\n--bx\r\n--b--", "not followed"},
      {"--b\r\n" + kPurpose + "\n--b--", "has no end"},
      {Form({kPurpose}) + "more", "behind the last boundary"},
      {Form({kPurpose}) + "\r\n", "behind the last boundary"},
      {"--b\r\nContent-Disposition", "ends within the headers"},
      {"--b\r\n" + name + "x\r\n", "ends within the headers"},
      {"--b\r\n\r\nx\r\n--b--", "no Content-Disposition"},
      {With("Content-Type: text/plain"), "no Content-Disposition"},
      {With(name + "x\r\n" + name + "y"), "two Content-Disposition"},
      {With("Content-Disposition: attachment; name=x"), "must be: form-data"},
      {With("Content-Disposition: form-data"), "has no name"},
      {With("Content-Disposition: form-data; filename=x"), "has no name"},
      {With(name + "\"\""), "has no name"},
      {With(name), "must be: form-data"},
      {With(name + "\"x"), "must be: form-data"},
      {With(name + "x; filename"), "must be: form-data"},
      {With(name + "x filename=y"), "must be: form-data"},
      {With(name + "x; name=y"), "`name` twice"},
      {With(name + "x; filename=a; FILENAME=b"), "`FILENAME` twice"},
      {With(name + "\"" + std::string(600, 'a') + "\""), "longer than 512 bytes"},
      {With(name + "x; filename=\"" + std::string(600, 'a') + "\""), "longer than 512 bytes"},
      {With(name + "x\r\nX: " + std::string(5000, 'a')), "longer than 4096 bytes"},
      {With(name + "x\r\nno colon"), "no `Name: value`"},
      {With(name + "x\r\n: y"), "no `Name: value`"},
      {With(name + "x\r\nBad Name: y"), "no `Name: value`"},
      {With(name + "x\r\n folded"), "no `Name: value`"},
      {With(name + "x\r\nX: a\nb"), "no `Name: value`"},
      {With(name + "x\r\nX: " + std::string(1, '\0')), "no `Name: value`"},
      {With(name + "x\r\nContent-Transfer-Encoding: base64"), "`base64`"},
      {With(name + "x\r\nContent-Transfer-Encoding: quoted-printable"), "`quoted-printable`"},
      {Form(parts17), "more than 16 parts"},
  };
  for (const Verdict& verdict : corpus) {
    const auto parts = ParseMultipart(verdict.body, "b");
    if (verdict.reason.empty()) {
      EXPECT_TRUE(parts.ok()) << verdict.body << "\n" << parts.error().message();
    } else {
      ASSERT_FALSE(parts.ok()) << verdict.body;
      EXPECT_NE(parts.error().message().find(verdict.reason), std::string::npos)
          << verdict.body << "\n"
          << parts.error().message();
    }
  }
}

TEST(Multipart, CorpusOfContentTypes) {
  const std::string form = "multipart/form-data";
  const std::vector<std::pair<std::string, std::string>> good{
      {form + "; boundary=b", "b"},
      {form + ";boundary=\"a b\"", "a b"},
      {"Multipart/Form-Data ; charset=utf-8; BOUNDARY=--x--", "--x--"},
      {form + "; boundary=" + std::string(70, 'a'), std::string(70, 'a')}};
  for (const auto& [type, boundary] : good) {
    const auto read = MultipartBoundary(type);
    ASSERT_TRUE(read.ok()) << type << ": " << read.error().message();
    EXPECT_EQ(*read, boundary);
  }
  for (const std::string& type :
       std::vector<std::string>{"",
                                "application/json",
                                "multipart/mixed; boundary=b",
                                form,
                                form + "; boundary=",
                                form + "; boundary=\"\"",
                                form + "; boundary=\"a",
                                form + "; boundary=\"a \"",
                                form + "; boundary=a@b",
                                form + "; boundary=\"a\\\"b\"",
                                form + "; boundary=" + std::string(71, 'a'),
                                form + "; boundary=a; boundary=b",
                                form + " boundary=a",
                                "\xff\xfe"}) {
    EXPECT_FALSE(MultipartBoundary(type).ok()) << type;
  }
}

TEST(Multipart, EveryCutAndEveryChangedByteHasAVerdict) {
  const std::string body = Form({kPurpose, kFile});
  for (std::size_t size = 0; size + 2 < body.size(); ++size) {
    EXPECT_FALSE(ParseMultipart(std::string_view(body).substr(0, size), "b").ok()) << size;
  }
  for (std::size_t at = 0; at < body.size(); ++at) {
    for (const char c : {'\0', '\r', '\n', '"', ';', '-', '\xff'}) {
      std::string changed = body;
      changed[at] = c;
      const auto parts = ParseMultipart(changed, "b");
      for (const FormPart& part : parts.ok() ? *parts : std::vector<FormPart>()) {
        ASSERT_GE(part.data.data(), changed.data());
        ASSERT_LE(part.data.data() + part.data.size(), changed.data() + changed.size());
      }
    }
  }
}

}  // namespace
}  // namespace inferd::api
