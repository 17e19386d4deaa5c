// SPDX-License-Identifier: Apache-2.0
#include "app/settings.h"

#include "app/front_settings.h"
#include "base/error.h"
#include "spec/kv_dtype.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace inferd::app {
namespace {

constexpr std::size_t kMaxDecimals = 12;
constexpr std::int64_t kInt32 = std::numeric_limits<std::int32_t>::max();

void AddModel(ModelConfig* m, std::vector<Setting>* out) {
  out->insert(
      out->end(),
      {
          {"model.model",
           {"--model", "-m"},
           "Path of a model, a catalog name, a hub name (hf://ORG/NAME@REVISION:FILE, scheme, "
           "revision and "
           "file as needed), or s3://BUCKET/PREFIX (docs/models.md)",
           &m->model},
          {"model.served_model_name",
           {"--served-model-name"},
           "Names that clients may use, comma-separated; default: --model as given",
           &m->served_model_name},
          {"model.model_version",
           {"--model-version"},
           "What to call this set of weights, for NAME@VERSION, the answers' header and the usage "
           "ledger; default: a fingerprint of the files",
           &m->model_version},
          {"model.chat_template",
           {"--chat-template"},
           "File with a Jinja chat template in place of the model's own",
           &m->chat_template},
          {"model.trust_request_chat_template",
           {"--trust-request-chat-template"},
           "Let a request bring its own chat_template (it runs bounded and without host access)",
           &m->trust_request_chat_template},
          {"model.warmup_file",
           {"--warmup-file"},
           "Requests that are run before the server is ready, as lines of a batch "
           "(docs/operations.md)",
           &m->warmup_file},
          {"model.warmup_timeout_s",
           {"--warmup-timeout"},
           "Seconds that they get; then the server is ready without the rest",
           &m->warmup_timeout_s,
           1,
           86'400},
          {"model.force_include_usage",
           {"--enable-force-include-usage"},
           "End every stream with its usage, as gateways that count tokens want it",
           &m->force_include_usage},
          {"model.tool_call_parser",
           {"--tool-call-parser"},
           "How the model writes tool calls: a name of docs/tools.md, auto or none",
           &m->tool_call_parser},
          {"model.reasoning_parser",
           {"--reasoning-parser"},
           "How the model marks reasoning: a name of docs/tools.md, auto or none",
           &m->reasoning_parser},
          {"model.tool_dialects",
           {"--tool-dialects"},
           "YAML file with more ways of writing tool calls and reasoning",
           &m->tool_dialects},
          {.key = "model.max_model_len",
           .flags = {"--max-model-len"},
           .help =
               "Longest prompt plus reply in tokens, e.g. 8192, 8k or 8K; 0 or auto: what model "
               "and memory allow",
           .value = &m->max_model_len,
           .max = kInt32,
           .zeros = {"auto", "-1"}},
          {.key = "model.dtype",
           .flags = {"--dtype"},
           .help = "What BF16 weights meet on CPUs: float32 or (faster on AMD) bfloat16 inputs",
           .value = &m->dtype,
           .choices = {"auto", "bfloat16", "float32", "float", "float16", "half"}},
          {.key = "model.quantization",
           .flags = {"--quantization", "-q"},
           .help = "fp8, int8, int4: round plain weights at load; awq, gptq, ...: what files hold",
           .value = &m->quantization},
          {"model.offline", {"--offline"}, "Never download a model", &m->offline},
          {"model.cache_bytes",
           {"--model-cache-bytes"},
           "Bound of all downloaded models together: those not used for the longest time make "
           "room; "
           "0: none",
           &m->cache_bytes},
          {"model.connections",
           {"--download-connections"},
           "Connections that read a model from an object store",
           &m->connections,
           1,
           64},
      });
}

void AddParallel(ParallelConfig* p, std::vector<Setting>* out) {
  out->insert(out->end(),
              {
                  {"parallel.tp",
                   {"--tp", "--tensor-parallel-size"},
                   "Ranks that share every matrix",
                   &p->tp,
                   1,
                   1024},
                  {"parallel.pp",
                   {"--pp", "--pipeline-parallel-size"},
                   "Stages that share the layers",
                   &p->pp,
                   1,
                   1024},
                  {"parallel.ep",
                   {"--ep", "--expert-parallel-size"},
                   "Groups that share the experts of a mixture-of-experts model",
                   &p->ep,
                   1,
                   1024},
                  {"parallel.dp",
                   {"--dp", "--data-parallel-size"},
                   "Replicas in this server",
                   &p->dp,
                   1,
                   1024},
                  {"parallel.enable_expert_parallel",
                   {"--enable-expert-parallel"},
                   "Deal whole experts over the ranks of a --tp group",
                   &p->enable_expert_parallel},
                  {"parallel.pp_partition",
                   {"--pp-partition"},
                   "Layers of each stage, e.g. 12,20; default: balanced by bytes",
                   &p->pp_partition,
                   1,
                   100'000},
                  {"parallel.allow_cross_host_tp",
                   {"--allow-cross-host-tp"},
                   "Let a --tp group span hosts",
                   &p->allow_cross_host_tp},
                  {"parallel.distributed_backend",
                   {"--distributed-backend"},
                   "How ranks exchange activations: nccl, on GPUs; host, through shared memory or "
                   "TCP; auto: nccl where it can serve",
                   &p->distributed_backend,
                   0,
                   0,
                   {"auto", "nccl", "host"}},
              });
}

void AddWorker(WorkerSettings* w, std::vector<Setting>* out) {
  out->insert(
      out->end(),
      {
          {.key = "worker.device",
           .flags = {"--device"},
           .help = "What runs the model: cpu, cuda, some GPUs (cuda:0,2 or cuda:GPU-<uuid> or "
                   "cuda:MIG-<uuid>), cuda-emu, GPUs emulated on the CPU, or sim:PROFILE[/MODEL], "
                   "workers that take the time a device would (docs/devices.md)",
           .value = &w->device,
           .choices = {"cpu", "cuda", "cuda-emu", "sim"},
           .choice_takes_more = true},
          {"worker.threads",
           {"--threads"},
           "Compute threads of this host, all ranks together; 0: all CPUs",
           &w->threads,
           0,
           4096},
          {"worker.kv_cache_bytes",
           {"--kv-cache-bytes", "--kv-cache-memory-bytes"},
           "Memory for the KV cache of this host; 0: a quarter of what is free, at most 4 GiB",
           &w->kv_cache_bytes},
          {.key = "worker.kv_cache_dtype",
           .flags = {"--kv-cache-dtype"},
           .help =
               "Type of the KV cache; auto: fp8 where the checkpoint says so, F32 for F32 weights, "
               "else F16 (bf16 for values beyond 65504); fp8 (E4M3 times the checkpoint's scales, "
               "at most 448 without) and int8 (a scale per token and head) take about half of 16 "
               "bits",
           .value = &w->kv_cache_dtype,
           .choices = spec::KvDtypeNames()},
          {"worker.gpu_memory_utilization",
           {"--gpu-memory-utilization"},
           "Share of a GPU's memory to use; without effect on CPUs",
           &w->gpu_memory_utilization,
           0,
           1},
          {"worker.batch_invariant",
           {"--batch-invariant"},
           "Give a request the same bits whatever runs beside it, at the price of a slower prefill "
           "on GPUs; CPUs always do",
           &w->batch_invariant},
          {"worker.enforce_eager",
           {"--enforce-eager"},
           "Launch every kernel of every step, without CUDA graphs; without effect on CPUs",
           &w->enforce_eager},
          {"worker.cuda_graph_sizes",
           {"--cuda-graph-sizes"},
           "Rows of the steps that CUDA graphs are recorded for, e.g. 1,8,32; one number: 1, 2, 4, "
           "8, 16, ... up to it; default: up to --max-num-seqs",
           &w->cuda_graph_sizes,
           1,
           65'536},
      });
}

void AddScheduler(SchedulerConfig* s, std::vector<Setting>* out) {
  out->insert(
      out->end(),
      {
          {"scheduler.max_num_seqs",
           {"--max-num-seqs"},
           "Sequences that run at once, per replica",
           &s->max_num_seqs,
           1,
           65'536},
          {"scheduler.max_num_batched_tokens",
           {"--max-num-batched-tokens"},
           "Tokens per step",
           &s->max_num_batched_tokens,
           1,
           1 << 20},
          {"scheduler.target_itl",
           {"--target-itl"},
           "Time between two tokens of a stream that the prompts of others may stretch it to, e.g. "
           "80ms; 0: no bound. Prompts get at least half of the time in any case",
           &s->target_itl},
          {"scheduler.max_waiting",
           {"--max-waiting"},
           "Sequences that may wait, per replica; beyond: 429",
           &s->max_waiting,
           1,
           kInt32},
          {"scheduler.max_waiting_tokens",
           {"--max-waiting-tokens"},
           "Tokens of prompts that may wait, per replica; beyond: 429; 0: no limit",
           &s->max_waiting_tokens,
           0,
           std::int64_t{1} << 40},
          {"scheduler.max_predicted_wait_ms",
           {"--max-predicted-wait-ms"},
           "A request that would wait longer for its turn, by the rate of the last seconds, "
           "gets a 429 at once; 0: no limit",
           &s->max_predicted_wait_ms,
           0,
           kInt32},
          {"scheduler.enable_prefix_caching",
           {"--enable-prefix-caching"},
           "Keep the KV of finished prompts for later ones that begin alike",
           &s->enable_prefix_caching},
          {"scheduler.step_deadline_ms",
           {"--step-deadline-ms"},
           "A worker that takes longer for a step is replaced",
           &s->step_deadline_ms,
           100,
           3'600'000},
          {"scheduler.recovery_deadline_ms",
           {"--recovery-deadline-ms"},
           "Lost workers that are not back in so long, nor load further, fail what waits for them; "
           "when no replica is left, the server ends with status 3",
           &s->recovery_deadline_ms,
           100,
           kInt32},
          {"scheduler.stall_deadline_ms",
           {"--stall-deadline-ms"},
           "Without a finished step for so long while requests are there, /livez says 503, for the "
           "server to be restarted; at least a second more than --step-deadline-ms and "
           "--recovery-deadline-ms; 0: it never does",
           &s->stall_deadline_ms,
           0,
           kInt32},
          {"scheduler.queue_deadline_ms",
           {"--queue-deadline-ms"},
           "A request that waits longer is refused; 0: no limit",
           &s->queue_deadline_ms,
           0,
           kInt32},
          {"scheduler.speculative_config",
           {"--speculative-config"},
           "Guess tokens ahead and check several in one step, as JSON; the text stays the "
           "same. {\"method\": \"ngram\", \"num_speculative_tokens\": 5} guesses by what "
           "followed the same words before; also prompt_lookup_max, prompt_lookup_min "
           "(words that must match), adaptive (guess only while it pays: true)",
           &s->speculative_config},
      });
}

void AddCluster(ClusterConfig* c, std::vector<Setting>* out) {
  out->insert(
      out->end(),
      {
          {"cluster.nnodes", {"--nnodes"}, "Hosts of this server", &c->nnodes, 1, 1024},
          {"cluster.node_rank",
           {"--node-rank"},
           "0 on the leader's host, 1, 2, ... on the others; -1: the leader gives one",
           &c->node_rank,
           -1,
           1023},
          {"cluster.leader", {"--leader"}, "HOST:PORT of the leader's control port", &c->leader},
          {"cluster.data_address",
           {"--data-address"},
           "This host's address for data between hosts",
           &c->data_address},
          {"cluster.secret_file",
           {"--cluster-secret-file"},
           "File with the secret all hosts share; or INFERD_CLUSTER_SECRET",
           &c->secret_file},
          {"cluster.runtime_dir",
           {"--runtime-dir"},
           "Folder for the control socket; empty: under $TMPDIR or /tmp",
           &c->runtime_dir},
          {"cluster.rendezvous_timeout_s",
           {"--rendezvous-timeout"},
           "Seconds to wait for the other hosts, and for their names to resolve",
           &c->rendezvous_timeout_s,
           1,
           86'400},
          {"cluster.peer_timeout_s",
           {"--peer-timeout"},
           "Seconds that another host may be away once the server was ready; then it ends with "
           "status 4",
           &c->peer_timeout_s,
           1,
           86'400},
      });
}

/// 8k and 1.5m in powers of 1000, 8K in powers of 1024; nullopt: it is neither.
std::optional<std::int64_t> ParseShortInt(std::string_view text) {
  constexpr std::string_view kSuffixes = "kmgt";
  if (text.size() < 2 || std::isdigit(static_cast<unsigned char>(text.front())) == 0) {
    return std::nullopt;
  }
  const char last = text.back();
  const bool is_binary = std::isupper(static_cast<unsigned char>(last)) != 0;
  const std::size_t power =
      kSuffixes.find(static_cast<char>(std::tolower(static_cast<unsigned char>(last))));
  if (power == std::string_view::npos) {
    return std::nullopt;
  }
  text.remove_suffix(1);
  const std::size_t dot = text.find('.');
  const std::string_view fraction =
      dot == std::string_view::npos ? std::string_view() : text.substr(dot + 1);
  std::string digits(text.substr(0, dot));
  digits += fraction;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool has_point = dot != std::string_view::npos;
  if (error != std::errc() || end != digits.data() + digits.size() ||
      (has_point && (is_binary || fraction.empty())) || fraction.size() > kMaxDecimals) {
    return std::nullopt;
  }
  // The decimals are whole thousandths, or cut off, as vLLM cuts them.
  std::int64_t scale = 1;
  for (std::size_t i = 0; i <= power; ++i) {
    scale *= is_binary ? 1024 : 1000;
  }
  std::int64_t divisor = 1;
  for (std::size_t i = 0; i < fraction.size(); ++i) {
    divisor *= 10;
  }
  std::int64_t product = 0;
  if (__builtin_mul_overflow(value, scale, &product)) {
    return std::nullopt;
  }
  return product / divisor;
}

Result<std::int64_t> ParseInt(const Setting& setting,
                              std::string_view source,
                              std::string_view text) {
  std::int64_t value = 0;
  if (std::find(setting.zeros.begin(), setting.zeros.end(), text) != setting.zeros.end()) {
    return value;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    const std::optional<std::int64_t> short_form = ParseShortInt(text);
    if (!short_form) {
      return InvalidArgument("{} must be an integer, not '{}'", source, text);
    }
    value = *short_form;
  }
  if (value < setting.min || value > setting.max) {
    return InvalidArgument(
        "{} is {}; it must be from {} to {}", source, value, setting.min, setting.max);
  }
  return value;
}

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    if (comma != 0) {
      parts.emplace_back(text.substr(0, comma));
    }
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return parts;
}

struct FromText {
  const Setting& setting;
  std::string_view source;
  const std::string& text;

  Result<> operator()(std::string* value) const {
    const auto& choices = setting.choices;
    const std::string chosen = setting.choice_takes_more ? text.substr(0, text.find(':')) : text;
    if (!choices.empty() && std::find(choices.begin(), choices.end(), chosen) == choices.end()) {
      std::string known;
      for (const auto& choice : choices) {
        known += (known.empty() ? "" : ", ") + (choice.empty() ? "''" : choice);
      }
      return InvalidArgument("{} is '{}'; this build knows {}", source, text, known);
    }
    *value = text;
    return {};
  }
  Result<> operator()(std::int64_t* value) const {
    INFERD_ASSIGN(*value, ParseInt(setting, source, text));
    return {};
  }
  Result<> operator()(double* value) const {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' ||
        !(number > 0 && number <= static_cast<double>(setting.max))) {
      return InvalidArgument(
          "{} is '{}'; it must be a number above 0 and at most {}", source, text, setting.max);
    }
    *value = number;
    return {};
  }
  Result<> operator()(bool* value) const {
    if (text != "true" && text != "false" && text != "1" && text != "0") {
      return InvalidArgument("{} must be true or false, not '{}'", source, text);
    }
    *value = text == "true" || text == "1";
    return {};
  }
  Result<> operator()(std::vector<std::string>* value) const {
    *value = Split(text);
    return {};
  }
  Result<> operator()(std::vector<std::int64_t>* value) const {
    std::vector<std::int64_t> numbers;
    for (const auto& part : Split(text)) {
      INFERD_ASSIGN(const std::int64_t number, ParseInt(setting, source, part));
      numbers.push_back(number);
    }
    *value = std::move(numbers);
    return {};
  }
};

/// Where a value may be set that is not one of ours by name.
struct Foreign {
  const char* environment;
  const char* key;
};
constexpr Foreign kForeign[] = {
    {"LWS_GROUP_SIZE", "cluster.nnodes"},
    {"LWS_WORKER_INDEX", "cluster.node_rank"},
    {"HF_HUB_OFFLINE", "model.offline"},
    {"POD_IP", "cluster.data_address"},
    {"TENSOR_PARALLEL_SIZE", "parallel.tp"},
    {"PIPELINE_PARALLEL_SIZE", "parallel.pp"},
};

}  // namespace

std::vector<Setting> Settings(Config* config) {
  std::vector<Setting> settings;
  AddModel(&config->model, &settings);
  AddParallel(&config->parallel, &settings);
  AddWorker(&config->worker, &settings);
  AddScheduler(&config->scheduler, &settings);
  AddCluster(&config->cluster, &settings);
  AddFrontSettings(config, &settings);
  return settings;
}

Result<> SetFromText(const Setting& setting, std::string_view source, const std::string& text) {
  return std::visit(FromText{setting, source, text}, setting.value);
}

std::string EnvironmentName(const Setting& setting) {
  std::string name = "INFERD_";
  for (const char c : setting.flags.front().substr(2)) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::string Nearest(std::string_view asked, const std::vector<std::string>& names) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, asked.size() / 3) + 1;
  for (const std::string& name : names) {
    std::vector<std::size_t> row(name.size() + 1);
    for (std::size_t j = 0; j <= name.size(); ++j) {
      row[j] = j;
    }
    for (std::size_t i = 1; i <= asked.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= name.size(); ++j) {
        const std::size_t substitute = diagonal + (asked[i - 1] == name[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = name;
    }
  }
  return best;
}

/// Kubernetes sets INFERD_PORT=tcp://10.0.0.1:8000 in every pod near a Service called inferd.
static bool IsServiceLink(std::string_view name, std::string_view text) {
  return name.ends_with("_PORT") && (text.starts_with("tcp://") || text.starts_with("udp://"));
}

Result<> ApplyEnvironment(const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) {
    for (const Foreign& foreign : kForeign) {
      const char* const text =
          setting.key == foreign.key ? std::getenv(foreign.environment) : nullptr;
      if (text != nullptr && *text != '\0') {
        INFERD_TRY(SetFromText(setting, foreign.environment, text));
      }
    }
    const std::string name = EnvironmentName(setting);
    const char* const text = std::getenv(name.c_str());
    if (text != nullptr && *text != '\0' && !IsServiceLink(name, text)) {
      INFERD_TRY(SetFromText(setting, name, text));
    }
  }
  return {};
}

}  // namespace inferd::app
