// SPDX-License-Identifier: Apache-2.0
// The Files API over loopback.
#include "storage_fixture.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

using FilesTest = StorageTest;

TEST_F(FilesTest, AFileComesBackAsItWent) {
  StartWithFiles();
  const std::string content("{\"a\":1}\r\n\0\xff--b\r\n", 17);
  const Reply made = UploadForm(FormOf(content));
  ASSERT_EQ(made.status, 200) << made.body;
  const Json file = Json::parse(made.body);
  EXPECT_TRUE(file["id"].get<std::string>().starts_with("file-"));
  EXPECT_EQ(file["object"], "file");
  EXPECT_EQ(file["bytes"], 17);
  EXPECT_EQ(file["filename"], "in.jsonl");
  EXPECT_EQ(file["purpose"], "batch");
  EXPECT_EQ(file["status"], "processed");
  EXPECT_FALSE(file.contains("expires_at"));
  const std::string path = "/v1/files/" + file["id"].get<std::string>();
  EXPECT_EQ(Json::parse(Send("GET", path).body), file);
  const Reply back = Send("GET", path + "/content");
  EXPECT_EQ(back.body, content);
  EXPECT_TRUE(back.Has("content-type: application/octet-stream"));
  EXPECT_TRUE(back.Has("x-content-type-options: nosniff"));
  const Json gone = Json::parse(Send("DELETE", path).body);
  EXPECT_EQ(gone["deleted"], true);
  EXPECT_EQ(gone["object"], "file");
  for (const char* const method : {"GET", "DELETE"}) {
    const Reply missing = Send(method, path);
    EXPECT_EQ(missing.status, 404);
    EXPECT_EQ(Json::parse(missing.body)["error"]["code"], "file_not_found");
  }
  EXPECT_EQ(Send("GET", path + "/content").status, 404);
}

TEST_F(FilesTest, AListHasPages) {
  StartWithFiles();
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(Upload(std::to_string(i)));
  }
  const auto listed = [&](const std::string& query) {
    std::vector<std::string> found;
    const Reply reply = Send("GET", "/v1/files" + query);
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json list = Json::parse(reply.body);
    for (const Json& file : list["data"]) {
      found.push_back(file["id"]);
    }
    return found;
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(listed(""), Ids(ids.rbegin(), ids.rend()));
  EXPECT_EQ(listed("?order=asc&limit=2"), Ids(ids.begin(), ids.begin() + 2));
  EXPECT_EQ(listed("?order=asc&after=" + ids[1] + "&limit=2"),
            Ids(ids.begin() + 2, ids.begin() + 4));
  EXPECT_EQ(listed("?purpose=batch_output"), Ids());
  EXPECT_EQ(listed("?purpose=batch").size(), 5U);
  const Json page = Json::parse(Send("GET", "/v1/files?limit=2").body);
  EXPECT_EQ(page["has_more"], true);
  EXPECT_EQ(page["first_id"], ids[4]);
  EXPECT_EQ(page["last_id"], ids[3]);
  for (const char* const query :
       {"?limit=0", "?limit=10001", "?limit=x", "?order=up", "?after=file-none"}) {
    EXPECT_EQ(Send("GET", std::string("/v1/files") + query).status, 400) << query;
  }
}

