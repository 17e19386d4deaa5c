// SPDX-License-Identifier: Apache-2.0
// Unix sockets, TLS and the heartbeat of silent streams, against a running server.
#include "api/http/tls.h"
#include "base/file.h"
#include "server_fixture.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/un.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

namespace inferd::api {
namespace {

class TransportTest : public ServerTest {
 protected:
  TransportTest() {
    std::string name = testing::TempDir() + "inferd-http-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TransportTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

// ---- Unix socket

int ConnectUnix(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

std::string Talk(int fd, const std::string& bytes) {
  EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  std::string in;
  char buffer[4096];
  for (ssize_t n = 0; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
    in.append(buffer, static_cast<std::size_t>(n));
  }
  close(fd);
  return in;
}

const std::string kGet = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

TEST_F(TransportTest, AUnixSocketServesOnEveryThreadAndGoesWithTheServer) {
  HttpOptions options;
  options.uds = Path("socket");
  options.io_threads = 3;
  Start(options);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Talk(ConnectUnix(options.uds), kGet).starts_with("HTTP/1.1 200 OK\r\n"));
  }
  FakeInferenceService other;
  EXPECT_FALSE(Server::Start(options, TestModel(), &other).ok()) << "took a socket that is in use";
  server_->Stop();
  EXPECT_FALSE(std::filesystem::exists(options.uds));
}

TEST_F(TransportTest, AStaleUnixSocketIsTakenOverAndOtherFilesAreNot) {
  HttpOptions options;
  options.uds = Path("socket");
  {
    auto stale = ListenUnix(options.uds);
    ASSERT_TRUE(stale.ok());
  }
  ASSERT_TRUE(std::filesystem::exists(options.uds));
  Start(options);
  EXPECT_TRUE(Talk(ConnectUnix(options.uds), kGet).starts_with("HTTP/1.1 200 OK\r\n"));
  ASSERT_TRUE(base::WriteFileAtomic(Path("file"), "precious").ok());
  EXPECT_FALSE(ListenUnix(Path("file")).ok());
  EXPECT_EQ(*base::ReadFile(Path("file"), 100), "precious");
  EXPECT_FALSE(ListenUnix(Path(std::string(200, 'a'))).ok());
}

// ---- TLS

/// Writes a self-signed certificate for localhost and its key.
void MakeCertificate(const std::string& certificate, const std::string& key, const char* name) {
  EVP_PKEY* const pkey = EVP_EC_gen("P-256");
  X509* const x509 = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
  X509_set_version(x509, 2);
  X509_gmtime_adj(X509_getm_notBefore(x509), -60);
  X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
  X509_set_pubkey(x509, pkey);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509),
                             "CN",
                             MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name),
                             -1,
                             -1,
                             0);
  X509_set_issuer_name(x509, X509_get_subject_name(x509));
  EXPECT_GT(X509_sign(x509, pkey, EVP_sha256()), 0);
  std::FILE* file = std::fopen(certificate.c_str(), "w");
  PEM_write_X509(file, x509);
  std::fclose(file);
  file = std::fopen(key.c_str(), "w");
  PEM_write_PrivateKey(file, pkey, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(x509);
  EVP_PKEY_free(pkey);
}

/// A blocking TLS client. `name()`: the common name the server showed.
class TlsClient {
 public:
  explicit TlsClient(std::uint16_t port, const std::string& own = "", const std::string& key = "")
      : context_(SSL_CTX_new(TLS_client_method())), fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (!own.empty()) {
      SSL_CTX_use_certificate_file(context_, own.c_str(), SSL_FILETYPE_PEM);
      SSL_CTX_use_PrivateKey_file(context_, key.c_str(), SSL_FILETYPE_PEM);
    }
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd_);
    good_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    close(fd_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool good() const { return good_; }
  std::string name() const {
    X509* const x509 = SSL_get1_peer_certificate(ssl_);
    char text[64] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(x509), NID_commonName, text, sizeof text);
    X509_free(x509);
    return text;
  }
  /// Sends, in pieces, and reads to the end.
  std::string Talk(const std::string& bytes, std::size_t piece = 1U << 20) {
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      const std::string part = bytes.substr(at, piece);
      if (SSL_write(ssl_, part.data(), static_cast<int>(part.size())) <= 0) {
        break;  // refused meanwhile; what the server says about it is read below
      }
    }
    std::string in;
    char buffer[4096];
    for (int n = 0; (n = SSL_read(ssl_, buffer, sizeof buffer)) > 0;) {
      in.append(buffer, static_cast<std::size_t>(n));
    }
    clean_end_ = (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0;
    return in;
  }
  bool clean_end() const { return clean_end_; }

 private:
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  int fd_;
  bool good_ = false;
  bool clean_end_ = false;
};

