// SPDX-License-Identifier: Apache-2.0
#include "rpc/control_server.h"

#include "base/error.h"
#include "base/log.h"
#include "inferd/v1/worker.grpc.pb.h"
#include "rpc/channel_args.h"
#include "rpc/convert.h"
#include "rpc/secret.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

namespace inferd::rpc {
namespace {

using Stream = grpc::ServerReaderWriter<v1::ToWorker, v1::FromWorker>;

/// Valid for as long as the handler runs; afterwards `stream_` is null and Send answers false.
class PeerImpl : public Peer {
 public:
  PeerImpl(grpc::ServerContext* context, Stream* stream) : context_(context), stream_(stream) {}

  const Hello& hello() const override { return hello_; }
  void set_hello(Hello hello) { hello_ = std::move(hello); }

  bool Send(const ToWorker& message) override {
    v1::ToWorker proto;
    ToProto(message, &proto);
    const std::lock_guard lock(write_mutex_);
    return stream_ != nullptr && stream_->Write(proto);
  }

  void Close() override {
    // Not under write_mutex_: this is what unblocks a Send that waits for a peer that does not
    // read.
    const std::lock_guard lock(context_mutex_);
    if (context_ != nullptr) {
      context_->TryCancel();
    }
  }

  void Refuse(const Error& error) override { refusal_ = error; }
  const std::optional<Error>& refusal() const { return refusal_; }

  void Detach() {
    {
      const std::lock_guard lock(context_mutex_);
      if (!refusal_) {
        context_->TryCancel();
      }
      context_ = nullptr;
    }
    const std::lock_guard lock(write_mutex_);
    stream_ = nullptr;
  }

 private:
  std::mutex context_mutex_;
  grpc::ServerContext* context_;
  std::mutex write_mutex_;
  Stream* stream_;
  Hello hello_;
  std::optional<Error> refusal_;  // set and read on the stream's own thread
};

class Service : public v1::Control::Service {
 public:
  Service(std::string proof, PeerListener* listener)
      : proof_(std::move(proof)), listener_(listener) {}

  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override {
    const auto found = context->client_metadata().find(kAuthMetadata);
    if (found == context->client_metadata().end() ||
        !SameProof(proof_, {found->second.data(), found->second.size()})) {
      log::Warning("rpc",
                   "refused a control stream from {}: wrong or missing cluster secret",
                   context->peer());
      return {grpc::StatusCode::UNAUTHENTICATED, "wrong or missing cluster secret"};
    }
    v1::FromWorker proto;
    if (!stream->Read(&proto)) {
      return grpc::Status::OK;
    }
    Result<FromWorker> first = FromProto(proto);
    if (!first.ok() || !std::holds_alternative<Hello>(*first)) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "the first message must be a hello"};
    }
    auto peer = std::make_shared<PeerImpl>(context, stream);
    peer->set_hello(std::get<Hello>(*std::move(first)));
    if (peer->hello().build != kBuild) {
      log::Warning("rpc",
                   "refused worker {} of build '{}': this is '{}'",
                   peer->hello().worker_id,
                   peer->hello().build,
                   kBuild);
      return {grpc::StatusCode::FAILED_PRECONDITION,
              fmt::format("this host runs build '{}' and the leader '{}': start the same on both",
                          peer->hello().build,
                          kBuild)};
    }
    listener_->OnHello(peer);
    while (!peer->refusal() && stream->Read(&proto)) {
      Result<FromWorker> message = FromProto(proto);
      if (!message.ok()) {
        log::Warning("rpc",
                     "worker {}: {}; closing its stream",
                     peer->hello().worker_id,
                     message.error().message());
        break;
      }
      listener_->OnMessage(peer, *std::move(message));
    }
    peer->Detach();
    listener_->OnClosed(peer);
    if (peer->refusal()) {
      return {static_cast<grpc::StatusCode>(peer->refusal()->code()), peer->refusal()->message()};
    }
    return grpc::Status::OK;
  }

 private:
  const std::string proof_;
  PeerListener* const listener_;
};

class ServerImpl : public ControlServer {
 public:
  ServerImpl(std::string proof, PeerListener* listener) : service_(std::move(proof), listener) {}
  ~ServerImpl() override { Stop(); }

  Result<> Start(const ControlServerOptions& options) {
    grpc::ServerBuilder builder;
    SetServerArguments(&builder);
    int unix_bound = 0;
    if (!options.unix_path.empty()) {
      builder.AddListeningPort(
          "unix:" + options.unix_path, grpc::InsecureServerCredentials(), &unix_bound);
    }
    if (!options.tcp_address.empty()) {
      INFERD_ASSIGN(const TlsIdentity identity, DeriveTlsIdentity(options.secret));
      grpc::SslServerCredentialsOptions tls(
          GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
      tls.pem_root_certs = identity.ca_pem;
      tls.pem_key_cert_pairs.push_back({identity.key_pem, identity.certificate_pem});
      builder.AddListeningPort(options.tcp_address, grpc::SslServerCredentials(tls), &tcp_port_);
    }
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return FailedPrecondition("cannot listen for workers on {}{}{}",
                                options.unix_path,
                                options.tcp_address.empty() ? "" : " and ",
                                options.tcp_address);
    }
    return {};
  }

  int tcp_port() const override { return tcp_port_; }

  void Stop() override {
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
      server_->Wait();
      server_.reset();
    }
  }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int tcp_port_ = 0;
};

}  // namespace

Result<std::unique_ptr<ControlServer>> StartControlServer(const ControlServerOptions& options,
                                                          PeerListener* listener) {
  INFERD_TRY(CheckSecret(options.secret));
  auto server = std::make_unique<ServerImpl>(ControlProof(options.secret), listener);
  INFERD_TRY(server->Start(options));
  return std::unique_ptr<ControlServer>(std::move(server));
}

}  // namespace inferd::rpc