TEST_F(FilesTest, BadFormsAreRefusedByName) {
  storage_.files.max_file_bytes = 100;
  StartWithFiles();
  const auto part = [](const std::string& name, const std::string& value) {
    return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
  };
  const std::string file =
      "--b\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\nabc\r\n";
  const std::string end = "--b--\r\n";
  struct {
    std::string form;
    std::string param;
    std::string code;
  } const cases[] = {
      {"nonsense", "", "invalid_multipart"},
      {file + end, "purpose", "missing_required_parameter"},
      {part("purpose", "batch") + end, "file", "missing_required_parameter"},
      {part("purpose", "fine-tune") + file + end, "purpose", "invalid_value"},
      {part("purpose", "\xff\xfe") + file + end, "purpose", "invalid_value"},
      {part("purpose", "batch") + part("purpose", "batch") + file + end,
       "purpose",
       "invalid_value"},
      {part("purpose", "batch") + part("file", "abc") + end, "file", "invalid_value"},
      {part("purpose", "batch") + file + file + end, "file", "invalid_value"},
      {FormOf(""), "file", "invalid_value"},
      {FormOf(std::string(101, 'x')), "file", "file_too_large"},
      {FormOf("x", part("expires_after[anchor]", "created_at")),
       "expires_after[seconds]",
       "invalid_value"},
      {FormOf("x", part("expires_after[seconds]", "10")),
       "expires_after[seconds]",
       "invalid_value"},
      {FormOf("x", part("expires_after[seconds]", "4000x")),
       "expires_after[seconds]",
       "invalid_value"},
      {FormOf("x", part("expires_after[anchor]", "now") + part("expires_after[seconds]", "4000")),
       "expires_after[anchor]",
       "invalid_value"},
  };
  for (const auto& one : cases) {
    const Reply reply = UploadForm(one.form);
    EXPECT_EQ(reply.status, 400) << one.form;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], one.param.empty() ? Json() : Json(one.param)) << one.form;
    EXPECT_EQ(error["code"], one.code) << one.form;
  }
  EXPECT_EQ(Send("POST", "/v1/files", "{}").status, 400);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/files").body)["data"].size(), 0U);
  const Reply expiring = UploadForm(FormOf(
      "x", part("expires_after[anchor]", "created_at") + part("expires_after[seconds]", "3600")));
  const Json made = Json::parse(expiring.body);
  EXPECT_EQ(made["expires_at"].get<long>() - made["created_at"].get<long>(), 3600);
}

TEST_F(FilesTest, AFilenameIsShownAndNeverAPath) {
  StartWithFiles();
  const auto shown = [&](const std::string& filename) {
    const Reply reply = UploadForm(
        "--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
        "--b\r\nContent-Disposition: form-data; name=file; filename=\"" +
        filename + "\"\r\n\r\nx\r\n--b--");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["filename"].get<std::string>();
  };
  EXPECT_EQ(shown("../../etc/passwd"), "passwd");
  EXPECT_EQ(shown("C:\\in\\a.jsonl"), "a.jsonl");
  EXPECT_EQ(shown("dir/"), "file");
  EXPECT_EQ(shown("a%22b"), "a\"b");
  EXPECT_EQ(shown("\xc3\xbc"), "\xc3\xbc");
  EXPECT_EQ(shown("x\xff"), "x\xef\xbf\xbd");
  EXPECT_EQ(shown(std::string(300, 'x')).size(), 255U);
}

TEST_F(FilesTest, OtherKeysSeeNothing) {
  UseKeysNamed({"alice", "bob"});
  StartWithFiles();
  As("alice");
  const std::string path = "/v1/files/" + Upload("mine");
  As("bob");
  EXPECT_EQ(Send("GET", path).status, 404);
  EXPECT_EQ(Send("GET", path + "/content").status, 404);
  EXPECT_EQ(Send("DELETE", path).status, 404);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/files").body)["data"].size(), 0U);
  As("");
  EXPECT_EQ(Send("GET", path).status, 401);
  As("alice");
  EXPECT_EQ(Send("GET", path + "/content").body, "mine");
}

TEST_F(FilesTest, WithoutAFolderThereAreNone) {
  Start();
  for (const char* const path : {"/v1/files", "/v1/files/file-1", "/v1/files/file-1/content"}) {
    const Reply reply = Get(port_, path);
    EXPECT_EQ(reply.status, 404);
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], "files_disabled");
    EXPECT_NE(error["message"].get<std::string>().find("--files-dir"), std::string::npos);
  }
}

