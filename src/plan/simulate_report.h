// SPDX-License-Identifier: Apache-2.0
// Results of simulations as tables and JSON.
#pragma once

#include "plan/simulate.h"

#include <optional>
#include <string>
#include <vector>

namespace inferd::plan {

/// A layout and how it did.
struct SimulatedLayout {
  std::string name;  // "tp 4 pp 1 ep 1"
  int replicas = 0;
  int spares = 0;
  SimulateResult result;
  std::optional<Knee> knee;
};

std::string DescribeSimulation(const std::vector<SimulatedLayout>& layouts, double share);
std::string SimulationJson(const std::vector<SimulatedLayout>& layouts, double share);

}  // namespace inferd::plan
