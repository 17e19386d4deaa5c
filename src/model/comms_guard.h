// SPDX-License-Identifier: Apache-2.0
// While a rank's device works, somebody must see that a peer is gone: a collective in its queue
// waits for ever.
#pragma once

#include "comm/communicator.h"
#include "inferd/result.h"
#include "model/rank.h"
#include "tensor/device_queue.h"

#include <chrono>
#include <vector>

namespace inferd::model {

/// Watches the groups of a rank while its device works.
class CommsGuard final : public tensor::WaitGuard {
 public:
  void Watch(const RankComms& comms) {
    groups_.clear();
    for (comm::Communicator* comm : {comms.tp.get(), comms.ep.get(), comms.pp.get()}) {
      if (comm != nullptr && comm->device() != nullptr) {
        groups_.push_back(comm);
      }
    }
  }
  bool empty() const { return groups_.empty(); }

  Result<> Check(std::chrono::nanoseconds waited) override {
    for (comm::Communicator* broken : groups_) {
      Result<> whole = broken->device()->Check(waited);
      if (whole.ok()) {
        continue;
      }
      // What waits in the queue may be of any of them. Abort only asks for the end; it is the next
      // Check on this thread that ends a group. What those say is an echo of the first.
      for (comm::Communicator* group : groups_) {
        group->Abort();
        (void)group->device()->Check(waited);
      }
      return whole;
    }
    return {};
  }

 private:
  std::vector<comm::Communicator*> groups_;
};

}  // namespace inferd::model
