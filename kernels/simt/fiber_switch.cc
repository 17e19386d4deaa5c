// SPDX-License-Identifier: Apache-2.0
#include "kernels/simt/fiber_switch.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// Saves the callee's registers on the old stack and takes up the new one: rdi = where to keep the
// old stack pointer, rsi = the new one.
extern "C" void inferd_simt_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(.pushsection .text
.type inferd_simt_switch,@function
inferd_simt_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size inferd_simt_switch,.-inferd_simt_switch
.popsection)");
#else
#error "the emulated device needs inferd_simt_switch for this processor"
#endif

namespace inferd::simt {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
#else
constexpr std::size_t kStackBytes = std::size_t{64} << 10;
#endif
constexpr std::size_t kPageBytes = 4096;

}  // namespace

SIMT_UNTRACED void MakeFiber(Fiber* fiber, std::size_t number, void (*main)()) {
  void* memory = mmap(nullptr,
                      kStackBytes + kPageBytes,
                      PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1,
                      0);
  if (memory == MAP_FAILED || mprotect(memory, kPageBytes, PROT_NONE) != 0) {
    std::perror("emulated device: a stack for a CUDA thread");
    std::abort();
  }
  fiber->stack = static_cast<char*>(memory) + kPageBytes;
  auto top =
      reinterpret_cast<std::uintptr_t>(fiber->stack + kStackBytes - 64 - (number % 61) * 192);
  auto** slot = reinterpret_cast<void**>(top & ~std::uintptr_t{15});
  *--slot = nullptr;  // as if called: the stack is 8 off 16 at entry
  *--slot = reinterpret_cast<void*>(main);
  for (int i = 0; i < 6; ++i) {
    *--slot = nullptr;
  }
  fiber->stack_pointer = slot;
#if defined(__SANITIZE_THREAD__)
  fiber->tsan_fiber = __tsan_create_fiber(0);
#endif
}

SIMT_UNTRACED void AdoptThread([[maybe_unused]] Fiber* fiber) {
#if defined(__SANITIZE_THREAD__)
  fiber->tsan_fiber = __tsan_get_current_fiber();
#endif
}

SIMT_UNTRACED void SwitchFiber(Fiber* from, Fiber* to) {
#if defined(__SANITIZE_ADDRESS__)
  // A host thread's stack is not known here; its bounds come back from the switch that leaves it.
  static thread_local const void* host_bottom = nullptr;
  static thread_local std::size_t host_size = 0;
  if (to->stack != nullptr) {
    __sanitizer_start_switch_fiber(&from->asan_stack, to->stack, kStackBytes);
  } else {
    pthread_attr_t attributes;
    if (host_bottom == nullptr && pthread_getattr_np(pthread_self(), &attributes) == 0) {
      void* bottom = nullptr;
      pthread_attr_getstack(&attributes, &bottom, &host_size);
      pthread_attr_destroy(&attributes);
      host_bottom = bottom;
    }
    __sanitizer_start_switch_fiber(&from->asan_stack, host_bottom, host_size);
  }
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to->tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  inferd_simt_switch(&from->stack_pointer, to->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->asan_stack, nullptr, nullptr);
#endif
}

SIMT_UNTRACED void StartedFiber([[maybe_unused]] Fiber* fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

SIMT_UNTRACED void ReleaseSync([[maybe_unused]] char* sync) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(sync);
#endif
}

SIMT_UNTRACED void AcquireSync([[maybe_unused]] char* sync) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(sync);
#endif
}

void GuardTail([[maybe_unused]] char* data,
               [[maybe_unused]] std::size_t bytes,
               [[maybe_unused]] std::size_t room) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, bytes);
  const std::size_t first = (bytes + 7) / 8 * 8;
  __asan_poison_memory_region(data + first, room - first);
#endif
}

SIMT_UNTRACED void PoisonBytes(void* data, std::size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  auto* out = static_cast<volatile unsigned char*>(data);  // memset would be seen
  for (std::size_t i = 0; i < bytes; ++i) {
    out[i] = 0xFF;
  }
#else
  std::memset(data, 0xFF, bytes);
#endif
}

__attribute__((noinline)) void CopyVisibly(void* to, const void* from, int size, int valid) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  for (int i = 0; i < size; ++i) {
    out[i] = i < valid ? in[i] : '\0';
  }
}

}  // namespace inferd::simt
