// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include "base/error.h"
#include "text/detokenizer.h"
#include "text/rust_call.h"

namespace inferd::text {
namespace {

std::int32_t OrAbsent(const std::optional<std::int32_t>& id) { return id.value_or(-1); }
std::int32_t OrAbsent(const std::optional<bool>& flag) {
  return flag.has_value() ? static_cast<std::int32_t>(*flag) : -1;
}

std::vector<inferd_bytes> Views(const std::vector<std::string>& strings) {
  std::vector<inferd_bytes> views;
  views.reserve(strings.size());
  for (const std::string& string : strings) {
    views.push_back(ToBytes(string));
  }
  return views;
}

}  // namespace

Tokenizer::~Tokenizer() { inferd_tokenizer_free(handle_); }

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromJson(std::string_view tokenizer_json,
                                                             const TokenizerOptions& options) {
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer());
  RustBuffer error;
  INFERD_TRY(ToResult(
      inferd_tokenizer_from_json(ToBytes(tokenizer_json), &tokenizer->handle_, error.out()),
      error));
  tokenizer->TakeTable();
  for (const auto& [name, spelling, id] :
       {std::tuple{"bos_token", &options.bos_token, &tokenizer->bos_id_},
        std::tuple{"eos_token", &options.eos_token, &tokenizer->eos_id_}}) {
    if (!spelling->has_value()) {
      continue;
    }
    *id = tokenizer->TokenToId(**spelling);
    if (!id->has_value()) {
      return InvalidArgument(
          "{} '{}' is not in the vocabulary of tokenizer.json", name, **spelling);
    }
  }
  INFERD_TRY(tokenizer->FindWhatEncodeAdds());
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromVocab(const Vocabulary& vocabulary) {
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer());
  const std::vector<inferd_bytes> tokens = Views(vocabulary.tokens);
  const std::vector<inferd_bytes> merges = Views(vocabulary.merges);
  const inferd_vocabulary raw = {
      .model = ToBytes(vocabulary.model),
      .pre = ToBytes(vocabulary.pre),
      .architecture = ToBytes(vocabulary.architecture),
      .tokens = tokens.data(),
      .num_tokens = tokens.size(),
      .scores = vocabulary.scores.data(),
      .num_scores = vocabulary.scores.size(),
      .types = vocabulary.types.data(),
      .num_types = vocabulary.types.size(),
      .merges = merges.data(),
      .num_merges = merges.size(),
      .bos_id = OrAbsent(vocabulary.bos_id),
      .eos_id = OrAbsent(vocabulary.eos_id),
      .unk_id = OrAbsent(vocabulary.unk_id),
      .add_bos = OrAbsent(vocabulary.add_bos),
      .add_eos = OrAbsent(vocabulary.add_eos),
      .add_space_prefix = OrAbsent(vocabulary.add_space_prefix),
  };
  RustBuffer error;
  INFERD_TRY(ToResult(inferd_tokenizer_from_vocab(&raw, &tokenizer->handle_, error.out()), error));
  tokenizer->TakeTable();
  tokenizer->bos_id_ = vocabulary.bos_id;
  tokenizer->eos_id_ = vocabulary.eos_id;
  INFERD_TRY(tokenizer->FindWhatEncodeAdds());
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

void Tokenizer::TakeTable() {
  inferd_token_table table{};
  inferd_tokenizer_table(handle_, &table);
  bytes_ = {table.bytes, table.num_bytes};
  offsets_ = {table.offsets, table.num_tokens + 1};
  flags_ = {table.flags, table.num_tokens};
  leading_spaces_ = table.leading_spaces;
}

Result<> Tokenizer::FindWhatEncodeAdds() {
  INFERD_ASSIGN(const auto ids, Encode("a", {}));
  if (!bos_id_.has_value() && ids.size() > 1 && IsSpecial(ids[0])) {
    bos_id_ = ids[0];  // what the post-processor puts in front is the model's BOS
  }
  adds_bos_ = bos_id_.has_value() && !ids.empty() && ids[0] == *bos_id_;
  return {};
}

Result<std::vector<std::int32_t>> Tokenizer::Encode(std::string_view text,
                                                    EncodeOptions options) const {
  inferd_ids ids{};
  RustBuffer error;
  INFERD_TRY(ToResult(inferd_tokenizer_encode(handle_,
                                              ToBytes(text),
                                              options.add_special ? 1 : 0,
                                              options.parse_special ? 1 : 0,
                                              &ids,
                                              error.out()),
                      error));
  std::vector<std::int32_t> out(ids.data, ids.data + ids.size);
  inferd_ids_free(&ids);
  // A text that spells out BOS itself would begin with two.
  if (options.add_special && options.parse_special && adds_bos_ && out.size() >= 2 &&
      out[0] == *bos_id_ && out[1] == *bos_id_) {
    out.erase(out.begin());
  }
  return out;
}

std::string Tokenizer::Decode(std::span<const std::int32_t> ids, bool skip_special) const {
  // Not owned by the detokenizer: it lives only inside this call.
  const std::shared_ptr<const Tokenizer> self(std::shared_ptr<const Tokenizer>(), this);
  IncrementalDetokenizer detokenizer(self, {.skip_special = skip_special, .at_text_start = true});
  std::string text = detokenizer.Push(ids);
  text += detokenizer.Finish();
  return text;
}

std::string_view Tokenizer::TokenBytes(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    return {};
  }
  const auto index = static_cast<std::size_t>(id);
  return {bytes_.data() + offsets_[index], offsets_[index + 1] - offsets_[index]};
}

bool Tokenizer::IsSpecial(std::int32_t id) const {
  return id >= 0 && id < vocab_size() &&
         (flags_[static_cast<std::size_t>(id)] & INFERD_TOKEN_SPECIAL) != 0;
}

std::optional<std::int32_t> Tokenizer::TokenToId(std::string_view token) const {
  const std::int32_t id = inferd_tokenizer_token_to_id(handle_, ToBytes(token));
  return id < 0 ? std::nullopt : std::optional(id);
}

TokenText MakeTokenText(const Tokenizer& tokenizer, std::int32_t id) {
  const std::string_view bytes = tokenizer.TokenBytes(id);
  TokenText out;
  Utf8Assembler utf8;
  utf8.Push(bytes, &out.token);
  utf8.Finish(&out.token);
  out.bytes.assign(bytes.begin(), bytes.end());
  return out;
}

}  // namespace inferd::text
