// SPDX-License-Identifier: Apache-2.0
#include "rpc/control_client.h"

#include "base/error.h"
#include "inferd/v1/worker.grpc.pb.h"
#include "rpc/channel_args.h"
#include "rpc/convert.h"
#include "rpc/secret.h"

#include <grpcpp/grpcpp.h>

#include <mutex>
#include <utility>

namespace inferd::rpc {
namespace {

class ClientImpl : public ControlClient {
 public:
  explicit ClientImpl(std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)), stub_(v1::Control::NewStub(channel_)) {}
  ~ClientImpl() override { context_.TryCancel(); }

  Result<> Open(const std::string& proof, const Hello& hello) {
    context_.AddMetadata(kAuthMetadata, proof);
    stream_ = stub_->Attach(&context_);
    if (stream_ == nullptr || !Send(hello)) {
      return Ended();
    }
    return {};
  }

  bool Send(const FromWorker& message) override {
    v1::FromWorker proto;
    ToProto(message, &proto);
    const std::lock_guard lock(write_mutex_);
    return stream_->Write(proto);
  }

  Result<ToWorker> Receive() override {
    v1::ToWorker proto;
    if (!stream_->Read(&proto)) {
      return Ended();
    }
    return FromProto(proto);
  }

  void Close() override { context_.TryCancel(); }

 private:
  Error Ended() {
    const grpc::Status status = stream_->Finish();
    const Code code = status.ok() ? Code::kUnavailable : static_cast<Code>(status.error_code());
    return {code,
            status.ok() ? "the leader closed the control stream"
                        : "control stream: " + status.error_message()};
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::mutex write_mutex_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::FromWorker, v1::ToWorker>> stream_;
};

}  // namespace

Result<std::unique_ptr<ControlClient>> Attach(const ControlClientOptions& options, Hello hello) {
  INFERD_TRY(CheckSecret(options.secret));
  grpc::ChannelArguments arguments = ClientArguments();
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (options.leader.starts_with("unix:")) {
    credentials = grpc::InsecureChannelCredentials();
  } else {
    INFERD_ASSIGN(const TlsIdentity identity, DeriveTlsIdentity(options.secret));
    credentials =
        grpc::SslCredentials({identity.ca_pem, identity.key_pem, identity.certificate_pem});
    arguments.SetSslTargetNameOverride(kTlsName);
  }
  auto channel = grpc::CreateCustomChannel(options.leader, credentials, arguments);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + options.connect_deadline)) {
    return Unavailable(
        "cannot reach the leader at {} within {} ms; check that it runs, the address, and that "
        "both sides have the "
        "same cluster secret",
        options.leader,
        options.connect_deadline.count());
  }
  hello.build = kBuild;
  auto client = std::make_unique<ClientImpl>(std::move(channel));
  INFERD_TRY(client->Open(ControlProof(options.secret), hello));
  return std::unique_ptr<ControlClient>(std::move(client));
}

}  // namespace inferd::rpc
