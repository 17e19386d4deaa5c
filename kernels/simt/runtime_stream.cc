// SPDX-License-Identifier: Apache-2.0
// Streams and events. A stream is a queue of functions; whoever waits for it runs them. One that
// says it is not done yet (a collective whose peers are late) stays at the head and holds up what
// is behind it. In a captured stream they are collected instead (runtime_graph.cc).
#include "kernels/simt/runtime_api.h"
#include "kernels/simt/runtime_state.h"
#include "kernels/simt/runtime_streams.h"
#include "kernels/simt/settings.h"

#include <poll.h>
#include <sched.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace inferd::simt {
namespace {

struct Streams {
  std::mutex mutex;
  std::set<cudaStream_t> all;
};

Streams& TheStreams() {
  static Streams streams;
  return streams;
}

// The stream that this thread drives, and since when a kernel of it waits.
constinit thread_local cudaStream_t t_driven = nullptr;
constinit thread_local std::int64_t t_stalled_since = 0;

std::int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Runs what can run, with an event as far as that. False: the head is not done yet.
bool Drain(cudaStream_t stream, cudaEvent_t until = nullptr) {
  stream = OrDefault(stream);
  const std::lock_guard lock(stream->mutex);
  if (stream->draining) {
    return true;
  }
  stream->draining = true;
  const cudaStream_t outer = std::exchange(t_driven, stream);
  const auto is_there = [until] { return until != nullptr && until->reached >= until->recorded; };
  while (!stream->queue.empty() && !is_there()) {
    const auto work = std::move(stream->queue.front());
    stream->queue.pop_front();
    t_stalled_since = 0;
    if (!work()) {
      stream->queue.push_front(work);
      break;
    }
  }
  stream->draining = false;
  t_driven = outer;
  return stream->queue.empty() || is_there();
}

// For ever, as a device would.
void Finish(cudaStream_t stream) {
  while (!Drain(stream)) {
    ::sched_yield();
  }
}

bool FitsKind(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return (!to_device || IsDeviceMemory(to, bytes)) && (!from_device || IsDeviceMemory(from, bytes));
}

// The host's side of a copy need not be pinned, but a graph reads it when the caller is long gone.
bool IsPinnedOrDevice(const void* pointer, std::size_t bytes) {
  return IsDeviceMemory(pointer, bytes) || IsPinnedMemory(pointer, bytes);
}

bool IsCaptured(cudaStream_t stream) {
  stream = OrDefault(stream);
  const std::lock_guard lock(stream->mutex);
  return stream->capture != nullptr;
}

}  // namespace

cudaStream_t OrDefault(cudaStream_t stream) {
  static CUstream_st default_stream;
  return stream != nullptr ? stream : &default_stream;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  return EnqueueUntil(stream, [work = std::move(work)] {
    work();
    return true;
  });
}

cudaError_t EnqueueUntil(cudaStream_t stream, std::function<bool()> work) {
  stream = OrDefault(stream);
  const std::lock_guard lock(stream->mutex);
  if (Capture* const capture = stream->capture.get(); capture != nullptr) {
    if (capture->invalid) {
      return Keep(cudaErrorStreamCaptureInvalidated);
    }
    capture->graph.work.push_back(std::move(work));
    return cudaSuccess;
  }
  stream->queue.push_back(std::move(work));
  if (!GetSettings().lazy_streams) {
    Drain(stream);
  }
  return cudaSuccess;
}

void OnStall(cudaStream_t stream, std::function<void(std::chrono::nanoseconds)> handler) {
  stream = OrDefault(stream);
  const std::lock_guard lock(stream->mutex);
  stream->on_stall = std::move(handler);
}

void HandleStall() {
  constexpr std::int64_t kYieldForNs = 5'000'000;
  const std::int64_t now = Now();
  t_stalled_since = t_stalled_since == 0 ? now : t_stalled_since;
  if (t_driven != nullptr && t_driven->on_stall) {
    t_driven->on_stall(std::chrono::nanoseconds(now - t_stalled_since));
  }
  if (now - t_stalled_since < kYieldForNs) {
    ::sched_yield();
  } else {
    const timespec little = {.tv_sec = 0, .tv_nsec = 50'000};
    ::ppoll(nullptr, 0, &little, nullptr);
  }
}

void FinishIdleStreams() {
  const auto done_or_driven = [](cudaStream_t stream) {
    const std::unique_lock lock(stream->mutex, std::try_to_lock);
    return !lock.owns_lock() || Drain(stream);
  };
  Streams& streams = TheStreams();
  for (bool done = false; !done; ::sched_yield()) {
    const std::lock_guard lock(streams.mutex);
    done = done_or_driven(OrDefault(nullptr));
    for (cudaStream_t stream : streams.all) {
      done = done_or_driven(stream) && done;
    }
  }
}

bool CountCaptured(cudaStream_t stream) {
  stream = OrDefault(stream);
  const std::lock_guard lock(stream->mutex);
  if (stream->capture != nullptr) {
    ++stream->capture->graph.launches;
  }
  return stream->capture != nullptr;
}

}  // namespace inferd::simt