class TlsTest : public TransportTest {
 protected:
  TlsTest() { std::signal(SIGPIPE, SIG_IGN); }  // of the client's own writes
  void StartTls(const std::string& authorities = "") {
    MakeCertificate(Path("cert"), Path("key"), "first");
    auto context = TlsContext::Load({Path("cert"), Path("key"), authorities});
    ASSERT_TRUE(context.ok()) << context.error().message();
    context_ = *context;
    HttpOptions options;
    options.tls = context_;
    Start(options);
  }
  std::shared_ptr<TlsContext> context_;
};

TEST_F(TlsTest, ServesWholeAnswersStreamsAndLargeBodies) {
  StartTls();
  TlsClient plain(port_);
  ASSERT_TRUE(plain.good());
  EXPECT_TRUE(plain.Talk(kGet, 1).starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(plain.clean_end());
  TlsClient streaming(port_);
  const std::string stream = streaming.Talk(
      PostBytes("/v1/chat/completions", ChatWith(R"("stream":true)"), "Connection: close\r\n"));
  EXPECT_NE(stream.find("data: [DONE]"), std::string::npos) << stream;
  TlsClient large(port_);
  const std::string words(700'000, 'a');
  const std::string answer = large.Talk(
      PostBytes("/tokenize", R"({"prompt":")" + words + R"("})", "Connection: close\r\n"));
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer.substr(0, 200);
  EXPECT_GT(answer.size(), words.size());  // more than the socket takes at once
}

TEST_F(TlsTest, PlainHttpAndSilenceDoNoHarm) {
  StartTls();
  HttpClient plain(port_);
  plain.Send(kGet);
  EXPECT_EQ(plain.Read().status, 0);
  const HttpClient silent(port_);
  TlsClient after(port_);
  EXPECT_TRUE(after.Talk(kGet).starts_with("HTTP/1.1 200 OK\r\n"));
}

TEST_F(TlsTest, ANewCertificateServesNewConnectionsAndABadOneIsRefused) {
  StartTls();
  TlsClient old(port_);
  EXPECT_EQ(old.name(), "first");
  MakeCertificate(Path("cert"), Path("key"), "second");
  ASSERT_TRUE(context_->Reload().ok());
  EXPECT_TRUE(old.Talk(kGet).starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(TlsClient(port_).name(), "second");
  MakeCertificate(Path("other-cert"), Path("key"), "third");  // its key now lies under Path("key")
  EXPECT_FALSE(context_->Reload().ok());
  EXPECT_EQ(TlsClient(port_).name(), "second");
  ASSERT_TRUE(base::WriteFileAtomic(Path("cert"), "nonsense").ok());
  EXPECT_FALSE(context_->Reload().ok());
  EXPECT_FALSE(TlsContext::Load({Path("absent"), Path("key"), ""}).ok());
}

TEST_F(TlsTest, ClientsShowACertificateWhereOneIsAskedFor) {
  MakeCertificate(Path("client"), Path("client-key"), "client");
  MakeCertificate(Path("stranger"), Path("stranger-key"), "stranger");
  StartTls(Path("client"));
  TlsClient known(port_, Path("client"), Path("client-key"));
  EXPECT_TRUE(known.Talk(kGet).starts_with("HTTP/1.1 200 OK\r\n"));
  // With TLS 1.3 a client learns of its refusal when it reads.
  TlsClient none(port_);
  EXPECT_EQ(none.Talk(kGet), "");
  TlsClient stranger(port_, Path("stranger"), Path("stranger-key"));
  EXPECT_EQ(stranger.Talk(kGet), "");
}

// ---- heartbeat

TEST_F(TransportTest, ASilentStreamSendsCommentsBeforeAndBetweenEvents) {
  HttpOptions options;
  options.heartbeat_ms = 1;  // at each tick
  Start(options);
  service_.Pause(true);
  HttpClient streaming(port_);
  streaming.Send(PostBytes("/v1/chat/completions", ChatWith(R"("stream":true)")));
  ASSERT_TRUE(streaming.ReadUntil(": ping\n\n\r\n8\r\n: ping\n\n\r\n"));
  HttpClient whole(port_);
  whole.Send(PostBytes("/v1/chat/completions", ChatWith(R"("max_tokens":5)")));
  ASSERT_TRUE(service_.WaitRunning(2));
  service_.Pause(false);
  const Reply reply = streaming.Read();
  EXPECT_EQ(reply.status, 200);
  std::string events = reply.body;
  for (std::size_t at = 0; (at = events.find(": ping\n\n")) != std::string::npos;) {
    EXPECT_TRUE(at == 0 || events.substr(at - 2, 2) == "\n\n") << "within an event";
    events.erase(at, 8);
  }
  EXPECT_EQ(Join(Events(events))[0].text, "Hello");
  EXPECT_EQ(whole.Read().body.find(": ping"), std::string::npos);
}

TEST_F(TransportTest, NoHeartbeatWhenItIsOff) {
  HttpOptions options;
  options.heartbeat_ms = 0;
  Start(options);
  HttpClient streaming(port_);
  streaming.Send(PostBytes("/v1/chat/completions", ChatWith(R"("stream":true)")));
  EXPECT_EQ(streaming.Read().body.find(": ping"), std::string::npos);
}

}  // namespace
}  // namespace inferd::api
