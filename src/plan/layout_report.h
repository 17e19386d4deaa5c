// SPDX-License-Identifier: Apache-2.0
// A LayoutPlan as a table for people and as JSON.
#pragma once

#include "plan/layouts.h"

#include <string>

namespace inferd::plan {

/// The best layout in full, and a line for each of the others.
std::string DescribeLayouts(const LayoutRequest& request, const LayoutPlan& plan);
std::string LayoutsJson(const LayoutRequest& request, const LayoutPlan& plan);

}  // namespace inferd::plan
