// SPDX-License-Identifier: Apache-2.0
//! A namespace that holds itself cannot be written out: minijinja follows it until the stack ends. So no
//! template may store a namespace in a namespace. Judged by names, before it runs, without regard to scopes: what
//! might be one counts as one.

use std::collections::{HashMap, HashSet};

use crate::ffi::Failure;

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Sign(char),
}
use Token::{Sign, Word};

/// Hands from name to name that are followed; templates of models need two.
const MAX_ROUNDS: usize = 8;
/// Names and signs of one tag; looking at calls takes their square.
const MAX_TOKENS: usize = 1024;

fn refusal() -> Failure {
    Failure::invalid(
        "the chat template may store a namespace in a namespace, which could then hold itself; store its attributes \
         one by one"
            .to_string(),
    )
}

/// Names and signs of a piece of code, without string literals.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = code.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        if c == '\'' || c == '"' {
            while let Some((_, inner)) = rest.next() {
                if inner == '\\' {
                    rest.next();
                } else if inner == c {
                    break;
                }
            }
            found.push(Sign('"'));
        } else if c.is_alphanumeric() || c == '_' {
            let mut end = at + c.len_utf8();
            while let Some((next, _)) = rest.next_if(|(_, n)| n.is_alphanumeric() || *n == '_') {
                end = next + code[next..].chars().next().map_or(0, char::len_utf8);
            }
            found.push(Word(&code[at..end]));
        } else if !c.is_whitespace() {
            found.push(Sign(c));
        }
    }
    found
}

#[derive(Default)]
struct Names<'a> {
    namespaces: HashSet<&'a str>, // made by namespace(): their attributes hold none
    holders: HashSet<&'a str>,    // may be or hold one, in any part
}