TEST_F(FilesTest, UploadsMayBeLongerThanOtherBodiesAndNoLongerThanTheirOwnLimit) {
  storage_.files.max_file_bytes = 100'000;
  HttpOptions options;
  options.max_body_bytes = 1000;
  options.max_long_uploads = 1;
  StartWithFiles(options);
  const std::string id = Upload(std::string(100'000, 'x'));
  EXPECT_EQ(Send("GET", "/v1/files/" + id + "/content").body.size(), 100'000U);
  EXPECT_EQ(UploadForm(FormOf(std::string(200'000, 'x'))).status, 413);
  EXPECT_EQ(Send("POST", "/v1/chat/completions", std::string(2000, ' ')).status, 413);
  HttpClient chunked(port_);
  chunked.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n7d0\r\n" +
      std::string(2000, ' ') + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  // One long upload at a time; short ones need no place.
  HttpClient slow(port_);
  const std::string head =
      "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\nExpect: "
      "100-continue\r\n\r\n";
  slow.Send(head);
  EXPECT_EQ(slow.Read().status, 100);
  HttpClient second(port_);
  second.Send(head);
  const Reply refused = second.Read();
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.Has("retry-after: 1"));
  Upload("short");
  slow.Send(std::string(5000, 'x'));
  EXPECT_EQ(slow.Read().status, 400);
  Upload(std::string(5000, 'x'));
}

TEST_F(FilesTest, WhoMayNotUploadTakesNoPlaceAndATrickleLosesIt) {
  storage_.files.max_file_bytes = 1'000'000;
  HttpOptions options;
  options.max_body_bytes = 1000;
  options.max_long_uploads = 1;
  options.body_grace_ms = 1000;
  UseKeysNamed({"alice"});
  StartWithFiles(options);
  const auto head = [](const std::string& more, const std::string& length) {
    return "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n" + more +
           length + "\r\n\r\n";
  };
  const std::string alice = "Authorization: Bearer text-of-alice\r\n";
  for (const char* const length : {"Content-Length: 900000", "Transfer-Encoding: chunked"}) {
    for (const char* const key : {"", "Authorization: Bearer no\r\n"}) {
      HttpClient client(port_);
      client.Send(head(key, length));
      const Reply reply = client.Read();
      EXPECT_EQ(reply.status, 401) << length;
      EXPECT_TRUE(reply.Has("www-authenticate")) << length;
    }
  }
  HttpClient trickle(port_);
  trickle.Send(head(alice, "Content-Length: 900000"));
  EXPECT_EQ(trickle.Read().status, 100);
  trickle.Send(std::string(10'000, 'x'));  // enough for most bodies for ten seconds
  EXPECT_EQ(trickle.Read().status, 408);
  HttpClient next(port_);
  next.Send(head(alice, "Content-Length: 900000"));
  EXPECT_EQ(next.Read().status, 100);
}

TEST_F(FilesTest, ContentIsSentFromTheFileAndNotHeldInMemory) {
  constexpr std::size_t kBytes = 48U << 20;
  StartWithFiles();
  std::string id;
  {
    std::string content;
    while (content.size() < kBytes) {
      content += std::to_string(content.size()) + ",";
    }
    id = Upload(content);
    const std::string path = "/v1/files/" + id + "/content";
    EXPECT_EQ(Send("GET", path).body, content);
    HttpClient head(port_);
    head.Send("HEAD " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_TRUE(head.Read(true).Has("content-length: " + std::to_string(content.size())));
  }
  malloc_trim(0);
  const auto resident_bytes = [] {
    std::ifstream statm("/proc/self/statm");
    std::size_t all = 0;
    std::size_t resident = 0;
    statm >> all >> resident;
    return resident * 4096;
  };
  const std::size_t before = resident_bytes();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 4; ++i) {  // who reads the head only, and leaves the rest waiting
    clients.push_back(std::make_unique<HttpClient>(port_, 4096));
    clients.back()->Send("GET /v1/files/" + id + "/content HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ASSERT_TRUE(clients.back()->ReadUntil("\r\n\r\n0,"));
  }
  EXPECT_LT(resident_bytes(), before + kBytes);
}

TEST_F(FilesTest, FilesOutliveTheServer) {
  StartWithFiles();
  const std::string id = Upload("kept");
  server_->Stop();
  server_.reset();
  StartWithFiles();
  EXPECT_EQ(Send("GET", "/v1/files/" + id + "/content").body, "kept");
}

}  // namespace
}  // namespace inferd::api