using inferd::simt::DeviceState;
using inferd::simt::Drain;
using inferd::simt::Enqueue;
using inferd::simt::EnqueueUntil;
using inferd::simt::Finish;
using inferd::simt::Keep;
using inferd::simt::RefuseInCapture;
using inferd::simt::RefuseOn;

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  Finish(nullptr);
  // Under the lock, so that no other thread destroys a stream meanwhile.
  auto& streams = inferd::simt::TheStreams();
  for (bool done = false; !done; ::sched_yield()) {
    const std::lock_guard lock(streams.mutex);
    done = true;
    for (cudaStream_t stream : streams.all) {
      done = Drain(stream) && done;
    }
  }
  return DeviceState();
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, bytes > 0 ? 1 : 0, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to,
                              std::size_t to_pitch,
                              const void* from,
                              std::size_t from_pitch,
                              std::size_t width,
                              std::size_t height,
                              cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (const cudaError_t state = DeviceState(); state != cudaSuccess || height == 0) {
    return state;
  }
  for (const std::size_t row : {std::size_t{0}, height - 1}) {
    if (!inferd::simt::FitsKind(static_cast<char*>(to) + row * to_pitch,
                                static_cast<const char*>(from) + row * from_pitch,
                                width,
                                kind)) {
      return Keep(cudaErrorInvalidValue);
    }
  }
  const std::size_t last = (height - 1);
  if (inferd::simt::IsCaptured(stream) &&
      !(inferd::simt::IsPinnedOrDevice(to, last * to_pitch + width) &&
        inferd::simt::IsPinnedOrDevice(from, last * from_pitch + width))) {
    return RefuseOn(stream);
  }
  return Enqueue(stream, [=] {
    for (std::size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(to) + row * to_pitch,
                   static_cast<const char*>(from) + row * from_pitch,
                   width);
    }
  });
}

cudaError_t cudaMemcpyPeerAsync(
    void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t refused = RefuseInCapture(); refused != cudaSuccess) {
    return refused;
  }
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t state = DeviceState(); state != cudaSuccess || bytes == 0) {
    return state;
  }
  if (!inferd::simt::IsDeviceMemory(to, bytes)) {
    return Keep(cudaErrorInvalidValue);
  }
  return Enqueue(stream, [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  if (const cudaError_t refused = RefuseInCapture(); refused != cudaSuccess) {
    return refused;
  }
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t state = DeviceState(); state != cudaSuccess) {
    return state;
  }
  *stream = std::make_unique<CUstream_st>().release();
  auto& streams = inferd::simt::TheStreams();
  const std::lock_guard lock(streams.mutex);
  streams.all.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Drain(stream);
  {
    auto& streams = inferd::simt::TheStreams();
    const std::lock_guard lock(streams.mutex);
    streams.all.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = RefuseOn(stream); error != cudaSuccess) {
    return error;
  }
  Finish(stream);
  return DeviceState();
}
// Who asks once sees how far the stream was; who asks again and again drives it.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = RefuseOn(stream); error != cudaSuccess) {
    return error;
  }
  stream = inferd::simt::OrDefault(stream);
  const std::lock_guard lock(stream->mutex);
  if (stream->queue.empty()) {
    return DeviceState();
  }
  Drain(stream);
  return cudaErrorNotReady;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const cudaError_t error = Enqueue(stream, [=] { function(data); });
  return error != cudaSuccess ? error : DeviceState();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = std::make_unique<CUevent_st>().release();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  event->captured = inferd::simt::IsCaptured(stream);
  if (event->captured) {
    return DeviceState();  // An edge of the graph; of one stream there is but one order.
  }
  const std::uint64_t number = ++event->recorded;
  (void)Enqueue(stream, [=] {
    event->time_ns = inferd::simt::Now();
    event->reached = number;
  });
  return DeviceState();
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  if (event->captured) {
    return Keep(cudaErrorCapturedEvent);
  }
  if (event->reached >= event->recorded) {
    return DeviceState();
  }
  Drain(event->stream, event);  // As cudaStreamQuery does it; what is behind the event waits on.
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  if (event->captured) {
    return Keep(cudaErrorCapturedEvent);
  }
  while (event->reached < event->recorded && !Drain(event->stream, event)) {
    ::sched_yield();
  }
  return DeviceState();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = static_cast<float>(end->time_ns - begin->time_ns) * 1e-6F;
  return DeviceState();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (inferd::simt::IsCaptured(stream) && event->captured && event->stream == stream) {
    return DeviceState();
  }
  if (const cudaError_t error = RefuseOn(stream); error != cudaSuccess) {
    return error;
  }
  const std::uint64_t number = event->recorded;
  const cudaError_t error = EnqueueUntil(stream, [=] {
    if (event->reached < number) {
      Drain(event->stream);
    }
    return event->reached >= number;
  });
  return error != cudaSuccess ? error : DeviceState();
}
