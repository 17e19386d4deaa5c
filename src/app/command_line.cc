// SPDX-License-Identifier: Apache-2.0
// The only file that knows CLI11, which throws.
#include "app/command_line.h"

#include "app/cluster_plan.h"
#include "app/settings.h"
#include "app/vllm_flags.h"
#include "base/error.h"
#include "base/file.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <utility>

namespace inferd::app {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxListWords = 64;
constexpr std::int64_t kMaxBenchNumber = 1 << 20;
constexpr std::int64_t kPlannedSequences = 256;
constexpr std::int64_t kPlannedTokens = 2048;

struct CommandHelp {
  const char* name;
  const char* usage;
  const char* text;
};
constexpr std::array kCommands = {
    CommandHelp{
        "serve",
        "inferd [serve] MODEL [flags]",
        "Serve a model to OpenAI clients. `serve` may be left out.\n\n"
        "  inferd qwen2.5-coder-0.5b                    serve on http://127.0.0.1:8000\n"
        "  inferd --model ./model.gguf --tp 2 --port 0  two ranks, any free port\n"
        "  inferd --model ./model --device cuda --tp 2  two GPUs\n"
        "  inferd MODEL --print-config > inferd.yaml    all settings; use the file with "
        "--config\n\n"
        "Exit status: 0 asked to end, 1 a flag, file, model, key or port is wrong, 2 it does not\n"
        "fit the memory or the devices, 3 devices are absent or failed, 4 another host is gone,\n"
        "5 a bug of inferd."},
    CommandHelp{
        "plan",
        "inferd plan MODEL [--gpus 32xA100-80G] [flags]",
        "Show how a model would be cut and what memory each rank needs; reads a header or a config "
        "alone.\n\n"
        "  inferd plan MODEL --tp 2                    the cut and the ledger on this host\n"
        "  inferd plan llama-70b --gpus 32xA100-80G --nodes 4x8 --rate 20 --target-ttft 2s\n\n"
        "With --gpus: all layouts of a cluster that fit, ranked, with placement, memory of each\n"
        "rank, predicted times and cost. --tp, --pp and --ep may be auto, which they are then:\n"
        "  --gpus NxDEVICE       devices in all; DEVICE is a profile (A100-40G, A100-80G, H100, "
        "H200,\n"
        "                        B200, L40S, A10, cpu) or a MIG slice of one (A100-80G:1g.10gb)\n"
        "  --nodes HxN           hosts and devices of each; default: hosts of 8\n"
        "  --topology FILE       output of `nvidia-smi topo -m` of one host: its NVLink domains\n"
        "  --rate R              requests per second that the cluster gets\n"
        "  --input N --output N  tokens of a request [1000, 300]\n"
        "  --target-ttft T       time to first token at most, as 2s or 500ms\n"
        "  --target-itl T        time per further token at most\n"
        "  --redundancy N        replicas kept in reserve [0]\n"
        "  --weight-bits N       weights quantised to 16, 8 or 4 bits; default: as the files have "
        "them\n"
        "  --devices FILE        YAML of more device profiles, before the built-in ones\n"
        "  --max-num-seqs N, --max-num-batched-tokens N  of a replica's step [256, 2048]\n"
        "  --json                JSON instead of tables\n\n"
        "With --gpus and --simulate TRACE the real router and schedulers run the trace in virtual\n"
        "time; its lines are {\"arrival_s\": 0.5, \"input_tokens\": 1000, \"output_tokens\": "
        "300}:\n"
        "  --generate-trace FILE write one: --requests N [1000] at --rate R [1], --input, "
        "--output,\n"
        "                        --spread S (deviation over mean) [0.5], --prefixes N shared ones "
        "[0],\n"
        "                        --trace-seed N [1]\n"
        "  --layouts N           compare the N best layouts [1]\n"
        "  --find-knee           the highest rate at which 99 % of the requests meet the targets\n"
        "  --lose-node-at S      the first host is lost then; --redundancy replicas take over "
        "after\n"
        "  --cold-start S        seconds [reading the weights + 20], or at once with --prewarmed\n"
        "  --autoscale MIN       from MIN replicas up to all, by the length of the queue\n\n"
        "MODEL is a config.json, a folder with one, a GGUF file, a model in the cache or a "
        "built-in\n"
        "shape (llama-70b, qwen3-235b-a22b, ...). Exit status: 0 it fits, 2 it does not: the "
        "message\n"
        "says what would; 1 a flag or file is wrong. docs/planning.md has the formulas."},
    CommandHelp{"topo",
                "inferd topo [--topology FILE] [--json]",
                "Print how the devices of this host reach each other, and their domains; with\n"
                "--topology from the output of `nvidia-smi topo -m` (- reads standard input)."},
    CommandHelp{
        "doctor",
        "inferd doctor",
        "Show what this host offers (CPUs, GPUs and their links, driver, NCCL, limits), what "
        "is\nwrong and how to mend it. Exit status 1 when something is."},
    CommandHelp{
        "fetch", "inferd fetch NAME", "Download a model into the cache and print its path."},
    CommandHelp{"tokenize",
                "inferd tokenize MODEL TEXT",
                "Print the token ids of a text; TEXT - reads standard input, - json one JSON "
                "string per line."},
    CommandHelp{
        "run-batch",
        "inferd run-batch -i IN.jsonl -o OUT.jsonl --model MODEL [flags]",
        "Run the requests of a file without a server and write the answers, one line each.\n\n"
        "A line of the input, as for OpenAI's Batch API:\n"
        "  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\",\n"
        "   \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}}\n"
        "url may also be /v1/completions, /v1/embeddings, /v1/responses, /v1/score or /v1/rerank.\n"
        "All of the input is checked first; the answers come in the order in which they are "
        "done.\n\n"
        "  -i, --input-file FILE    the requests\n"
        "  -o, --output-file FILE   the answers; must not be there yet\n"
        "  --overwrite              replace the output file at the end\n\n"
        "Until the end the answers are in OUT.jsonl.partial. A run that was ended (Ctrl-C, a "
        "crash)\n"
        "goes on from there when the same command is given again; no request is answered twice.\n\n"
        "Exit status: 0 all requests were answered, 3 all were run but some have errors in the\n"
        "output, 1 it could not be run, was ended or the command line is wrong."},
    CommandHelp{
        "bench",
        "inferd bench MODEL [flags]",
        "Measure a model on this machine: the engine with all its ranks, without HTTP.\n\n"
        "  inferd bench qwen2.5-coder-0.5b\n"
        "  inferd bench MODEL --tp 2 --streams 1,2,4,8,16 --prompt-tokens 512,2048\n"
        "  inferd bench MODEL --context 128,8192,32768 --streams 1 --json\n\n"
        "Prefill: from a prompt to its first token, for each of --prompt-tokens. Decode: new "
        "tokens\n"
        "of all streams per second and the gaps between two of one stream, for each of --streams\n"
        "after prompts of each of --context tokens. Prompts are random ids: no cache helps.\n\n"
        "  --prompt-tokens N,...  lengths of prompts [512]\n"
        "  --streams N,...        generations at once [1,8]\n"
        "  --context N,...        tokens before the first new one [128]\n"
        "  --output-tokens N      new tokens of each stream in the measured window [64]\n"
        "  --rounds N             of all of it; medians are shown [3]\n"
        "  --json                 each round of each measurement as one line of JSON\n"
        "  --write-profile FILE   also a device profile fitted to them, which `inferd plan "
        "--devices`\n"
        "                         takes; of one rank (docs/planning.md)"},
    CommandHelp{"usage",
                "inferd usage --usage-db FILE [--since 30d] [--by key,day] [--json]",
                "Print what was used, from the ledger of a server started with --usage-db.\n"
                "--since is a day (2026-01-31) or a time ago (36h, 7d); --by names columns to sum\n"
                "by: key, day, model, version, operation, outcome. Days are UTC."},
    CommandHelp{"version", "inferd version", "Print the version."},
};

bool IsCommand(const std::string& word) {
  return word == "worker" ||
         std::any_of(kCommands.begin(), kCommands.end(), [&](const CommandHelp& command) {
           return word == command.name;
         });
}

/// Commands that take the flags of vLLM's command of the same name.
bool TakesVllmFlags(const std::string& command) {
  return command == "serve" || command == "run-batch";
}

/// vLLM's spellings: -tp 2, --max_model_len 4096.
std::string Canonical(const std::string& arg) {
  static const std::map<std::string, std::string> kShort = {
      {"-tp", "--tp"}, {"-pp", "--pp"}, {"-ep", "--ep"}, {"-dp", "--dp"}};
  const std::size_t equals = arg.find('=');
  std::string name = arg.substr(0, equals);
  if (const auto it = kShort.find(name); it != kShort.end()) {
    name = it->second;
  } else if (name.starts_with("--") && name.find('.') == std::string::npos) {
    std::replace(name.begin(), name.end(), '_', '-');
  }
  return equals == std::string::npos ? name : name + arg.substr(equals);
}

std::vector<std::string> CanonicalWords(const std::vector<std::string>& args) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string next = i + 1 < args.size() ? args[i + 1] : std::string();
    const bool is_number =
        next == "auto" ||
        (!next.empty() && next.find_first_not_of("0123456789") == std::string::npos);
    // With vLLM -ep is a switch.
    words.push_back(args[i] == "-ep" && !is_number ? "--enable-expert-parallel"
                                                   : Canonical(args[i]));
  }
  return words;
}

