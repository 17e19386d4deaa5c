// SPDX-License-Identifier: Apache-2.0
// OpenSSL 3: HMAC, HKDF, a P-256 key from a derived scalar, and two short-lived certificates.
#include "rpc/secret.h"

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>

#include <array>
#include <memory>

namespace inferd::rpc {
namespace {

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Pkey = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Deleter<X509_free>>;
using Number = std::unique_ptr<BIGNUM, Deleter<BN_free>>;

constexpr std::size_t kMinSecretBytes = 16;
constexpr long kValidSeconds = 10L * 365 * 24 * 3600;

std::string Hex(const unsigned char* bytes, std::size_t count) {
  std::string hex;
  for (std::size_t i = 0; i < count; ++i) {
    hex += fmt::format("{:02x}", bytes[i]);
  }
  return hex;
}

/// 48 bytes of HKDF-SHA256: 128 bits more than the group order, so that the reduction is unbiased.
Result<std::array<unsigned char, 48>> DeriveKeyBytes(std::string_view secret) {
  std::array<unsigned char, 48> out{};
  std::size_t length = out.size();
  const std::unique_ptr<EVP_PKEY_CTX, Deleter<EVP_PKEY_CTX_free>> context(
      EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  constexpr std::string_view kInfo = "inferd tls p-256 v1";
  const bool ok = context != nullptr && EVP_PKEY_derive_init(context.get()) > 0 &&
                  EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) > 0 &&
                  EVP_PKEY_CTX_set1_hkdf_key(context.get(),
                                             reinterpret_cast<const unsigned char*>(secret.data()),
                                             static_cast<int>(secret.size())) > 0 &&
                  EVP_PKEY_CTX_add1_hkdf_info(context.get(),
                                              reinterpret_cast<const unsigned char*>(kInfo.data()),
                                              static_cast<int>(kInfo.size())) > 0 &&
                  EVP_PKEY_derive(context.get(), out.data(), &length) > 0;
  if (!ok) {
    return Internal("cannot derive the TLS key from the cluster secret");
  }
  return out;
}

Result<Pkey> DeriveKey(std::string_view secret) {
  INFERD_ASSIGN(const auto bytes, DeriveKeyBytes(secret));
  const std::unique_ptr<EC_GROUP, Deleter<EC_GROUP_free>> group(
      EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));
  const std::unique_ptr<BN_CTX, Deleter<BN_CTX_free>> numbers(BN_CTX_new());
  const Number wide(BN_bin2bn(bytes.data(), static_cast<int>(bytes.size()), nullptr));
  const Number order_minus_one(BN_dup(EC_GROUP_get0_order(group.get())));
  const Number scalar(BN_new());
  BN_sub_word(order_minus_one.get(), 1);
  BN_mod(scalar.get(), wide.get(), order_minus_one.get(), numbers.get());
  BN_add_word(scalar.get(), 1);  // 1 .. order - 1
  const std::unique_ptr<EC_POINT, Deleter<EC_POINT_free>> point(EC_POINT_new(group.get()));
  EC_POINT_mul(group.get(), point.get(), scalar.get(), nullptr, nullptr, numbers.get());
  std::array<unsigned char, 65> encoded{};
  const std::size_t length = EC_POINT_point2oct(group.get(),
                                                point.get(),
                                                POINT_CONVERSION_UNCOMPRESSED,
                                                encoded.data(),
                                                encoded.size(),
                                                numbers.get());
  const std::unique_ptr<OSSL_PARAM_BLD, Deleter<OSSL_PARAM_BLD_free>> builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0);
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_PRIV_KEY, scalar.get());
  OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, encoded.data(), length);
  const std::unique_ptr<OSSL_PARAM, Deleter<OSSL_PARAM_free>> params(
      OSSL_PARAM_BLD_to_param(builder.get()));
  const std::unique_ptr<EVP_PKEY_CTX, Deleter<EVP_PKEY_CTX_free>> context(
      EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr));
  EVP_PKEY* key = nullptr;
  if (EVP_PKEY_fromdata_init(context.get()) <= 0 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_KEYPAIR, params.get()) <= 0) {
    return Internal("cannot make the TLS key from the cluster secret");
  }
  return Pkey(key);
}

