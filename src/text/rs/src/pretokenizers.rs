// SPDX-License-Identifier: Apache-2.0
//! Splitting rules of byte-level BPE vocabularies by the name that GGUF files give them
//! (`tokenizer.ggml.pre`). The expressions are those of the models' own tokenizer.json files.

/// How text is cut before merges are applied.
pub struct Rule {
    /// Applied one after the other; each match becomes a piece of its own.
    pub splits: &'static [&'static str],
    /// A piece that is a whole token is taken without looking at merges.
    pub ignore_merges: bool,
    /// Text is brought to Unicode NFC first.
    pub nfc: bool,
    /// Default of `tokenizer.ggml.add_bos_token`.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const CJK: &str = r"[一-龥ࠀ-一가-퟿]+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// The names that rule_for knows, for error messages.
pub const KNOWN: &str = "gpt-2, llama-bpe, qwen2, qwen35, deepseek-coder, deepseek-v3, deepseek-r1-qwen, gpt-4o, tekken, \
                         falcon, starcoder, refact, command-r, smollm, stablelm2, olmo, dbrx, smaug-bpe, glm4, bloom";

/// The rule of a name; None for one that is not known. Files from before the key existed say
/// "default" or nothing: there the architecture decides.
pub fn rule_for(pre: &str, architecture: &str) -> Option<Rule> {
    let plain = |splits| Rule { splits, ignore_merges: false, nfc: false, add_bos: false };
    Some(match pre {
        "" | "default" => match architecture {
            "qwen2" | "qwen2moe" | "qwen3" | "qwen3moe" => Rule { nfc: true, ..plain(&[QWEN2]) },
            _ => plain(&[GPT2]),
        },
        "gpt-2" | "gpt2" | "mpt" | "olmo" | "jais" | "phi-2" | "trillion" | "granite-docling"
        | "gigachat" | "exaone4" | "a.x-4.0" | "mellum" | "roberta-bpe" => plain(&[GPT2]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" => Rule { ignore_merges: true, add_bos: true, ..plain(&[LLAMA3]) },
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => plain(&[LLAMA3]),
        "qwen2" | "deepseek-r1-qwen" => Rule { nfc: true, ..plain(&[QWEN2]) },
        "qwen35" => Rule { nfc: true, ..plain(&[QWEN35]) },
        "stablelm2" | "hunyuan" | "megrez" => plain(&[QWEN2]),
        "gpt-4o" | "llama4" => plain(&[GPT4O]),
        "tekken" => Rule { ignore_merges: true, add_bos: true, ..plain(&[TEKKEN]) },
        "deepseek-coder" => plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"]),
        "deepseek-v3" | "hunyuan-dense" => plain(&[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3]),
        "falcon" => plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"]),
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" => {
            plain(&[r"\p{N}", GPT2])
        }
        "bloom" | "poro-chat" | "gpt3-finnish" => plain(&[BLOOM]),
        "viking" => plain(&[BLOOM, r"\p{N}"]),
        _ => return None,
    })
}
