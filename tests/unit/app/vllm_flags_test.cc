// SPDX-License-Identifier: Apache-2.0
// vLLM's command line: every flag has a fate, values go with their flags, and the page lists all.
#include "app/vllm_flags.h"

#include "app/command_line.h"
#include "app/settings.h"
#include "base/file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace inferd::app {
namespace {

/// The flags of `vllm serve` 0.28 to 0.29, short forms included.
constexpr const char* kVllm = R"(
--model --served-model-name --tokenizer --tokenizer-mode --tokenizer-revision --skip-tokenizer-init
--revision --code-revision --hf-token --hf-config-path --trust-remote-code --runner --convert
--dtype --quantization -q --max-model-len --seed --enforce-eager --max-logprobs --logprobs-mode
--disable-sliding-window --disable-cascade-attn --enable-prompt-embeds --generation-config
--override-generation-config --hf-overrides --enable-sleep-mode --model-impl --config-format
--pooler-config --logits-processors --io-processor-plugin --allowed-local-media-path
--allowed-media-domains --limit-mm-per-prompt --mm-processor-cache-gb --mm-processor-kwargs
--mm-encoder-tp-mode --language-model-only --load-format --download-dir --model-loader-extra-config
--safetensors-load-strategy --safetensors-prefetch-num-threads --safetensors-prefetch-block-size
--ignore-patterns --use-tqdm-on-load --pt-load-map-location --tensor-parallel-size -tp
--pipeline-parallel-size -pp --data-parallel-size -dp --data-parallel-size-local -dpl
--data-parallel-rank -dpn --data-parallel-start-rank -dpr --data-parallel-address -dpa
--data-parallel-rpc-port -dpp --data-parallel-backend -dpb --data-parallel-hybrid-lb -dph
--data-parallel-external-lb -dpe --data-parallel-supervisor-port --dp-supervisor-probe-interval-s
--dp-supervisor-probe-timeout-s --dp-supervisor-probe-failure-threshold --enable-expert-parallel -ep
--all2all-backend --enable-eplb --eplb-config --expert-placement-strategy --enable-elastic-ep
--enable-dbo --dbo-decode-token-threshold --dbo-prefill-token-threshold --ubatch-size
--decode-context-parallel-size -dcp --prefill-context-parallel-size -pcp
--distributed-executor-backend --nnodes -n --node-rank -r --master-addr --master-port
--distributed-timeout-seconds --disable-custom-all-reduce --device-ids --numa-bind --numa-bind-nodes
--numa-bind-cpus --headless --api-server-count -asc --worker-cls --worker-extension-cls
--max-parallel-loading-workers --enable-fault-tolerance --gpu-memory-utilization
--kv-cache-memory-bytes --block-size --kv-cache-dtype --calculate-kv-scales
--num-gpu-blocks-override --enable-prefix-caching --prefix-caching-hash-algo --kv-offloading-size
--kv-offloading-backend --cpu-offload-gb --swap-space --preemption-mode --kv-cache-metrics
--kv-cache-metrics-sample --mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size
--mamba-cache-mode --max-num-batched-tokens --max-num-seqs --max-num-scheduled-tokens
--enable-chunked-prefill --long-prefill-token-threshold --max-num-partial-prefills
--max-long-partial-prefills --max-num-queued-reqs --max-num-queued-tokens --scheduling-policy
--scheduler-reserve-full-isl --watermark --async-scheduling --stream-interval
--disable-hybrid-kv-cache-manager --scheduler-cls --prefill-schedule-interval
--disable-chunked-mm-input --enable-lora --max-loras --max-lora-rank --max-cpu-loras --lora-dtype
--lora-modules --fully-sharded-loras --speculative-config -sc --spec-method --spec-model
--spec-tokens --structured-outputs-config --reasoning-parser --tool-call-parser
--enable-auto-tool-choice --reasoning-parser-plugin --tool-parser-plugin --tool-server
--kv-transfer-config --kv-events-config --ec-transfer-config --cudagraph-capture-sizes
--max-cudagraph-capture-size -cc --compilation-config -O --performance-mode --attention-backend
--moe-backend --linear-backend --host --port --uds --api-key --ssl-keyfile --ssl-certfile
--ssl-ca-certs --ssl-cert-reqs --ssl-ciphers --enable-ssl-refresh --allowed-origins
--allowed-methods --allowed-headers --allow-credentials --root-path --middleware
--uvicorn-log-level --disable-uvicorn-access-log --disable-access-log-for-endpoints
--enable-request-id-headers --h11-max-incomplete-event-size --h11-max-header-count --chat-template
--chat-template-content-format --default-chat-template-kwargs --trust-request-chat-template
--response-role --return-tokens-as-token-ids --exclude-tools-when-tool-choice-none
--enable-prompt-tokens-details --enable-force-include-usage --enable-server-load-tracking
--enable-log-requests --enable-log-outputs --enable-log-deltas --max-log-len --log-config-file
--disable-log-stats --show-hidden-metrics-for-version --otlp-traces-endpoint
--collect-detailed-traces --shutdown-timeout --grpc --disable-fastapi-docs --enable-offline-docs
--tokens-only --fingerprint-mode
)";

