# SPDX-License-Identifier: Apache-2.0
# Every dependency, one line of reason each. System packages of Debian 12; `./dev setup` installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)                              # formatting of messages and logs
find_package(spdlog REQUIRED)                           # log sinks (base/log.cc only)
find_package(nlohmann_json REQUIRED)                    # JSON of requests, configs and indexes
find_package(Boost 1.81 REQUIRED COMPONENTS url)        # Asio (event loop), Beast (HTTP parser), URL
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPC REQUIRED IMPORTED_TARGET grpc++) # leader-worker stream, gRPC front end
find_library(INFERD_GRPC_REFLECTION grpc++_reflection REQUIRED)  # lets clients ask the gRPC port what it speaks
find_package(Protobuf REQUIRED)
find_package(OpenSSL REQUIRED)                          # sha256, HMAC, certificates, TLS
find_package(CURL REQUIRED)                             # model download
find_package(yaml-cpp REQUIRED)                         # config file and model catalog
find_package(SQLite3 REQUIRED)                          # usage ledger: one file, read while it is written
find_package(CLI11 REQUIRED)                            # flags
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)  # metrics text
find_library(INFERD_ZMQ zmq REQUIRED)                   # KV events to routers (leader/kv_event_publisher.cc only)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)  # cores, caches and NUMA nodes of this host (inferd topo)
if(INFERD_CUDA)
  include(cuda_toolkit)                                 # nvcc and the static runtime: kernels for real devices
endif()
if(INFERD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(INFERD_BENCH)
  find_package(benchmark REQUIRED)
endif()
