// SPDX-License-Identifier: Apache-2.0
// The machine-dependent half of the emulation: stacks, the switch between them, and what the
// sanitizers must be told about both.
#pragma once

#include "kernels/simt/engine.h"

#include <cstddef>

namespace inferd::simt {

/// Gives `fiber` a stack on which `main` starts at the first switch. `number` staggers the stacks,
/// so that they do not all lie in the same cache sets.
void MakeFiber(Fiber* fiber, std::size_t number, void (*main)());
/// Makes `fiber` stand for the calling host thread.
void AdoptThread(Fiber* fiber);
void SwitchFiber(Fiber* from, Fiber* to);
/// First call on a new fiber.
void StartedFiber(Fiber* fiber);

/// Happens-before edges for the race detector: the switch itself is none.
void ReleaseSync(char* sync);
void AcquireSync(char* sync);

/// [data, data + bytes) is accessible, the rest up to `room` is not (AddressSanitizer only).
void GuardTail(char* data, std::size_t bytes, std::size_t room);
/// NaN bytes, unseen by the sanitizers.
void PoisonBytes(void* data, std::size_t bytes);
/// A copy that the sanitizers do see, as an access of the running fiber.
void CopyVisibly(void* to, const void* from, int size, int valid);

}  // namespace inferd::simt
