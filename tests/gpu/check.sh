#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks for the day a GPU is there: unattended, in the order of value, saved as it goes, done in 10 minutes.
#
#   tests/gpu/check.sh [--dry-run] [--build DIR] [--out DIR] [--seconds N]
#
# DIR of --build holds inferd and the test binaries: build/cuda, made by `./dev cuda gpu_check`, or a bundle of it for a machine
# that has neither compilers nor our libraries (tests/gpu/bundle.sh); with --dry-run build/dev, in which everything runs on the emulated device, with small shapes and a part of the tests (ctest runs them all). One line of
# JSON per step goes to OUT/results.jsonl, its output to OUT/<step>.log, what it measured to OUT/<step>.jsonl. Exit status:
# the number of steps that failed; 77 when there is no CUDA device.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

dry=0 build="" out="${OUT:-build/gpu-check}" budget=570
while [ $# -gt 0 ]; do
  case "$1" in
    --dry-run) dry=1 ;;
    --build) build="$2"; shift ;;
    --out) out="$2"; shift ;;
    --seconds) budget="$2"; shift ;;
    *) printf 'check.sh: unknown argument %s\n' "$1" >&2; exit 64 ;;
  esac
  shift
done
device=cuda
[ "$dry" = 1 ] && device=cuda-emu
[ -n "$build" ] || { [ "$dry" = 1 ] && build=build/dev || build=build/cuda; }
# A bundle (tests/gpu/bundle.sh) brings its libraries, and was built from sources elsewhere.
if [ -d "$build/lib" ]; then
  export LD_LIBRARY_PATH="$(realpath "$build/lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
export INFERD_TEST_DATA="$PWD/tests/data"
kernel_tests="$build/tests/kernels_cuda/test_kernels_cuda"
for binary in inferd src/test_model tests/kernels_cuda/test_kernels_cuda tests/gpu/shape_bench tests/gpu/kernel_sweep; do
  [ -x "$build/$binary" ] || {
    printf 'check.sh: %s is missing: ./dev %s makes it\n' "$build/$binary" \
      "$([ "$dry" = 1 ] && echo 'build dev gpu_check' || echo 'cuda gpu_check')" >&2
    exit 64
  }
done
mkdir -p "$out"
: > "$out/results.jsonl"
started=$SECONDS failed=0

# say NAME STATE STATUS SECONDS [REASON]
say() {
  printf '{"step":"%s","state":"%s","status":%d,"seconds":%d%s}\n' "$1" "$2" "$3" "$4" "${5:+,\"reason\":\"$5\"}" \
    | tee -a "$out/results.jsonl"
}

# step NAME SECONDS COMMAND...: runs within its own limit and what is left of the whole; keeps the JSON lines it prints.
step() {
  local name="$1" limit="$2" begin=$SECONDS left=$((budget - (SECONDS - started))) status=0 state
  shift 2
  rm -f "$out/$name.log" "$out/$name.jsonl"  # what an earlier run measured
  [ "$limit" -lt "$left" ] || limit=$left
  if [ "$limit" -lt 5 ]; then
    failed=$((failed + 1))
    say "$name" no_time -1 0
    return
  fi
  timeout -k 5 "$limit" "$@" > "$out/$name.log" 2>&1 || status=$?
  # A device is there (77, a program's "no device", is a failure too), and a filter that names no test shows nothing.
  case "$status" in 0) state=ok ;; 124 | 137) state=timed_out ;; *) state=failed ;; esac
  if [ "$state" = ok ] && grep -q 'PASSED  \] 0 tests' "$out/$name.log"; then
    state=no_tests
  fi
  [ "$state" = ok ] || failed=$((failed + 1))
  if grep -q '^{' "$out/$name.log"; then
    grep '^{' "$out/$name.log" > "$out/$name.jsonl"
  fi
  say "$name" "$state" "$status" $((SECONDS - begin))
}

bench() { step "$1" "$2" "$build/inferd" bench "${@:3}" --device "$device" --json; }  # a model, through the whole engine
shape() { step "$1" "$2" "$build/tests/gpu/shape_bench" "${@:3}" --device "$device"; }  # a decoder, without files
sweep() { step "$1" "$2" "$build/tests/gpu/kernel_sweep" "${@:3}" "$1"; }               # single kernels
decoder() { step decoder "$1" env INFERD_TEST_DEVICE="$device" "$build/src/test_model" --gtest_filter="$2"; }