impl<'a> Names<'a> {
    /// Whether the word at `i` stands for a namespace, or for something that may hold one.
    fn hit(&self, code: &[Token<'a>], i: usize) -> bool {
        let Word(word) = code[i] else { return false };
        if i > 0 && code[i - 1] == Sign('.') {
            return false;
        }
        let part = matches!(code.get(i + 1), Some(Sign('.' | '[')));
        self.holders.contains(word) || (self.namespaces.contains(word) && !part)
    }

    fn any(&self, code: &[Token<'a>]) -> bool {
        (0..code.len()).any(|i| self.hit(code, i) || code[i] == Word("namespace"))
    }

    /// Whether one is handed to something that is called.
    fn in_call(&self, code: &[Token<'a>]) -> bool {
        calls(code).iter().any(|(_, arguments)| arguments.iter().any(|argument| self.any(argument)))
    }

    /// The parameters of macros become what they are given; what else is called may give it to anything.
    fn follow_calls(
        &mut self,
        code: &[Token<'a>],
        macros: &Macros<'a>,
        given: &[Token<'a>],
    ) -> bool {
        let mut new = false;
        for (callee, arguments) in calls(code) {
            for (place, argument) in arguments.iter().enumerate() {
                if !self.any(argument) {
                    continue;
                }
                let (place, value) = match argument {
                    [Word(name), Sign('='), value @ ..] if value.first() != Some(&Sign('=')) => {
                        (Err(*name), value)
                    }
                    value => (Ok(place), *value),
                };
                let Some(parameters) = macros.get(callee) else {
                    new |= callee != "namespace" && self.hold(given);
                    continue;
                };
                let name = match place {
                    Ok(place) => parameters.get(place).copied(),
                    Err(name) => Some(name),
                };
                new |= match name {
                    Some(name) if self.is_one(value) => self.namespaces.insert(name),
                    Some(name) => self.hold(&[Word(name)]),
                    None => self.hold(given),
                };
            }
        }
        new
    }

    /// Whether `value` is just the name of a namespace.
    fn is_one(&self, value: &[Token<'a>]) -> bool {
        matches!(value, [Word(name)] if self.namespaces.contains(name) && !self.holders.contains(name))
    }

    fn hold(&mut self, code: &[Token<'a>]) -> bool {
        let mut new = false;
        for token in code {
            if let Word(word) = *token {
                new |= self.holders.insert(word);
            }
        }
        new
    }
}

type Macros<'a> = HashMap<&'a str, Vec<&'a str>>;

/// Splits at the commas outside of brackets, up to the bracket that ends the list.
fn list<'a, 'b>(code: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let mut items = Vec::new();
    let mut depth = 0;
    let mut begin = 0;
    for (i, token) in code.iter().enumerate() {
        match token {
            Sign('(' | '[' | '{') => depth += 1,
            Sign(')' | ']' | '}') if depth == 0 => {
                items.push(&code[begin..i]);
                return items;
            }
            Sign(')' | ']' | '}') => depth -= 1,
            Sign(',') if depth == 0 => {
                items.push(&code[begin..i]);
                begin = i + 1;
            }
            _ => {}
        }
    }
    items.push(&code[begin..]);
    items
}

/// What is called in a piece of code, with its arguments.
fn calls<'a, 'b>(code: &'b [Token<'a>]) -> Vec<(&'a str, Vec<&'b [Token<'a>]>)> {
    // The name in the head of a macro is not called.
    let begin = if code.first() == Some(&Word("macro")) { 2 } else { 0 };
    (begin..code.len().saturating_sub(1))
        .filter_map(|i| match (code[i], code[i + 1]) {
            (Word(name), Sign('(')) => Some((name, list(&code[i + 2..]))),
            _ => None,
        })
        .collect()
}

fn words_of<'a>(code: &[Token<'a>], head: &str) -> Vec<Token<'a>> {
    if code.first() == Some(&Word(head)) {
        code[1..].to_vec()
    } else {
        Vec::new()
    }
}

/// Refuses templates that may store a namespace in a namespace. `codes`: the insides of their `{{ }}` and `{% %}`.
pub fn refuse_nested_namespaces(codes: &[&str]) -> Result<(), Failure> {
    let pieces: Vec<Vec<Token>> = codes
        .iter()
        .map(|code| tokens(code.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace())))
        .collect();
    let mut names = Names::default();
    // Parameters of macros and calls, and what loops count: whatever a caller hands over.
    let mut given: Vec<Token> = Vec::new();
    let mut macros = Macros::new();
    let mut twice = HashSet::new();
    for piece in &pieces {
        given.extend(words_of(piece, "macro"));
        given.extend(words_of(piece, "call"));
        if piece.first() == Some(&Word("for")) {
            given.extend(piece[1..].iter().take_while(|token| **token != Word("in")));
        }
        if let [Word("macro"), Word(name), Sign('('), parameters @ ..] = &piece[..] {
            let named = |item: &&[Token<'_>]| matches!(item.first(), Some(Word(_)));
            let names = list(parameters).into_iter().filter(named).map(|item| match item[0] {
                Word(word) => word,
                Sign(_) => "",
            });
            // Which of two macros of a name is called is not known: neither is followed.
            if macros.insert(*name, names.collect()).is_some() {
                twice.insert(*name);
            }
        }
        if let [Word("set"), Word(name), Sign('='), Word("namespace"), Sign('('), ..] = piece[..] {
            names.namespaces.insert(name);
        }
    }
    macros.retain(|name, _| !twice.contains(name));
    if names.namespaces.is_empty() && !pieces.iter().any(|p| p.contains(&Word("namespace"))) {
        return Ok(());
    }
    if pieces.iter().any(|piece| piece.len() > MAX_TOKENS) {
        return Err(Failure::invalid(format!(
            "a tag of the chat template has more than {MAX_TOKENS} names and signs; with namespaces that is the limit"
        )));
    }
    for _ in 0..MAX_ROUNDS {
        let mut new = false;
        for piece in &pieces {
            new |= names.follow_calls(piece, &macros, &given);
            let equals = piece.iter().position(|token| *token == Sign('=')).unwrap_or(piece.len());
            let (left, right) = piece.split_at(equals);
            match piece.first() {
                Some(Word("set")) if right.len() > 1 => {
                    let part = left.contains(&Sign('.')) || left.contains(&Sign('['));
                    let made = !part && matches!(right, [_, Word("namespace"), Sign('('), ..]);
                    let nested = if made { names.in_call(right) } else { names.any(&right[1..]) };
                    let stored = made || part;
                    if nested && stored {
                        return Err(refusal());
                    }
                    if let ([_, Word(name)], true) = (left, names.is_one(&right[1..])) {
                        new |= names.namespaces.insert(name);
                    } else if nested {
                        new |= names.hold(&left[1..]);
                    }
                }
                Some(Word("for")) => {
                    let cut = piece.iter().position(|t| *t == Word("in")).unwrap_or(piece.len());
                    if names.any(&piece[cut..]) {
                        new |= names.hold(&piece[1..cut]);
                    }
                }
                Some(Word("with")) if names.any(piece) => {
                    for pair in piece.windows(2) {
                        if pair[1] == Sign('=') {
                            new |= names.hold(&pair[..1]);
                        }
                    }
                }
                _ => {}
            }
        }
        if !new {
            return Ok(());
        }
    }
    Err(refusal())
}