void AddExtension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  INFERD_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension.get(), -1);
}

/// A certificate of `key` for `name`; signed by itself when `issuer` is null. Times start a day
/// ago, so that hosts whose clocks differ accept each other.
Cert MakeCertificate(EVP_PKEY* key, const char* name, X509* issuer) {
  Cert certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), issuer == nullptr ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -24L * 3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kValidSeconds);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(
      subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509* signer = issuer == nullptr ? certificate.get() : issuer;
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(signer));
  if (issuer == nullptr) {
    AddExtension(certificate.get(), signer, NID_basic_constraints, "critical,CA:TRUE");
    AddExtension(certificate.get(), signer, NID_key_usage, "critical,keyCertSign,cRLSign");
  } else {
    AddExtension(certificate.get(), signer, NID_basic_constraints, "critical,CA:FALSE");
    AddExtension(
        certificate.get(), signer, NID_subject_alt_name, fmt::format("DNS:{}", name).c_str());
  }
  X509_sign(certificate.get(), key, EVP_sha256());
  return certificate;
}

template <class Write>
std::string ToPem(Write&& write) {
  const std::unique_ptr<BIO, Deleter<BIO_free_all>> memory(BIO_new(BIO_s_mem()));
  write(memory.get());
  char* data = nullptr;
  const long length = BIO_get_mem_data(memory.get(), &data);
  return {data, static_cast<std::size_t>(length)};
}

}  // namespace

std::string RandomSecret() {
  std::array<unsigned char, 32> bytes{};
  INFERD_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return Hex(bytes.data(), bytes.size());
}

Result<> CheckSecret(std::string_view secret) {
  if (secret.size() < kMinSecretBytes) {
    return InvalidArgument(
        "the cluster secret has {} bytes; it needs at least {} (try: openssl rand -hex 32)",
        secret.size(),
        kMinSecretBytes);
  }
  return {};
}

Result<std::string> ReadSecretFile(const std::string& path) {
  INFERD_ASSIGN(std::string text, base::ReadFile(path, 4096));
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  std::string secret =
      begin == std::string::npos ? std::string() : text.substr(begin, end - begin + 1);
  INFERD_TRY(CheckSecret(secret));
  return secret;
}

std::string ControlProof(std::string_view secret) {
  constexpr std::string_view kMessage = "inferd control v1";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  HMAC(EVP_sha256(),
       secret.data(),
       static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(kMessage.data()),
       kMessage.size(),
       digest.data(),
       &length);
  return Hex(digest.data(), length);
}

bool SameProof(std::string_view a, std::string_view b) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> x{};
  std::array<unsigned char, SHA256_DIGEST_LENGTH> y{};
  SHA256(reinterpret_cast<const unsigned char*>(a.data()), a.size(), x.data());
  SHA256(reinterpret_cast<const unsigned char*>(b.data()), b.size(), y.data());
  return CRYPTO_memcmp(x.data(), y.data(), x.size()) == 0;
}

Result<TlsIdentity> DeriveTlsIdentity(std::string_view secret) {
  INFERD_TRY(CheckSecret(secret));
  INFERD_ASSIGN(const Pkey key, DeriveKey(secret));
  const Cert authority = MakeCertificate(key.get(), "inferd cluster", nullptr);
  const Cert certificate = MakeCertificate(key.get(), kTlsName, authority.get());
  TlsIdentity identity;
  identity.ca_pem = ToPem([&](BIO* out) { PEM_write_bio_X509(out, authority.get()); });
  identity.certificate_pem = ToPem([&](BIO* out) { PEM_write_bio_X509(out, certificate.get()); });
  identity.key_pem = ToPem([&](BIO* out) {
    PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return identity;
}

}  // namespace inferd::rpc