if [ "$dry" = 1 ]; then
  step doctor 20 "$build/inferd" doctor
  step kernels 60 "$kernel_tests" --gtest_filter='RowsCuda.*:EmbeddingCuda.*:GraphsCuda.*:Simt.*:MoeCuda.Sort*'
  sweep copy 20 --tiny
  decoder 60 '*CudaEmuGoldenTest*llama*:*CudaGraphs*:NcclAlone*'
  shape shape_tiny 30 --shape tiny --streams 1,3 --context 40 --steps 4 --prefill 70
  for name in small_matmul decode_attention prefill_attention large_matmul cublas experts rows; do
    sweep "$name" 20 --tiny
  done
  bench engine_dense 30 tests/data/llama --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
  bench engine_experts 30 tests/data/mixtral --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
  bench engine_int4 30 tests/data/quantised/gptq --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
  say all "$([ "$failed" = 0 ] && echo ok || echo failed)" "$failed" $((SECONDS - started))
  exit "$failed"
fi

# The kernel tests' main asks for the device and runs nothing else.
status=0
"$kernel_tests" --gtest_filter=NONE > "$out/device.log" 2>&1 || status=$?
if [ "$status" != 0 ]; then
  reason="$(tail -n 1 "$out/device.log")"
  say device "$([ "$status" = 77 ] && echo skipped || echo failed)" "$status" 0 "$(tr -d '"\\' <<< "$reason")"
  exit "$status"
fi
step device 20 nvidia-smi -q
step topology 20 nvidia-smi topo -m
step doctor 20 "$build/inferd" doctor
# Correctness before speed: the kernels against their references, then the decoder against transformers.
step kernels 100 "$kernel_tests" --gtest_filter='-AllReduceCuda.*'
# These wait for each other on the device: nothing may be loaded meanwhile, and a hang must cost no more than itself.
step all_reduce 20 env CUDA_MODULE_LOADING=EAGER "$kernel_tests" --gtest_filter='AllReduceCuda.*'
sweep copy 30
decoder 120 '*CudaEmu*:*QuantisedModel*:*CudaGraphs*:*DeviceSampling*:*BatchInvariance*:*Fp8Model*:*W8A8Model*:*KvScales*:NcclAlone*'
# The shape of an 8B model with random weights, made here: decode of 1 to 256 streams and prefill, BF16 and FP8.
shape shape_8b 150 --shape 8b
sweep small_matmul 40
sweep decode_attention 40
sweep prefill_attention 30
sweep large_matmul 30
sweep cublas 30
sweep experts 40
sweep w8a8 30
if command -v compute-sanitizer > /dev/null; then
  # It lets one kernel run at a time: those that wait for each other are left out, and the longest comparisons.
  quick='-AllReduceCuda.*:GraphsCuda.*:*OverGroupsWindowsAndSplits:*OverChunksWindowsSinksAndSoftcap'
  step memcheck 80 compute-sanitizer --error-exitcode 9 "$kernel_tests" --gtest_filter="$quick"
  step racecheck 60 compute-sanitizer --tool racecheck --error-exitcode 9 "$kernel_tests" \
    --gtest_filter='RowsCuda.*:MoeCuda.*:AttentionCuda.ARows*:MatMulCuda.ARows*'
else
  say memcheck skipped 77 0 "compute-sanitizer is not on PATH"
fi
# A real model, when one was carried along; then the engine on tiny ones.
if [ -n "${MODEL:-}" ]; then
  bench model 120 "$MODEL" --prompt-tokens 2048 --context 128,2048 --streams 1,16,64,256 --output-tokens 64
fi
bench engine_dense 40 tests/data/llama --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
bench engine_experts 40 tests/data/mixtral --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
bench engine_int4 40 tests/data/quantised/gptq --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
sweep rows 20
shape shape_8b_eager 60 --shape 8b --weights bf16 --streams 1,16 --prefill 2048 --enforce-eager
say all "$([ "$failed" = 0 ] && echo ok || echo failed)" "$failed" $((SECONDS - started))
exit "$failed"
