// SPDX-License-Identifier: Apache-2.0
#include "api/http/tls.h"

#include "base/error.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

namespace inferd::api {
namespace {

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(BIO_METHOD* method) const { BIO_meth_free(method); }
};
using Context = std::unique_ptr<SSL_CTX, SslDeleter>;

std::string LastError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown error" : reason;
}

// ---- a BIO on a socket. OpenSSL's own writes without MSG_NOSIGNAL, so that a client that has left
// would end the process by SIGPIPE.

int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio))); }

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int BioRead(BIO* bio, char* to, int size) {
  BIO_clear_retry_flags(bio);
  const auto n = recv(FdOf(bio), to, static_cast<std::size_t>(size), 0);
  if (n < 0 && WouldBlock(errno)) {
    BIO_set_retry_read(bio);
  }
  return static_cast<int>(n);
}

int BioWrite(BIO* bio, const char* from, int size) {
  BIO_clear_retry_flags(bio);
  const auto n = send(FdOf(bio), from, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && WouldBlock(errno)) {
    BIO_set_retry_write(bio);
  }
  return static_cast<int>(n);
}

long BioControl(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* SocketMethod() {
  static const std::unique_ptr<BIO_METHOD, SslDeleter> method = [] {
    std::unique_ptr<BIO_METHOD, SslDeleter> made(
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "inferd socket"));
    if (made != nullptr) {
      BIO_meth_set_read(made.get(), BioRead);
      BIO_meth_set_write(made.get(), BioWrite);
      BIO_meth_set_ctrl(made.get(), BioControl);
    }
    return made;
  }();
  return method.get();
}

/// Only http/1.1 is spoken; a client that offers others gets that one or goes on without.
int ChooseProtocol(SSL* /*ssl*/,
                   const unsigned char** out,
                   unsigned char* out_size,
                   const unsigned char* offered,
                   unsigned offered_size,
                   void* /*unused*/) {
  static constexpr unsigned char kHttp[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kHttp, sizeof kHttp - 1, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

Result<Context> MakeContext(const TlsFiles& files) {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) {
    return Internal("cannot make a TLS context: {}", LastError());
  }
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(raw,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                       SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(raw, ChooseProtocol, nullptr);
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1) {
    return InvalidArgument("--ssl-certfile {}: {}; it must be PEM", files.certificate, LastError());
  }
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return InvalidArgument(
        "--ssl-keyfile {}: {}; it must be the PEM key of the certificate, without a passphrase",
        files.key,
        LastError());
  }
  if (SSL_CTX_check_private_key(raw) != 1) {
    return InvalidArgument(
        "--ssl-keyfile {} is not the key of the certificate {}", files.key, files.certificate);
  }
  if (files.authorities.empty()) {
    return context;
  }
  if (SSL_CTX_load_verify_locations(raw, files.authorities.c_str(), nullptr) != 1) {
    return InvalidArgument("--ssl-ca-certs {}: {}; it must be PEM", files.authorities, LastError());
  }
  static constexpr unsigned char kSessionId[] = "inferd";
  SSL_CTX_set_session_id_context(raw, kSessionId, sizeof kSessionId - 1);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_client_CA_list(raw, SSL_load_client_CA_file(files.authorities.c_str()));
  return context;
}

}  // namespace

// ---- TlsSession

struct TlsSession::Impl {
  std::unique_ptr<SSL, SslDeleter> ssl;
  bool broken = false;  // nothing may be sent any more

  Moved Judge(int result) {
    switch (SSL_get_error(ssl.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return {0, Want::kRead};
      case SSL_ERROR_WANT_WRITE:
        return {0, Want::kWrite};
      case SSL_ERROR_ZERO_RETURN:
        return {0, Want::kClosed};
      default:
        broken = true;
        ERR_clear_error();
        return {0, Want::kClosed};
    }
  }
};

TlsSession::TlsSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsSession::~TlsSession() = default;

TlsSession::Moved TlsSession::Read(char* to, std::size_t size) {
  ERR_clear_error();
  const int n =
      SSL_read(impl_->ssl.get(), to, static_cast<int>(std::min<std::size_t>(size, INT_MAX)));
  return n > 0 ? Moved{static_cast<std::size_t>(n), Want::kNothing} : impl_->Judge(n);
}

TlsSession::Moved TlsSession::Write(std::string_view bytes) {
  ERR_clear_error();
  const int n = SSL_write(impl_->ssl.get(),
                          bytes.data(),
                          static_cast<int>(std::min<std::size_t>(bytes.size(), INT_MAX)));
  return n > 0 ? Moved{static_cast<std::size_t>(n), Want::kNothing} : impl_->Judge(n);
}

void TlsSession::Shutdown() {
  if (!impl_->broken && SSL_is_init_finished(impl_->ssl.get()) == 1) {
    ERR_clear_error();
    SSL_shutdown(impl_->ssl.get());
    ERR_clear_error();
  }
}

// ---- TlsContext

struct TlsContext::Loaded {
  Context context;
};

TlsContext::TlsContext(const TlsFiles& files) : files_(files) {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<TlsContext>> TlsContext::Load(const TlsFiles& files) {
  std::shared_ptr<TlsContext> made(new TlsContext(files));
  INFERD_TRY(made->Reload());
  return made;
}

Result<> TlsContext::Reload() {
  INFERD_ASSIGN(Context context, MakeContext(files_));
  auto loaded = std::make_shared<const Loaded>(std::move(context));
  const std::lock_guard lock(mutex_);
  loaded_ = std::move(loaded);
  return {};
}

std::unique_ptr<TlsSession> TlsContext::Accept(int fd) const {
  std::shared_ptr<const Loaded> loaded;
  {
    const std::lock_guard lock(mutex_);
    loaded = loaded_;
  }
  auto impl = std::make_unique<TlsSession::Impl>();
  impl->ssl.reset(SSL_new(loaded->context.get()));  // keeps the context alive
  BIO* const bio = SocketMethod() == nullptr ? nullptr : BIO_new(SocketMethod());
  if (impl->ssl == nullptr || bio == nullptr) {
    BIO_free(bio);
    ERR_clear_error();
    return nullptr;
  }
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(impl->ssl.get(), bio, bio);
  SSL_set_accept_state(impl->ssl.get());
  return std::unique_ptr<TlsSession>(new TlsSession(std::move(impl)));
}

}  // namespace inferd::api