/// One CLI11 option per setting; texts are collected first and applied last, so that flags win over
/// file and environment.
class Parser {
 public:
  Parser(const std::vector<Setting>& settings, CommandLine* line)
      : settings_(settings),
        takes_vllm_flags_(TakesVllmFlags(line->command)),
        texts_(settings.size()),
        flags_(settings.size()) {
    app_.allow_extras();
    app_.set_help_flag();
    app_.add_flag("-h,--help", help);
    app_.add_flag("-V,--version", version);
    app_.add_flag("--print-config", print_config);
    app_.add_option("--config", config_file);
    if (line->command == "usage") {
      app_.add_option("--since", line->since)->expected(1);
      app_.add_option("--by", line->by)->delimiter(',')->expected(1, kMaxListWords);
      app_.add_flag("--json", line->json);
    }
    if (line->command == "bench") {
      AddBenchOptions(&line->bench);
      app_.add_flag("--json", line->json);
    }
    if (line->command == "plan" || line->command == "topo") {
      AddPlanFlags(line->command == "plan", &line->plan);
    }
    if (line->command == "run-batch") {
      app_.add_option("-i,--input-file", line->input_file)->expected(1);
      app_.add_option("-o,--output-file", line->output_file)->expected(1);
      app_.add_flag("--overwrite", line->overwrite);
    }
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const std::string names = Names(settings[i]);
      if (std::holds_alternative<bool*>(settings[i].value)) {
        options_.push_back(
            app_.add_flag(names + ",!--no-" + settings[i].flags.front().substr(2), flags_[i]));
      } else if (std::holds_alternative<std::vector<std::string>*>(settings[i].value)) {
        options_.push_back(app_.add_option(names, texts_[i])->expected(1, kMaxListWords));
      } else {
        options_.push_back(app_.add_option(names, texts_[i])->expected(1)->take_last());
      }
    }
  }

  Result<std::vector<std::string>> Parse(std::vector<std::string> args) {
    std::reverse(args.begin(), args.end());  // as CLI11 wants a vector
    try {
      app_.parse(args);
    } catch (const CLI::ParseError& error) {
      return InvalidArgument("{}; see inferd --help", error.what());
    }
    std::vector<std::string> positional;
    for (const std::string& word : app_.remaining()) {
      if (word.size() > 1 && word[0] == '-') {
        const std::string name = word.substr(0, word.find('='));
        const std::string near = Nearest(name, KnownFlags());
        return InvalidArgument(
            "unknown flag {}{}",
            name,
            near.empty() ? "; see inferd --help" : "; did you mean " + near + "?");
      }
      positional.push_back(word);
    }
    return positional;
  }

  bool Has(const std::string& flag) const { return app_.get_option_no_throw(flag) != nullptr; }

  Result<> Apply() const {
    for (std::size_t i = 0; i < settings_.size(); ++i) {
      if (options_[i]->count() == 0) {
        continue;
      }
      const bool is_flag = std::holds_alternative<bool*>(settings_[i].value);
      const std::string text = is_flag ? (flags_[i] ? "true" : "false") : Join(texts_[i]);
      INFERD_TRY(SetFromText(settings_[i], settings_[i].flags.front(), text));
    }
    return {};
  }

  bool help = false, version = false, print_config = false;
  std::string config_file;

 private:
  void AddPlanFlags(bool is_plan, PlanFlags* plan) {
    app_.add_option("--topology", plan->topology)->expected(1);
    app_.add_flag("--json", plan->json);
    if (!is_plan) {
      return;
    }
    const std::pair<const char*, std::string*> options[] = {
        {"--gpus", &plan->gpus},
        {"--nodes", &plan->nodes},
        {"--devices", &plan->devices_file},
        {"--rate", &plan->rate},
        {"--input", &plan->input},
        {"--output", &plan->output},
        {"--target-ttft", &plan->target_ttft},
        {"--redundancy", &plan->redundancy},
        {"--weight-bits", &plan->weight_bits},
        {"--simulate", &plan->simulate},
        {"--generate-trace", &plan->generate_trace},
        {"--requests", &plan->requests},
        {"--spread", &plan->spread},
        {"--prefixes", &plan->prefixes},
        {"--trace-seed", &plan->trace_seed},
        {"--layouts", &plan->layouts},
        {"--cold-start", &plan->cold_start},
        {"--lose-node-at", &plan->lose_node_at},
        {"--autoscale", &plan->autoscale},
    };
    app_.add_flag("--prewarmed", plan->prewarmed);
    app_.add_flag("--find-knee", plan->find_knee);
    for (const auto& [name, text] : options) {
      app_.add_option(name, *text)->expected(1);
    }
  }
  static std::string Join(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) {
      text += (text.empty() ? "" : ",") + word;
    }
    return text;
  }
  void AddBenchOptions(BenchOptions* bench) {
    const auto list = [this](const char* name, std::vector<std::int64_t>* values) {
      app_.add_option(name, *values)
          ->delimiter(',')
          ->expected(1, kMaxListWords)
          ->check(CLI::Range(std::int64_t{1}, kMaxBenchNumber));
    };
    list("--prompt-tokens", &bench->prompt_tokens);
    list("--streams", &bench->streams);
    list("--context", &bench->context);
    app_.add_option("--output-tokens", bench->output_tokens)
        ->check(CLI::Range(std::int64_t{1}, kMaxBenchNumber));
    app_.add_option("--rounds", bench->rounds)->check(CLI::Range(1, 100));
    app_.add_option("--write-profile", bench->write_profile)->expected(1);
  }
  static std::string Names(const Setting& setting) {
    std::string names;
    for (const auto& flag : setting.flags) {
      names += flag + ",";
    }
    return names + "--" + setting.key;
  }
  std::vector<std::string> KnownFlags() const {
    std::vector<std::string> known{"--help", "--version", "--print-config", "--config"};
    for (const CLI::Option* option : app_.get_options()) {
      known.push_back(option->get_name());
    }
    for (const Setting& setting : settings_) {
      known.insert(known.end(), setting.flags.begin(), setting.flags.end());
    }
    if (takes_vllm_flags_) {
      const std::vector<std::string> vllm = VllmFlagNames();
      known.insert(known.end(), vllm.begin(), vllm.end());
    }
    return known;
  }

  const std::vector<Setting>& settings_;
  const bool takes_vllm_flags_;
  CLI::App app_;
  std::vector<std::vector<std::string>> texts_;  // "a,b" and "a" "b" are the same list
  std::deque<bool> flags_;                       // not vector<bool>: CLI11 binds to each
  std::vector<CLI::Option*> options_;
};

}  // namespace

