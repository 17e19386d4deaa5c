#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks for the day a GPU is there: unattended, in the order of value, saved as it goes, done in 10 minutes.
#
#   tests/gpu/check.sh [--dry-run] [--build DIR] [--out DIR] [--seconds N]
#
# DIR of --build holds inferd and the test binaries (build/cuda; with --dry-run build/dev, where everything runs on the
# emulated device). One line of JSON per step goes to OUT/results.jsonl, its output to OUT/<step>.log. Exit status: the
# number of steps that failed.
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
mkdir -p "$out"
: > "$out/results.jsonl"
started=$SECONDS failed=0

# step NAME SECONDS COMMAND...: runs within its own limit and what is left of the whole.
step() {
  local name="$1" limit="$2" begin=$SECONDS left=$((budget - (SECONDS - started))) status=0 state
  shift 2
  [ "$limit" -lt "$left" ] || limit=$left
  if [ "$limit" -lt 5 ]; then
    status=-1 state=no_time
  else
    timeout -k 5 "$limit" "$@" > "$out/$name.log" 2>&1 || status=$?
    case "$status" in 0) state=ok ;; 124 | 137) state=timed_out ;; *) state=failed ;; esac
  fi
  [ "$state" = ok ] || failed=$((failed + 1))
  printf '{"step":"%s","state":"%s","status":%d,"seconds":%d}\n' "$name" "$state" "$status" $((SECONDS - begin)) \
    | tee -a "$out/results.jsonl"
}

# A model's speed through the whole engine loop; its JSON lines are kept.
bench() {
  local name="$1" limit="$2"
  shift 2
  step "$name" "$limit" "$build/inferd" bench "$@" --device "$device" --json
  grep -h '^{' "$out/$name.log" > "$out/$name.jsonl" 2>/dev/null || true
}

# A device's speed on a model's shape, without files.
shape() {
  local name="$1" limit="$2"
  shift 2
  step "$name" "$limit" "$build/tests/gpu/shape_bench" "$@" --device "$device"
  grep -h '^{' "$out/$name.log" > "$out/$name.jsonl" 2>/dev/null || true
}

if [ "$dry" = 0 ]; then
  step device 20 nvidia-smi -q
  step topology 20 nvidia-smi topo -m
fi
step doctor 20 "$build/inferd" doctor
# Correctness before speed: the kernels against their references, then the decoder against transformers.
step kernels 120 "$build/tests/kernels_cuda/test_kernels_cuda"
INFERD_TEST_DEVICE="$device" step decoder 150 "$build/src/test_model" \
  --gtest_filter='*CudaEmu*:*QuantisedModel*:*CudaGraphs*:*DeviceSampling*:*BatchInvariance*:*Fp8Model*:NcclAlone*'
# The shape of an 8B model with random weights, made here: decode of 1 to 256 streams and prefill, BF16 and FP8.
if [ "$dry" = 0 ]; then
  shape shape_8b 150 --shape 8b
  shape shape_8b_eager 60 --shape 8b --weights bf16 --streams 1,16 --prefill 2048 --enforce-eager
else
  shape shape_tiny 60 --shape tiny --streams 1,3 --context 40 --steps 4 --prefill 70
fi
bench engine_dense 60 tests/data/llama --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
bench engine_experts 60 tests/data/mixtral --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
bench engine_int4 60 tests/data/quantised/gptq --prompt-tokens 32 --context 8 --streams 1,4 --output-tokens 8
if [ "$dry" = 0 ]; then
  # A real model, when one was carried along.
  if [ -n "${MODEL:-}" ]; then
    bench model 120 "$MODEL" --prompt-tokens 2048 --context 128,2048 --streams 1,16,64,256 --output-tokens 64
  fi
  if command -v compute-sanitizer > /dev/null; then
    step memcheck 90 compute-sanitizer --error-exitcode 9 "$build/tests/kernels_cuda/test_kernels_cuda" \
      --gtest_filter='*Rows*:*Embed*'
    step racecheck 60 compute-sanitizer --tool racecheck --error-exitcode 9 \
      "$build/tests/kernels_cuda/test_kernels_cuda" --gtest_filter='*Rows*'
  fi
fi
printf '{"step":"all","failed":%d,"seconds":%d}\n' "$failed" $((SECONDS - started)) | tee -a "$out/results.jsonl"
exit "$failed"
