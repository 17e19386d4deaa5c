// SPDX-License-Identifier: Apache-2.0
// The data of app/vllm_flags.h, in the order of vLLM's own help. docs/vllm-flags.md shows it; the
// unit test writes that page's table and compares.
#include "app/vllm_flags.h"

namespace inferd::app {
namespace vllm_table {

using enum FlagShape;
using enum FlagFate;

constexpr const char* kOwnTokenizer = "leave it out, the tokenizer is read from the model's files";
constexpr const char* kNoCode = "inferd runs no code of models or plugins";
constexpr const char* kNoPlugins = "inferd loads no plugins; leave it out";
constexpr const char* kTextOnly = "inferd serves text only";
constexpr const char* kReading = "each rank reads what it needs from mapped files";
constexpr const char* kGroups =
    "say --dp N, and for several hosts --nnodes, --node-rank and --leader; the leader deals the "
    "replicas over the hosts";
constexpr const char* kOutsideBalance =
    "this server balances over its --dp replicas; for a balancer outside start a server for each";
constexpr const char* kWatched = "the leader watches its workers itself";
constexpr const char* kExperts = "experts stay where the plan puts them";
constexpr const char* kNoOverlap = "inferd does not split batches to overlap exchange";
constexpr const char* kLaunch =
    "inferd starts its ranks itself; for several hosts say --nnodes, --node-rank and --leader";
constexpr const char* kThreads = "one process with threads; see --io-threads, --request-threads";
constexpr const char* kPreempted = "a preempted sequence is computed again";
constexpr const char* kNoOffload = "inferd keeps the KV cache where the model computes";
constexpr const char* kMetrics = "/metrics always has the KV cache";
constexpr const char* kNoMamba = "inferd has no Mamba models";
constexpr const char* kShare =
    "prompts share what --max-num-batched-tokens and --target-itl leave of a step";
constexpr const char* kNoLora = "inferd has no LoRA";
constexpr const char* kMergeLora =
    "inferd has no LoRA; merge the adapter into the weights and serve those";
constexpr const char* kSpeculative =
    "say --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 5}'; only ngram "
    "is there";
constexpr const char* kOwnEngine = "inferd enforces structure with its own engine";
constexpr const char* kNoTransfer = "inferd moves no KV cache between servers; leave it out";
constexpr const char* kNoCompiler = "inferd compiles no models";
constexpr const char* kOwnKernels = "kernels are chosen by the device";
constexpr const char* kHeader = "CORS answers name what an endpoint takes";
constexpr const char* kBodies = "--max-body-bytes bounds a request";
constexpr const char* kNoContent = "what clients send and get is never logged";
constexpr const char* kWithRequest = "send it with the requests that want it";
constexpr const char* kOldScheduler = "it belonged to vLLM's old scheduler";

constexpr VllmFlag kFlags[] = {
    // The model.
    {"--model --dtype --quantization -q --max-model-len", kValue, kOwn, ""},
    {"--served-model-name", kList, kOwn, ""},
    {"--enforce-eager --enable-sleep-mode", kSwitch, kOwn, ""},
    {"--tokenizer --tokenizer-revision", kValue, kRefused, kOwnTokenizer},
    {"--tokenizer-mode", kValue, kAnyway, "the model's", "auto hf"},
    {"--tokenizer-mode", kValue, kIgnored, "the tokenizer is the model's"},
    {"--skip-tokenizer-init", kSwitch, kIgnored, "prompts of token ids are taken beside texts"},
    {"--revision", kValue, kAnyway, "the default", "main"},
    {"--revision", kValue, kRefused, "say it with the model: --model hf://ORG/NAME@REVISION"},
    {"--code-revision", kValue, kIgnored, kNoCode},
    {"--trust-remote-code", kSwitch, kIgnored, kNoCode},
    {"--hf-token", kOptional, kRefused, "set HF_TOKEN; everyone on a host sees its flags"},
    {"--hf-config-path", kValue, kRefused, "config.json is that of the model; leave it out"},
    {"--runner", kValue, kIgnored, "each server generates, embeds and scores"},
    {"--convert", kValue, kAnyway, "embeddings and scores are there", "auto none embed"},
    {"--convert", kValue, kRefused, "of pooling, inferd has embeddings and scores from them only"},
    {"--seed", kValue, kIgnored, "a request without a seed draws its own; send seed"},
    {"--max-logprobs", kValue, kIgnored, "a request may have 20"},
    {"--logprobs-mode", kValue, kAnyway, "logprobs are those of the raw logits", "raw_logprobs"},
    {"--logprobs-mode", kValue, kRefused, "logprobs are those of the raw logits; leave it out"},
    {"--disable-sliding-window", kSwitch, kIgnored, "a window is part of its model"},
    {"--disable-cascade-attn", kSwitch, kAnyway, "there is no cascade attention"},
    {"--enable-prompt-embeds", kSwitch, kRefused, "prompts are texts or token ids; leave it out"},
    {"--generation-config", kValue, kAnyway, "the model's is used", "auto"},
    {"--generation-config", kValue, kRefused, "the model's is used; requests may say otherwise"},
    {"--override-generation-config", kJson, kRefused, "send the parameters with each request"},
    {"--hf-overrides", kJson, kRefused, "change config.json of a copy of the model"},
    {"--model-impl --config-format", kValue, kIgnored, "inferd has one implementation"},
    {"--pooler-config", kJson, kIgnored, "embeddings are the last token's, of length 1"},
    {"--logits-processors", kList, kRefused, kNoPlugins},
    {"--io-processor-plugin", kValue, kRefused, kNoPlugins},
    {"--allowed-local-media-path", kValue, kIgnored, kTextOnly},
    {"--allowed-media-domains", kList, kIgnored, kTextOnly},
    {"--limit-mm-per-prompt --mm-processor-kwargs --media-io-kwargs", kJson, kIgnored, kTextOnly},
    {"--mm-processor-cache-gb --mm-encoder-tp-mode", kValue, kIgnored, kTextOnly},
    {"--language-model-only", kSwitch, kAnyway, kTextOnly},
    // Loading.
    {"--load-format", kValue, kAnyway, "found by the files", "auto hf safetensors gguf"},
    {"--load-format",
     kValue,
     kIgnored,
     kReading,
     "fastsafetensors instanttensor runai_streamer runai_streamer_sharded"},
    {"--load-format", kValue, kRefused, "give safetensors or GGUF files, and leave it out"},
    {"--download-dir", kValue, kRefused, "set INFERD_CACHE to the folder"},
    {"--model-loader-extra-config", kJson, kIgnored, kReading},
    {"--safetensors-load-strategy --safetensors-prefetch-*", kValue, kIgnored, kReading},
    {"--ignore-patterns", kList, kIgnored, "only what the model needs is fetched"},
    {"--use-tqdm-on-load", kSwitch, kIgnored, "a terminal gets a bar, a log gets lines"},
    {"--pt-load-map-location", kJson, kIgnored, kReading},
    // Parallel.
    {"--tensor-parallel-size -tp --pipeline-parallel-size -pp", kValue, kOwn, ""},
    {"--data-parallel-size -dp", kValue, kOwn, ""},
    {"--enable-expert-parallel", kSwitch, kOwn, ""},
    {"-ep", kSwitch, kOwn, "without a number; with one it is --ep"},
    {"--pp-layer-partition", kValue, kAlias, "--pp-partition"},
    {"--data-parallel-size-local -dpl", kValue, kIgnored, "the leader deals replicas over hosts"},
    {"--data-parallel-rank -dpn --data-parallel-start-rank -dpr", kValue, kRefused, kGroups},
    {"--data-parallel-address -dpa --data-parallel-rpc-port -dpp", kValue, kRefused, kGroups},
    {"--data-parallel-backend -dpb", kValue, kAnyway, "processes", "mp"},
    {"--data-parallel-backend -dpb", kValue, kRefused, kLaunch},
    {"--data-parallel-hybrid-lb -dph --data-parallel-external-lb -dpe",
     kSwitch,
     kRefused,
     kOutsideBalance},
    {"--data-parallel-supervisor-port --dp-supervisor-probe-*", kValue, kIgnored, kWatched},
    {"--all2all-backend --expert-placement-strategy", kValue, kIgnored, kExperts},
    {"--enable-eplb", kSwitch, kIgnored, kExperts},
    {"--eplb-config", kJson, kIgnored, kExperts},
    {"--enable-elastic-ep", kSwitch, kRefused, "ranks are fixed while a server runs"},
    {"--enable-dbo", kSwitch, kIgnored, kNoOverlap},
    {"--dbo-decode-token-threshold --dbo-prefill-token-threshold --ubatch-size",
     kValue,
     kIgnored,
     kNoOverlap},
    {"--decode-context-parallel-size -dcp --prefill-context-parallel-size -pcp",
     kValue,
     kAnyway,
     "contexts are not cut over ranks",
     "1"},
    {"--decode-context-parallel-size -dcp --prefill-context-parallel-size -pcp",
     kValue,
     kRefused,
     "contexts are not cut over ranks; use --tp or --pp"},
    {"--distributed-executor-backend", kValue, kAnyway, "processes", "mp uni"},
    {"--distributed-executor-backend", kValue, kRefused, kLaunch},
    {"--nnodes --node-rank", kValue, kOwn, ""},
    {"-n", kValue, kAlias, "--nnodes"},
    {"-r", kValue, kAlias, "--node-rank"},
    {"--master-addr --master-port", kValue, kAlias, "--leader"},
    {"--distributed-timeout-seconds", kValue, kIgnored, "see --step-deadline-ms, --peer-timeout"},
    {"--disable-custom-all-reduce", kSwitch, kIgnored, "see --distributed-backend"},
    {"--device-ids", kList, kRefused, "say --device cuda:0,2"},
    {"--numa-bind", kSwitch, kIgnored, "start inferd under numactl to bind it"},
    {"--numa-bind-nodes --numa-bind-cpus",
     kList,
     kIgnored,
     "start inferd under numactl to bind it"},
    {"--headless", kSwitch, kAnyway, "only the host with --node-rank 0 serves HTTP"},
    {"--api-server-count -asc", kValue, kIgnored, kThreads},
    {"--disable-frontend-multiprocessing", kSwitch, kAnyway, kThreads},
    {"--worker-cls --worker-extension-cls", kValue, kRefused, kNoPlugins},
    {"--max-parallel-loading-workers", kValue, kIgnored, kReading},
    {"--enable-fault-tolerance", kSwitch, kAnyway, "a lost worker is always replaced"},
    // Memory and cache.
    {"--gpu-memory-utilization --kv-cache-memory-bytes --kv-cache-dtype", kValue, kOwn, ""},
    {"--enable-prefix-caching", kSwitch, kOwn, ""},
    {"--block-size", kValue, kAnyway, "a page has 32 tokens", "32"},
    {"--block-size", kValue, kIgnored, "a page has 32 tokens"},
    {"--calculate-kv-scales",
     kSwitch,
     kIgnored,
     "fp8 has the scales of the checkpoint or 1, int8 its own anyway"},
    {"--num-gpu-blocks-override", kValue, kRefused, "say --kv-cache-bytes"},
    {"--prefix-caching-hash-algo", kValue, kIgnored, "inferd has one hash"},
    {"--kv-offloading-size --kv-offloading-backend", kValue, kIgnored, kNoOffload},
    {"--cpu-offload-gb", kValue, kAnyway, "nothing is offloaded", "0"},
    {"--cpu-offload-gb", kValue, kRefused, "use more --tp or --pp, or a quantised model"},
    {"--swap-space --preemption-mode", kValue, kIgnored, kPreempted},
    {"--kv-cache-metrics", kSwitch, kIgnored, kMetrics},
    {"--kv-cache-metrics-sample", kValue, kIgnored, kMetrics},
    {"--mamba-*", kValue, kIgnored, kNoMamba},
    // Scheduler.
    {"--max-num-batched-tokens --max-num-seqs", kValue, kOwn, ""},
    {"--max-num-scheduled-tokens", kValue, kIgnored, "see --max-num-batched-tokens"},
    {"--enable-chunked-prefill", kSwitch, kAnyway, "prompts are always computed in chunks"},
    {"--long-prefill-token-threshold", kValue, kIgnored, kShare},
    {"--max-num-partial-prefills --max-long-partial-prefills", kValue, kIgnored, kShare},
    {"--max-num-queued-reqs", kValue, kAlias, "--max-waiting"},
    {"--max-num-queued-tokens", kValue, kAlias, "--max-waiting-tokens"},
    {"--scheduling-policy", kValue, kAnyway, "priority, then fair turns", "fcfs priority"},
    {"--scheduling-policy", kValue, kIgnored, "by priority, then in fair turns"},
    {"--scheduler-reserve-full-isl", kSwitch, kIgnored, "the scheduler reserves as it needs"},
    {"--watermark", kValue, kIgnored, "the scheduler reserves as it needs"},
    {"--async-scheduling", kSwitch, kIgnored, "steps follow each other without it"},
    {"--stream-interval", kValue, kAnyway, "each token is sent as it comes", "1"},
    {"--stream-interval", kValue, kIgnored, "each token is sent as it comes"},
    {"--disable-hybrid-kv-cache-manager", kSwitch, kIgnored, "inferd has one kind of KV cache"},
    {"--scheduler-cls", kValue, kRefused, kNoPlugins},
    {"--prefill-schedule-interval", kValue, kIgnored, kShare},
    {"--disable-chunked-mm-input", kSwitch, kIgnored, kTextOnly},
    // LoRA, speculation, structure, transfer.
    {"--enable-lora", kSwitch, kRefused, kMergeLora},
    {"--lora-modules", kList, kRefused, kMergeLora},
    {"--max-loras --max-lora-rank --max-cpu-loras --lora-dtype", kValue, kIgnored, kNoLora},
    {"--fully-sharded-loras", kSwitch, kIgnored, kNoLora},
    {"--speculative-config", kJson, kOwn, "method ngram only"},
    {"-sc", kJson, kAlias, "--speculative-config"},
    {"--spec-method --spec-model --spec-tokens", kValue, kRefused, kSpeculative},
    {"--structured-outputs-config", kJson, kIgnored, kOwnEngine},
    {"--guided-decoding-backend", kValue, kIgnored, kOwnEngine},
    {"--reasoning-parser --tool-call-parser", kValue, kOwn, "auto is the default"},
    {"--enable-auto-tool-choice", kSwitch, kAnyway, "tools are on; off: --tool-call-parser none"},
    {"--enable-reasoning", kSwitch, kAnyway, "reasoning is on; off: --reasoning-parser none"},
    {"--reasoning-parser-plugin --tool-parser-plugin", kValue, kRefused, "see --tool-dialects"},
    {"--tool-server", kValue, kRefused, "clients run tools; leave it out"},
    {"--kv-transfer-config --ec-transfer-config", kJson, kRefused, kNoTransfer},
    {"--kv-events-config", kJson, kOwn, ""},
    {"--cudagraph-capture-sizes", kList, kAlias, "--cuda-graph-sizes"},
    {"--max-cudagraph-capture-size", kValue, kAlias, "--cuda-graph-sizes"},
    {"--compilation-config -cc -O", kJson, kIgnored, kNoCompiler},
    {"--optimization-level --performance-mode", kValue, kIgnored, kNoCompiler},
    {"--attention-backend --moe-backend --linear-backend", kValue, kIgnored, kOwnKernels},
    // HTTP and the log.
    {"--host --port --uds --ssl-keyfile --ssl-certfile --ssl-ca-certs", kValue, kOwn, ""},
    {"--api-key", kList, kOwn, ""},
    {"--enable-ssl-refresh --enable-force-include-usage", kSwitch, kOwn, ""},
    {"--ssl-cert-reqs",
     kValue,
     kIgnored,
     "with --ssl-ca-certs clients must show a certificate, else they need none"},
    {"--ssl-ciphers", kValue, kRefused, "put a proxy with those ciphers before inferd"},
    {"--allowed-origins", kJsonList, kOwn, ""},
    {"--allowed-methods --allowed-headers", kJson, kAnyway, kHeader, "[\"*\"]"},
    {"--allowed-methods --allowed-headers", kJson, kIgnored, kHeader},
    {"--allow-credentials", kSwitch, kIgnored, "keys come in a header, cookies are not used"},
    {"--root-path", kValue, kIgnored, "let the proxy take the prefix off"},
    {"--middleware", kValue, kRefused, kNoPlugins},
    {"--uvicorn-log-level", kValue, kIgnored, "see --log-level"},
    {"--disable-uvicorn-access-log --disable-log-requests", kSwitch, kAlias, "--no-access-log"},
    {"--disable-access-log-for-endpoints", kValue, kAnyway, "probes and /metrics are not logged"},
    {"--enable-request-id-headers", kSwitch, kAnyway, "answers always have X-Request-Id"},
    {"--h11-max-incomplete-event-size --h11-max-header-count", kValue, kIgnored, kBodies},
    {"--chat-template", kValue, kOwn, "a file"},
    {"--trust-request-chat-template", kSwitch, kOwn, ""},
    {"--chat-template-content-format", kValue, kAnyway, "inferd chooses", "auto"},
    {"--chat-template-content-format", kValue, kIgnored, "inferd chooses it by the template"},
    {"--default-chat-template-kwargs", kJson, kRefused, "send chat_template_kwargs with requests"},
    {"--response-role", kValue, kAnyway, "replies have it", "assistant"},
    {"--response-role", kValue, kRefused, "replies have the role assistant; leave it out"},
    {"--return-tokens-as-token-ids", kSwitch, kRefused, kWithRequest},
    {"--exclude-tools-when-tool-choice-none", kSwitch, kAnyway, "the prompt never has them then"},
    {"--enable-prompt-tokens-details", kSwitch, kAnyway, "usage always has them"},
    {"--enable-server-load-tracking", kSwitch, kAnyway, "/load is always there"},
    {"--enable-log-requests", kSwitch, kIgnored, "see --access-log: one line for each request"},
    {"--enable-log-outputs --enable-log-deltas", kSwitch, kIgnored, kNoContent},
    {"--max-log-len", kValue, kIgnored, kNoContent},
    {"--log-config-file", kValue, kIgnored, "see --log-level"},
    {"--disable-log-stats", kSwitch, kIgnored, "/metrics has the statistics, the log does not"},
    {"--show-hidden-metrics-for-version", kValue, kIgnored, "see --metrics-compat vllm-old"},
    {"--otlp-traces-endpoint --shutdown-timeout", kValue, kOwn, ""},
    {"--collect-detailed-traces", kList, kIgnored, "a span is always whole"},
    {"--grpc", kSwitch, kIgnored, "gRPC is served beside HTTP, on --grpc-port"},
    {"--disable-fastapi-docs", kSwitch, kIgnored, "there are none, only /openapi.json"},
    {"--enable-offline-docs", kSwitch, kIgnored, "there are none, only /openapi.json"},
    {"--tokens-only", kSwitch, kIgnored, "texts are served beside token ids"},
    {"--fingerprint-mode", kValue, kIgnored, "see --model-version"},
    // Of older versions.
    {"--task", kValue, kAnyway, "as --runner", "auto generate embed embedding score"},
    {"--task", kValue, kRefused, "inferd generates, embeds and scores only"},
    {"--rope-scaling", kJson, kRefused, "change config.json of a copy of the model"},
    {"--rope-theta", kValue, kRefused, "change config.json of a copy of the model"},
    {"--max-seq-len-to-capture", kValue, kIgnored, "see --cuda-graph-sizes"},
    {"--num-scheduler-steps --num-lookahead-slots", kValue, kIgnored, kOldScheduler},
    {"--use-v2-block-manager --multi-step-stream-outputs", kSwitch, kIgnored, kOldScheduler},
};

}  // namespace vllm_table

std::span<const VllmFlag> VllmFlags() { return vllm_table::kFlags; }

}  // namespace inferd::app