std::vector<std::string> WordsIn(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

std::set<std::string> OwnFlags() {
  Config config;
  std::set<std::string> flags{"-tp", "-pp", "-dp", "-ep"};
  for (const Setting& setting : Settings(&config)) {
    flags.insert(setting.flags.begin(), setting.flags.end());
  }
  return flags;
}

const VllmFlag* Row(const std::string& name) {
  for (const VllmFlag& flag : VllmFlags()) {
    for (const std::string& one : WordsIn(flag.names)) {
      if (one == name || (one.ends_with('*') && name.starts_with(one.substr(0, one.size() - 1)))) {
        return &flag;
      }
    }
  }
  return nullptr;
}

Result<CommandLine> Parse(const std::string& flags) {
  std::vector<std::string> words{"serve", "m"};
  for (const std::string& word : WordsIn(flags)) {
    words.push_back(word);
  }
  return ParseCommandLine(words);
}

std::string ErrorOf(const std::string& flags) {
  const auto line = Parse(flags);
  return line.ok() ? "none" : line.error().message();
}

TEST(VllmFlags, NoneIsUnknown) {
  for (const std::string& name : WordsIn(kVllm)) {
    const VllmFlag* const flag = Row(name);
    ASSERT_NE(flag, nullptr) << name;
    if (flag->fate == FlagFate::kOwn) {
      EXPECT_TRUE(OwnFlags().contains(name)) << name;
      continue;
    }
    // A value that no row names: the last row of the flag decides.
    const bool has_value = flag->shape != FlagShape::kSwitch;
    const auto line = Parse(name + (has_value ? " 7 --port 9" : " --port 9"));
    if (line.ok()) {
      EXPECT_EQ(line->config.http.port, 9) << name;
      EXPECT_EQ(line->config.model.model, "m") << name;
    } else {
      EXPECT_TRUE(line.error().message().starts_with(name)) << line.error().message();
      EXPECT_EQ(line.error().message().find("unknown"), std::string::npos) << name;
      EXPECT_EQ(line.error().code(), Code::kInvalidArgument) << "so the exit status is 1";
      EXPECT_GT(line.error().message().size(), name.size() + 10) << "a hint";
    }
    if (!has_value && name.starts_with("--")) {
      EXPECT_TRUE(Parse("--no-" + name.substr(2)).ok()) << name;
    }
  }
}

TEST(VllmFlags, TheTableIsSound) {
  const std::set<std::string> own = OwnFlags();
  std::map<std::string, std::pair<FlagShape, bool>> seen;  // whether its row for any value came
  for (const VllmFlag& flag : VllmFlags()) {
    for (const std::string& name : WordsIn(flag.names)) {
      const bool any_value = flag.values.empty();
      const auto [it, is_first] = seen.emplace(name, std::pair(flag.shape, false));
      EXPECT_EQ(it->second.first, flag.shape) << name << ": one shape";
      EXPECT_FALSE(it->second.second) << name << ": a row that nothing reaches";
      it->second.second = any_value;
      EXPECT_EQ(own.contains(name), flag.fate == FlagFate::kOwn) << name;
    }
    EXPECT_TRUE(flag.fate == FlagFate::kOwn || !flag.text.empty()) << flag.names;
    if (flag.fate == FlagFate::kAlias) {
      const std::string target(flag.text);
      EXPECT_TRUE(own.contains(target) || target == "--no-access-log") << target;
    }
  }
  for (const auto& [name, row] : seen) {
    EXPECT_TRUE(row.second) << name << " has no row for any value";
  }
}

TEST(VllmFlags, WarnsOncePerFlagAndSaysWhy) {
  const auto line = Parse("--trust-remote-code --swap-space 4 --swap-space=8 --seed -1 --tp 2");
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->warnings,
            (std::vector<std::string>{
                "--trust-remote-code has no effect: inferd runs no code of models or plugins",
                "--swap-space has no effect: a preempted sequence is computed again",
                "--seed has no effect: a request without a seed draws its own; send seed"}));
  EXPECT_EQ(line->config.parallel.tp, 2);
}

