// SPDX-License-Identifier: Apache-2.0
// Settings, file, environment and command line together.
#include "app/settings.h"

#include "app/command_line.h"
#include "base/file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

namespace inferd::app {
namespace {

/// Sets a variable for one test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

std::string WriteFile(const std::string& name, const std::string& text) {
  std::string path = testing::TempDir() + name;
  EXPECT_TRUE(base::WriteFileAtomic(path, text).ok());
  return path;
}

TEST(Settings, NamesAreUnique) {
  Config config;
  std::set<std::string> names;
  for (const Setting& setting : Settings(&config)) {
    EXPECT_TRUE(names.insert(setting.key).second) << setting.key;
    EXPECT_TRUE(names.insert(EnvironmentName(setting)).second) << setting.key;
    EXPECT_TRUE(setting.flags.front().starts_with("--"));
    for (const auto& flag : setting.flags) {
      EXPECT_TRUE(names.insert(flag).second) << flag;
    }
  }
}

TEST(Settings, TheShippedFileShowsTheDefaults) {
  Config config;
  auto shipped = base::ReadFile(std::string(INFERD_CONFIGS) + "/inferd.yaml", 1 << 20);
  ASSERT_TRUE(shipped.ok()) << shipped.error().message();
  const std::string body = shipped->substr(shipped->find("model:\n"));
  EXPECT_EQ(body, PrintConfig(Settings(&config))) << "regenerate it: inferd --print-config";
}

TEST(Settings, PrintedConfigReadsBackTheSame) {
  Config config;
  config.model.model = "a \"quoted\": name";
  config.model.served_model_name = {"a", "b"};
  config.parallel.tp = 4;
  config.parallel.pp_partition = {12, 20};
  config.http.access_log = false;
  const std::string printed = PrintConfig(Settings(&config));
  Config read;
  const auto applied = ApplyYaml(printed, "f", Settings(&read));
  ASSERT_TRUE(applied.ok()) << applied.error().message();
  EXPECT_EQ(PrintConfig(Settings(&read)), printed);
  EXPECT_EQ(read.model.model, config.model.model);
  EXPECT_EQ(read.parallel.pp_partition, config.parallel.pp_partition);
}

TEST(Settings, KeysAreNeverPrinted) {
  const Variable keys("INFERD_API_KEY", "secret-one,secret-two");
  auto line = ParseCommandLine({"m"});
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->config.tenant.api_key, (std::vector<std::string>{"secret-one", "secret-two"}));
  const std::string printed = PrintConfig(Settings(&line->config));
  EXPECT_EQ(printed.find("secret-one"), std::string::npos);
  EXPECT_EQ(printed.find("secret-two"), std::string::npos);
}

struct BadYaml {
  const char* text;
  const char* says;
};
class YamlRefused : public testing::TestWithParam<BadYaml> {};

TEST_P(YamlRefused, WithFileAndKey) {
  Config config;
  const auto applied = ApplyYaml(GetParam().text, "f.yaml", Settings(&config));
  ASSERT_FALSE(applied.ok()) << GetParam().text;
  EXPECT_NE(applied.error().message().find("f.yaml"), std::string::npos);
  EXPECT_NE(applied.error().message().find(GetParam().says), std::string::npos)
      << applied.error().message();
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    YamlRefused,
    testing::Values(BadYaml{"parallel: {tpx: 2}", "did you mean 'parallel.tp'"},
                    BadYaml{"tp: 2", "unknown key 'tp'"},
                    BadYaml{"parallel: {tp: x}", "parallel.tp must be an integer, not 'x'"},
                    BadYaml{"parallel: {tp: 0}", "must be from 1 to 1024"},
                    BadYaml{"http: {access_log: maybe}", "true or false"},
                    BadYaml{"worker: {device: tpu}", "this build knows cpu, cuda, cuda-emu, sim"},
                    BadYaml{"[1, 2]", "must be a map"},
                    BadYaml{"a: [", "f.yaml"},
                    BadYaml{"parallel: {tp: {a: 1}}", "not a map"}));

TEST(Settings, IntegersMayBeWrittenShort) {
  const auto parsed = [](const std::string& text) {
    Config config;
    for (const Setting& setting : Settings(&config)) {
      if (setting.key == "worker.kv_cache_bytes") {
        const auto set = SetFromText(setting, "--kv-cache-bytes", text);
        return set.ok() ? config.worker.kv_cache_bytes : -1;
      }
    }
    return std::int64_t{-2};
  };
  EXPECT_EQ(parsed("8k"), 8'000);
  EXPECT_EQ(parsed("8K"), 8'192);
  EXPECT_EQ(parsed("25.6k"), 25'600);
  EXPECT_EQ(parsed("1.5m"), 1'500'000);
  EXPECT_EQ(parsed("1.2345k"), 1'234);
  EXPECT_EQ(parsed("2G"), std::int64_t{2} << 30);
  EXPECT_EQ(parsed("1t"), 1'000'000'000'000);
  EXPECT_EQ(parsed("3M"), 3 << 20);
  for (const char* const bad : {"k",
                                "1.5K",
                                "1.k",
                                ".5k",
                                "-8k",
                                "8kb",
                                "8 k",
                                "1..5k",
                                "8x",
                                "99999999999T",
                                "auto",
                                "1e3",
                                "1.2.3k",
                                "0.0000000000000000000000001k",  // UBSan: 10^25
                                "0x1k"}) {
    EXPECT_EQ(parsed(bad), -1) << bad;
  }
}

TEST(CommandLine, TakesVllmsNumbers) {
  const auto config = [](const std::vector<std::string>& words) {
    const auto line = ParseCommandLine(words);
    EXPECT_TRUE(line.ok()) << line.error().message();
    return line->config;
  };
  EXPECT_EQ(config({"m", "--max-model-len", "8k"}).model.max_model_len, 8'000);
  EXPECT_EQ(config({"m", "--max-model-len=8K"}).model.max_model_len, 8'192);
  for (const char* const word : {"auto", "-1", "0"}) {
    EXPECT_EQ(config({"m", "--max-model-len", word}).model.max_model_len, 0) << word;
  }
  EXPECT_EQ(config({"m", "--max_num_batched_tokens", "2k"}).scheduler.max_num_batched_tokens,
            2'000);
  EXPECT_EQ(config({"m", "--kv-cache-memory-bytes", "16G"}).worker.kv_cache_bytes,
            std::int64_t{16} << 30);
  EXPECT_FALSE(ParseCommandLine({"m", "--max-num-seqs", "auto"}).ok());
  EXPECT_FALSE(ParseCommandLine({"m", "--max-num-batched-tokens", "2g"}).ok());
  const Variable length("INFERD_MAX_MODEL_LEN", "auto");
  EXPECT_EQ(config({"m"}).model.max_model_len, 0);
}

TEST(CommandLine, OrderIsDefaultFileEnvironmentFlag) {
  const std::string file = WriteFile("order.yaml", "parallel: {tp: 2, pp: 2, dp: 2}\n");
  const Variable pp("INFERD_PP", "3");
  const Variable dp("INFERD_DP", "3");
  auto line = ParseCommandLine({"model-x", "--config", file, "--dp", "4"});
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->command, "serve");
  EXPECT_EQ(line->config.model.model, "model-x");
  EXPECT_EQ(line->config.parallel.ep, 1);
  EXPECT_EQ(line->config.parallel.tp, 2);
  EXPECT_EQ(line->config.parallel.pp, 3);
  EXPECT_EQ(line->config.parallel.dp, 4);
}

TEST(CommandLine, ALinkToAServiceOfOurNameIsNoSetting) {
  const Variable port("INFERD_PORT", "tcp://10.0.0.1:8000");
  const Variable grpc("INFERD_GRPC_PORT", "tcp://10.0.0.1:8001");
  const auto line = ParseCommandLine({"m"});
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->config.http.port, 8000);
  EXPECT_EQ(line->config.grpc.port, "auto");
}

TEST(CommandLine, KnowsOtherServersSpellings) {
  auto line = ParseCommandLine({"serve",
                                "--model=m",
                                "-tp",
                                "2",
                                "--pipeline-parallel-size",
                                "3",
                                "--max_model_len=512",
                                "--no-enable-prefix-caching",
                                "--served-model-name",
                                "a,b",
                                "--scheduler.max_num_seqs=9",
                                "--disable-access-log-for-endpoints",
                                "/health,/metrics",
                                "--pp-partition",
                                "1,2,3"});
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->config.model.model, "m");
  EXPECT_EQ(line->config.parallel.tp, 2);
  EXPECT_EQ(line->config.parallel.pp, 3);
  EXPECT_EQ(line->config.model.max_model_len, 512);
  EXPECT_FALSE(line->config.scheduler.enable_prefix_caching);
  EXPECT_EQ(line->config.model.served_model_name, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(line->config.scheduler.max_num_seqs, 9);
  EXPECT_EQ(line->config.parallel.pp_partition, (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(CommandLine, TakesTheCallOfKServe) {
  const auto line = ParseCommandLine({"serve",
                                      "/mnt/models",
                                      "--served-model-name",
                                      "A",
                                      "B",
                                      "--port",
                                      "8000",
                                      "--disable-access-log-for-endpoints",
                                      "/health,/metrics,/ping",
                                      "--drain-delay",
                                      "5",
                                      "--shutdown-timeout",
                                      "45",
                                      "--tensor-parallel-size",
                                      "2"});
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->config.model.model, "/mnt/models");
  EXPECT_EQ(line->config.model.served_model_name, (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(line->config.http.drain_delay_s, 5);
  EXPECT_EQ(line->config.http.shutdown_timeout_s, 45);
  EXPECT_EQ(ParseCommandLine({"m", "--tp", "2", "--tp", "3"})->config.parallel.tp, 3)
      << "the last one wins";
}

TEST(CommandLine, RefusesWhatItDoesNotKnow) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> table{
      {{"--tensor-paralel-size", "2"}, "did you mean --tensor-parallel-size?"},
      {{"--zzzzzzzz"}, "unknown flag --zzzzzzzz"},
      {{"--tp"}, "--tp"},
      {{"--tp", "0"}, "must be from 1 to 1024"},
      {{"--port", "65536"}, "must be from 0 to 65535"},
      {{"a", "b"}, "one word too many"},
      {{"--device", "tpu"}, "this build knows cpu, cuda, cuda-emu, sim"},
      {{"--config", "/nonexistent.yaml"}, "/nonexistent.yaml"}};
  for (const auto& [args, says] : table) {
    const auto line = ParseCommandLine(args);
    ASSERT_FALSE(line.ok()) << says;
    EXPECT_NE(line.error().message().find(says), std::string::npos) << line.error().message();
  }
  const Variable bad("INFERD_TP", "many");
  const auto line = ParseCommandLine({"m"});
  ASSERT_FALSE(line.ok());
  EXPECT_NE(line.error().message().find("INFERD_TP"), std::string::npos);
}

TEST(CommandLine, Subcommands) {
  EXPECT_EQ(ParseCommandLine({"plan", "m", "--tp", "2"})->command, "plan");
  EXPECT_EQ(ParseCommandLine({"plan", "m", "--tp", "2"})->config.model.model, "m");
  const auto bench =
      ParseCommandLine({"bench", "m", "--streams", "1,4", "--context", "8", "--json"});
  ASSERT_TRUE(bench.ok()) << bench.error().message();
  EXPECT_EQ(bench->bench.streams, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(bench->bench.context, std::vector<std::int64_t>{8});
  EXPECT_EQ(bench->bench.prompt_tokens, std::vector<std::int64_t>{512});
  EXPECT_TRUE(bench->json);
  EXPECT_FALSE(ParseCommandLine({"bench", "m", "--rounds", "0"}).ok());
  EXPECT_FALSE(ParseCommandLine({"serve", "m", "--streams", "1"}).ok());
  const auto tokenize = ParseCommandLine({"tokenize", "m", "some", "text"});
  EXPECT_EQ(tokenize->config.model.model, "m");
  EXPECT_EQ(tokenize->positional, (std::vector<std::string>{"some", "text"}));
  EXPECT_EQ(ParseCommandLine({"fetch", "m"})->positional, std::vector<std::string>{"m"});
  const auto usage = ParseCommandLine(
      {"usage", "--usage-db", "u.db", "--since", "7d", "--by", "model,day", "--json"});
  ASSERT_TRUE(usage.ok()) << usage.error().message();
  EXPECT_EQ(usage->config.tenant.usage_db, "u.db");
  EXPECT_EQ(usage->since, "7d");
  EXPECT_EQ(usage->by, (std::vector<std::string>{"model", "day"}));
  EXPECT_TRUE(usage->json);
  EXPECT_FALSE(ParseCommandLine({"usage", "word"}).ok());
  EXPECT_FALSE(ParseCommandLine({"m", "--since", "7d"}).ok()) << "a flag of another command";
  const auto worker = ParseCommandLine({"worker", "--leader", "unix:/x_y", "--worker-id", "3"});
  EXPECT_EQ(worker->command, "worker");
  EXPECT_EQ(worker->positional,
            (std::vector<std::string>{"--leader", "unix:/x_y", "--worker-id", "3"}));
  EXPECT_TRUE(ParseCommandLine({"--version"})->version);
  EXPECT_TRUE(ParseCommandLine({"help"})->help);
}

TEST(CommandLine, LeaderWorkerSetGivesRankAndSize) {
  const Variable size("LWS_GROUP_SIZE", "4");
  const Variable index("LWS_WORKER_INDEX", "2");
  EXPECT_EQ(ParseCommandLine({"m"})->config.cluster.nnodes, 4);
  EXPECT_EQ(ParseCommandLine({"m"})->config.cluster.node_rank, 2);
  EXPECT_EQ(ParseCommandLine({"m", "--node-rank", "0"})->config.cluster.node_rank, 0);
}

TEST(CommandLine, HelpShowsEveryFlag) {
  const std::string help = HelpText("serve");
  Config config;
  for (const Setting& setting : Settings(&config)) {
    EXPECT_NE(help.find(setting.flags.front()), std::string::npos) << setting.key;
    EXPECT_NE(help.find(setting.help), std::string::npos) << setting.key;
  }
  for (const char* command : {"serve", "plan", "fetch", "tokenize", "version"}) {
    EXPECT_NE(HelpText(command).find("Usage: inferd"), std::string::npos) << command;
  }
}

TEST(Nearest, FindsTyposOnly) {
  EXPECT_EQ(Nearest("--prot", {"--port", "--host"}), "--port");
  EXPECT_EQ(Nearest("--xyzzyxyzzy", {"--port", "--host"}), "");
}

}  // namespace
}  // namespace inferd::app