Result<CommandLine> ParseCommandLine(const std::vector<std::string>& args) {
  CommandLine line;
  std::vector<std::string> words = CanonicalWords(args);
  line.command = "serve";
  if (!words.empty() && IsCommand(words.front())) {
    line.command = words.front();
    words.erase(words.begin());
  } else if (!words.empty() && words.front() == "help") {
    line.help = true;
    return line;
  }
  if (line.command == "worker") {
    line.positional.assign(args.begin() + 1, args.end());  // internal, with flags of its own
    return line;
  }
  if (line.command == "plan") {
    TakeAuto(&words, &line.plan);
  }
  if (line.command == "plan" && std::ranges::any_of(words, [](const std::string& word) {
        return word == "--gpus" || word.starts_with("--gpus=");
      })) {
    // What servers on GPUs use; the defaults of this one are for CPUs.
    line.config.scheduler.max_num_seqs = kPlannedSequences;
    line.config.scheduler.max_num_batched_tokens = kPlannedTokens;
  }
  const std::vector<Setting> settings = Settings(&line.config);
  Parser parser(settings, &line);
  VllmWords vllm;
  vllm.words = std::move(words);
  if (TakesVllmFlags(line.command)) {
    INFERD_ASSIGN(vllm, TranslateVllmFlags(vllm.words, [&](const std::string& name) {
                    return parser.Has(name);
                  }));
    line.warnings = vllm.warnings;
  }
  INFERD_ASSIGN(line.positional, parser.Parse(std::move(vllm.words)));
  line.help = parser.help;
  line.version = parser.version;
  line.print_config = parser.print_config;
  const char* const env_file = std::getenv("INFERD_CONFIG");
  const std::string file =
      parser.config_file.empty() && env_file != nullptr ? env_file : parser.config_file;
  if (!file.empty()) {
    INFERD_ASSIGN(const std::string text, base::ReadFile(file, kMaxConfigBytes));
    INFERD_TRY(ApplyYaml(text, file, settings));
  }
  INFERD_TRY(ApplyEnvironment(settings));
  if (line.command == "plan") {
    line.config.scheduler.target_itl.clear();  // what a server promises is no target of a plan
  }
  INFERD_TRY(parser.Apply());
  if (ClusterConfig& cluster = line.config.cluster;
      !vllm.master_address.empty() && (cluster.nnodes > 1 || cluster.node_rank != 0)) {
    cluster.leader = LeaderOfMaster(vllm, cluster.node_rank);
  }
  if (line.command == "usage" && !line.positional.empty()) {
    return InvalidArgument("'{}' is one word too many; see inferd usage --help",
                           line.positional.front());
  }
  if (line.command != "fetch" && !line.positional.empty()) {
    if ((line.command == "serve" || line.command == "run-batch" || line.command == "bench") &&
        line.positional.size() > 1) {
      return InvalidArgument(
          "'{}' is one word too many; see inferd {} --help", line.positional[1], line.command);
    }
    line.config.model.model = line.positional.front();
    line.positional.erase(line.positional.begin());
  }
  return line;
}