TEST(VllmFlags, WhatInferdDoesAnywayIsTakenSilently) {
  const auto line = Parse(
      "--enable-chunked-prefill --block-size 32 --load-format auto --enable-auto-tool-choice "
      "--headless --distributed-executor-backend mp --response-role=assistant "
      "--no-enable-lora --disable-access-log-for-endpoints /health,/metrics");
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_TRUE(line->warnings.empty()) << line->warnings.front();
  const auto other = Parse("--no-enable-chunked-prefill --block_size=16");
  ASSERT_TRUE(other.ok()) << other.error().message();
  EXPECT_EQ(other->warnings,
            (std::vector<std::string>{
                "--no-enable-chunked-prefill has no effect: prompts are always computed in chunks",
                "--block-size has no effect: a page has 32 tokens"}));
}

TEST(VllmFlags, RefusesWithAHint) {
  const std::vector<std::pair<std::string, std::string>> table{
      {"--enable-lora", "merge the adapter"},
      {"--lora-modules a=b c=d", "merge the adapter"},
      {"--load-format dummy", "--load-format dummy: give safetensors or GGUF"},
      {"--distributed-executor-backend=ray", "--distributed-executor-backend ray: inferd starts"},
      {"--revision v1", "hf://ORG/NAME@REVISION"},
      {"--hf-token", "--hf-token: set HF_TOKEN"},
      {"--kv-transfer-config {\"kv_connector\":\"NixlConnector\"}", "--kv-transfer-config: "},
      {"--kv-transfer-config.kv_role kv_both", "--kv-transfer-config.kv_role: "},
      {"--speculative-config.method ngram", "give --speculative-config one JSON object"},
      {"--default_chat_template_kwargs {}", "chat_template_kwargs"},
      {"--enable-lora=true", "merge the adapter"},
      {"--block-size", "--block-size needs a value"},
      {"--block-size --tp 2", "--block-size needs a value"},
      {"--no-block-size", "unknown flag --no-block-size"},
      {"--block-size.x 3", "unknown flag --block-size.x"},
      {"--enable-chunked-prefil", "did you mean --enable-chunked-prefill?"}};
  for (const auto& [flags, says] : table) {
    EXPECT_NE(ErrorOf(flags).find(says), std::string::npos) << ErrorOf(flags);
  }
  EXPECT_EQ(ErrorOf("--hf-token secret").find("secret"), std::string::npos);
  EXPECT_EQ(ErrorOf("--hf-token=secret").find("secret"), std::string::npos);
}

TEST(VllmFlags, ValuesGoWithTheirFlags) {
  const auto line = ParseCommandLine({"serve",
                                      "--limit-mm-per-prompt",
                                      R"({"image": 2})",
                                      "-O3",
                                      "-cc.mode=3",
                                      "--compilation-config={\"level\": 3}",
                                      "--structured-outputs-config.backend",
                                      "xgrammar",
                                      "model-x",
                                      "--allowed-media-domains",
                                      "a.example",
                                      "b.example",
                                      "--enable-log-requests",
                                      "--port",
                                      "9"});
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->config.model.model, "model-x");
  EXPECT_EQ(line->config.http.port, 9);
  EXPECT_EQ(line->warnings.size(), 7U);
}

TEST(VllmFlags, TranslatesToSettings) {
  const auto line = Parse(
      "--max-num-queued-reqs 5 --max-num-queued-tokens=900 -n 2 -r=1 "
      "--cudagraph-capture-sizes 1 2 8 --disable-log-requests --pp-layer-partition 3,4 -pp 2 "
      "-sc {\"method\":\"ngram\"} --allowed-origins [\"http://a\",\"http://b\"] -ep --tp 2");
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->config.scheduler.max_waiting, 5);
  EXPECT_EQ(line->config.scheduler.max_waiting_tokens, 900);
  EXPECT_EQ(line->config.cluster.nnodes, 2);
  EXPECT_EQ(line->config.cluster.node_rank, 1);
  EXPECT_EQ(line->config.worker.cuda_graph_sizes, (std::vector<std::int64_t>{1, 2, 8}));
  EXPECT_FALSE(line->config.http.access_log);
  EXPECT_EQ(line->config.parallel.pp_partition, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(line->config.scheduler.speculative_config, "{\"method\":\"ngram\"}");
  EXPECT_EQ(line->config.http.allowed_origins, (std::vector<std::string>{"http://a", "http://b"}));
  EXPECT_TRUE(line->config.parallel.enable_expert_parallel);
  EXPECT_EQ(line->config.parallel.ep, 1);
  EXPECT_TRUE(line->warnings.empty());
  EXPECT_TRUE(Parse("--no-disable-log-requests")->config.http.access_log);
  EXPECT_EQ(Parse("--allowed-origins=[\"*\"]")->config.http.allowed_origins,
            std::vector<std::string>{"*"});
  EXPECT_EQ(Parse("-ep 2")->config.parallel.ep, 2) << "inferd's own flag wins";
}

