// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/grpc_credentials.h"

#include "base/file.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kRefreshSeconds = 2;
constexpr std::size_t kMaxPemBytes = 1U << 20;

Result<std::shared_ptr<tls::CertificateProviderInterface>> Provider(const GrpcOptions& options) {
  INFERD_ASSIGN(std::string key, base::ReadFile(options.ssl_keyfile, kMaxPemBytes));
  INFERD_ASSIGN(std::string certificate, base::ReadFile(options.ssl_certfile, kMaxPemBytes));
  std::string authorities;
  if (!options.ssl_ca_certs.empty()) {
    INFERD_ASSIGN(authorities, base::ReadFile(options.ssl_ca_certs, kMaxPemBytes));
  }
  if (options.ssl_refresh) {
    return std::shared_ptr<tls::CertificateProviderInterface>(
        std::make_shared<tls::FileWatcherCertificateProvider>(
            options.ssl_keyfile, options.ssl_certfile, options.ssl_ca_certs, kRefreshSeconds));
  }
  std::vector<tls::IdentityKeyCertPair> pairs;
  pairs.push_back({std::move(key), std::move(certificate)});
  return std::shared_ptr<tls::CertificateProviderInterface>(
      std::make_shared<tls::StaticDataCertificateProvider>(authorities, pairs));
}

}  // namespace

Result<std::shared_ptr<grpc::ServerCredentials>> MakeGrpcCredentials(const GrpcOptions& options) {
  if (options.ssl_certfile.empty()) {
    return grpc::InsecureServerCredentials();
  }
  INFERD_ASSIGN(auto provider, Provider(options));
  tls::TlsServerCredentialsOptions tls_options(std::move(provider));
  tls_options.watch_identity_key_cert_pairs();
  if (!options.ssl_ca_certs.empty()) {
    tls_options.watch_root_certs();
    tls_options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(tls_options);
}

}  // namespace inferd::api