std::string HelpText(const std::string& command) {
  std::string text;
  for (const CommandHelp& help : kCommands) {
    if (command == help.name) {
      text += fmt::format("Usage: {}\n\n{}\n", help.usage, help.text);
    }
  }
  if (command == "serve") {
    text += "\nOther commands:\n";
    for (const CommandHelp& help : kCommands) {
      if (command != help.name) {
        text += fmt::format("  {:<30} {}\n", help.usage, help.text);
      }
    }
  }
  if (command != "serve" && command != "plan" && command != "run-batch" && command != "bench") {
    return text;
  }
  Config defaults;
  std::string room;
  for (const Setting& setting : Settings(&defaults)) {
    if (const std::string of = setting.key.substr(0, setting.key.find('.')); of != room) {
      room = of;
      text += fmt::format("\nFlags, {}:\n", room);
    }
    std::string names = setting.flags.front();
    for (std::size_t i = 1; i < setting.flags.size(); ++i) {
      names += ", " + setting.flags[i];
    }
    text += fmt::format("  {}\n      {} [{}]\n", names, setting.help, ToYaml(setting));
  }
  text +=
      "\nOthers:\n  --config FILE     YAML with these settings; also INFERD_CONFIG\n"
      "  --print-config    print the effective settings as YAML and end\n"
      "  --version, --help\n\n"
      "Each flag can also be set as INFERD_NAME in the environment (INFERD_TP=2) or by its key "
      "(--parallel.tp=2).\n"
      "The order is: default, file, environment, flag; the last one wins.\n";
  if (TakesVllmFlags(command)) {
    text += "vLLM's other flags are understood as well: docs/vllm-flags.md lists them.\n";
  }
  return text;
}

}  // namespace inferd::app