TEST(VllmFlags, TheMasterIsTheLeader) {
  const auto leader = [](const std::string& flags) {
    const auto line = Parse(flags);
    return line.ok() ? line->config.cluster.leader : line.error().message();
  };
  EXPECT_EQ(leader("--nnodes 2 --node-rank 1 --master-addr head --headless"), "head:7000");
  EXPECT_EQ(leader("--nnodes 2 --node-rank 0 --master-addr head --master-port 29501"),
            "0.0.0.0:29501");
  EXPECT_EQ(leader("--nnodes 2 --node-rank 1 --master-addr fd00::1"), "[fd00::1]:7000");
  EXPECT_EQ(leader("--master-addr head"), "") << "one host has no leader to find";
  const auto both = Parse("--nnodes 2 --node-rank 1 --master-addr a --leader b:1");
  ASSERT_TRUE(both.ok()) << both.error().message();
  EXPECT_EQ(both->config.cluster.leader, "b:1") << "inferd's own flag wins";
  EXPECT_EQ(both->warnings,
            std::vector<std::string>{"--master-addr has no effect: --leader is given, too"});
  EXPECT_EQ(Parse("--master-port 1")->warnings,
            std::vector<std::string>{"--master-port has no effect: it goes with --master-addr"});
}

TEST(VllmFlags, OfServeAndRunBatchAlone) {
  EXPECT_TRUE(ParseCommandLine({"run-batch", "--model", "m", "--swap-space", "4"}).ok());
  EXPECT_FALSE(ParseCommandLine({"bench", "m", "--swap-space", "4"}).ok());
  Config config;
  EXPECT_FALSE(ApplyYaml("model: {load_format: auto}", "f", Settings(&config)).ok());
  EXPECT_FALSE(ApplyYaml("block-size: 16", "f", Settings(&config)).ok());
  EXPECT_NE(HelpText("serve").find("docs/vllm-flags.md"), std::string::npos);
  EXPECT_EQ(HelpText("serve").find("--swap-space"), std::string::npos);
  EXPECT_EQ(HelpText("bench").find("vllm-flags"), std::string::npos);
}

std::string Cell(std::string_view words) {
  std::string cell;
  for (const std::string& word : WordsIn(words)) {
    cell += (cell.empty() ? "`" : " `") + word + "`";
  }
  return cell;
}

std::string Fate(const VllmFlag& flag) {
  const std::string text(flag.text);
  switch (flag.fate) {
    case FlagFate::kOwn:
      return text.empty() ? "the same" : "the same; " + text;
    case FlagFate::kAlias:
      return "is `" + text + "`";
    case FlagFate::kAnyway:
      return "so anyway: " + text;
    case FlagFate::kIgnored:
      return "no effect: " + text;
    case FlagFate::kRefused:
      return "refused: " + text;
  }
  return text;
}

TEST(VllmFlags, ThePageListsThemAll) {
  std::string table = "| flag | value | inferd |\n| --- | --- | --- |\n";
  std::string_view before;
  for (const VllmFlag& flag : VllmFlags()) {
    const bool is_rest = flag.names == before;
    before = flag.names;
    table += "| " + Cell(flag.names) + " | " +
             (flag.values.empty() ? (is_rest ? "others" : "") : Cell(flag.values)) + " | " +
             Fate(flag) + " |\n";
  }
  const auto page = base::ReadFile(std::string(INFERD_CONFIGS) + "/../docs/vllm-flags.md", 1 << 20);
  ASSERT_TRUE(page.ok()) << page.error().message();
  const std::string made = testing::TempDir() + "vllm-flags-table.md";
  ASSERT_TRUE(base::WriteFileAtomic(made, table).ok());
  const std::size_t begin = page->find("| flag |");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_EQ(page->substr(begin), table) << "put " << made << " in the place of the page's table";
}

}  // namespace
}  // namespace inferd::app
