// SPDX-License-Identifier: Apache-2.0
// Where this process stands among the hosts of a server, when what started it says so in the
// environment instead of by flags.
#pragma once

#include "inferd/config.h"
#include "inferd/result.h"

#include <functional>
#include <string>

namespace inferd::app {

/// The value of an environment variable; null or empty: not set.
using Environment = std::function<const char*(const char*)>;

/// Fills what flags, file and INFERD_* left out of nnodes, node_rank and leader, from the first
/// that is there:
///   LeaderWorkerSet: LWS_GROUP_SIZE, LWS_WORKER_INDEX, LWS_LEADER_ADDRESS
///   KServe workers:  HEAD_SVC, POD_NAMESPACE, RAY_NODE_COUNT; the leader gives the rank (-1)
///   StatefulSet:     POD_INDEX or the number that POD_NAME ends with, SERVICE_NAME, POD_NAMESPACE;
///                    only with --nnodes
///   torchrun:        RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR
///   Open MPI, Slurm: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_SIZE}, or SLURM_{NODEID,NNODES}, MASTER_ADDR
/// One process per host: a second one on a host is refused. Answers what was used, for the log;
/// empty: nothing.
Result<std::string> ApplyRendezvous(const Environment& environment, ClusterConfig* cluster);

}  // namespace inferd::app
