// SPDX-License-Identifier: Apache-2.0
//! EBNF as llama.cpp and XGrammar write it (`root ::= ...`), turned into Lark. Whatever does not
//! recurse becomes a terminal, and neighbouring terminals become one: the matcher's lexer takes the
//! longest terminal, so a border between two of them would shut out texts that the grammar allows.

use std::collections::{HashMap, HashSet};

use crate::ffi::Failure;
use crate::pattern;

const MAX_DEPTH: usize = 100;
const MAX_REPEAT: usize = 10_000;

enum Node {
    Literal(String),
    Regex(String),
    Rule(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat(Box<Node>, usize, Option<usize>),
}

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Name(String),
    Literal(String),
    Regex(String),
    Define,
    Sign(char),
    Counts(usize, Option<usize>),
}

fn fail<T>(message: impl std::fmt::Display) -> Result<T, Failure> {
    Err(Failure::invalid(format!("grammar: {message}")))
}

pub fn is_gbnf(source: &str) -> bool {
    source.contains("::=")
}

pub fn to_lark(source: &str) -> Result<String, Failure> {
    let tokens = tokens(source)?;
    let mut parser = Parser { tokens: &tokens, at: 0 };
    let mut order = Vec::new();
    let mut rules = HashMap::new();
    while parser.at < tokens.len() {
        let (name, node) = parser.rule()?;
        if rules.insert(name.clone(), node).is_some() {
            return fail(format!("the rule '{name}' is defined twice"));
        }
        order.push(name);
    }
    if !rules.contains_key("root") {
        return fail("it has no rule 'root' to start from");
    }
    let mut writer = Writer {
        rules: &rules,
        names: HashMap::new(),
        regular: HashMap::new(),
        out: String::new(),
    };
    for (i, name) in order.iter().enumerate() {
        writer.names.insert(name, i);
    }
    for name in &order {
        let mut path = HashSet::new();
        writer.find_regular(name, &mut path)?;
    }
    writer.write(&order);
    Ok(writer.out)
}

fn tokens(source: &str) -> Result<Vec<Token>, Failure> {
    let mut out = Vec::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if c.is_whitespace() {
            rest = &rest[c.len_utf8()..];
        } else if c == '#' {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if let Some(after) = rest.strip_prefix("::=") {
            out.push(Token::Define);
            rest = after;
        } else if is_name(c) {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            out.push(Token::Name(rest[..end].to_string()));
            rest = &rest[end..];
        } else if c == '"' || c == '\'' {
            let (text, used) = literal(rest, c)?;
            out.push(Token::Literal(text));
            rest = &rest[used..];
        } else if c == '[' {
            let end = class_end(rest)?;
            match pattern::translate(&rest[..end]) {
                Ok(class) => out.push(Token::Regex(class)),
                Err(what) => return fail(format!("'{}' has {what}", &rest[..end])),
            }
            rest = &rest[end..];
        } else if c == '{' {
            let Some(end) = rest.find('}') else { return fail("a '{' without its '}'") };
            out.push(counts(&rest[1..end])?);
            rest = &rest[end + 1..];
        } else if c == '.' {
            out.push(Token::Regex("(?s:.)".into()));
            rest = &rest[1..];
        } else if "()|*+?".contains(c) {
            out.push(Token::Sign(c));
            rest = &rest[1..];
        } else {
            return fail(format!("'{c}' is not expected here"));
        }
    }
    Ok(out)
}

fn literal(rest: &str, quote: char) -> Result<(String, usize), Failure> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return Ok((text, at + 1));
        }
        if c != '\\' {
            text.push(c);
            continue;
        }
        let Some((_, c)) = chars.next() else { break };
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if digits > 0 {
            let hex: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
            match u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32) {
                Some(c) if hex.len() == digits => text.push(c),
                _ => return fail(format!("'\\{c}{hex}' is no character")),
            }
            continue;
        }
        text.push(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            other => other,
        });
    }
    fail("a literal without its closing quote")
}

/// Bytes up to and with the `]`.
fn class_end(rest: &str) -> Result<usize, Failure> {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            ']' => return Ok(at + 1),
            _ => {}
        }
    }
    fail("a '[' without its ']'")
}

fn counts(text: &str) -> Result<Token, Failure> {
    let (low, high) = text.split_once(',').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n <= MAX_REPEAT);
    match (number(low), high.trim()) {
        (Some(low), "") => Ok(Token::Counts(low, None)),
        (Some(low), high) if number(high).is_some_and(|high| high >= low) => {
            Ok(Token::Counts(low, number(high)))
        }
        _ => fail(format!("'{{{text}}}' is not a count of at most {MAX_REPEAT}")),
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn rule(&mut self) -> Result<(String, Node), Failure> {
        let Some(Token::Name(name)) = self.peek().cloned() else {
            return fail("a rule must begin with its name");
        };
        self.at += 1;
        if self.peek() != Some(&Token::Define) {
            return fail(format!("'{name}' is not followed by '::='"));
        }
        self.at += 1;
        let node = self.choice(0)?;
        let begins_rule = matches!(self.peek(), None | Some(Token::Name(_)));
        if !begins_rule {
            return fail(format!("the rule '{name}' has something behind its end"));
        }
        Ok((name, node))
    }

    fn choice(&mut self, depth: usize) -> Result<Node, Failure> {
        if depth > MAX_DEPTH {
            return fail(format!("groups are nested more than {MAX_DEPTH} deep"));
        }
        let mut options = vec![self.sequence(depth)?];
        while self.peek() == Some(&Token::Sign('|')) {
            self.at += 1;
            options.push(self.sequence(depth)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Choice(options) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, Failure> {
        let mut items = Vec::new();
        loop {
            let item = match self.peek() {
                Some(Token::Name(name)) => {
                    if self.tokens.get(self.at + 1) == Some(&Token::Define) {
                        break;
                    }
                    Node::Rule(name.clone())
                }
                Some(Token::Literal(text)) => Node::Literal(text.clone()),
                Some(Token::Regex(text)) => Node::Regex(text.clone()),
                Some(Token::Sign('(')) => {
                    self.at += 1;
                    let inner = self.choice(depth + 1)?;
                    if self.peek() != Some(&Token::Sign(')')) {
                        return fail("a '(' without its ')'");
                    }
                    inner
                }
                _ => break,
            };
            self.at += 1;
            items.push(self.repeated(item));
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Node::Sequence(items) })
    }

    fn repeated(&mut self, mut item: Node) -> Node {
        loop {
            let (low, high) = match self.peek() {
                Some(Token::Sign('*')) => (0, None),
                Some(Token::Sign('+')) => (1, None),
                Some(Token::Sign('?')) => (0, Some(1)),
                Some(Token::Counts(low, high)) => (*low, *high),
                _ => return item,
            };
            self.at += 1;
            item = Node::Repeat(Box::new(item), low, high);
        }
    }
}

struct Writer<'a> {
    rules: &'a HashMap<String, Node>,
    names: HashMap<&'a str, usize>,
    /// Rules that do not recurse, hence can be terminals.
    regular: HashMap<String, bool>,
    out: String,
}

impl<'a> Writer<'a> {
    fn find_regular(&mut self, name: &str, path: &mut HashSet<String>) -> Result<bool, Failure> {
        if let Some(known) = self.regular.get(name) {
            return Ok(*known);
        }
        if path.len() > MAX_DEPTH {
            return fail(format!("rules are nested more than {MAX_DEPTH} deep"));
        }
        if !path.insert(name.to_string()) {
            return Ok(false);
        }
        let rules = self.rules;
        let Some(node) = rules.get(name) else {
            return fail(format!("the rule '{name}' is used but not defined"));
        };
        let regular = self.all_regular(node, path)?;
        path.remove(name);
        // A rule found irregular because of where the search came from is looked at again later.
        if regular || path.is_empty() {
            self.regular.insert(name.to_string(), regular);
        }
        Ok(regular)
    }

    fn all_regular(&mut self, node: &Node, path: &mut HashSet<String>) -> Result<bool, Failure> {
        Ok(match node {
            Node::Literal(_) | Node::Regex(_) => true,
            Node::Rule(name) => self.find_regular(name, path)?,
            Node::Sequence(items) | Node::Choice(items) => {
                let mut all = true;
                for item in items {
                    all &= self.all_regular(item, path)?;
                }
                all
            }
            Node::Repeat(item, _, _) => self.all_regular(item, path)?,
        })
    }

    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Literal(_) | Node::Regex(_) => true,
            Node::Rule(name) => self.regular.get(name) == Some(&true),
            Node::Sequence(items) | Node::Choice(items) => items.iter().all(|i| self.is_regular(i)),
            Node::Repeat(item, _, _) => self.is_regular(item),
        }
    }

    fn write(&mut self, order: &[String]) {
        let mut next_terminal = 0;
        let mut out = String::new();
        let root = self.reference("root");
        out.push_str(&format!("start: {root}\n"));
        for name in order {
            let node = &self.rules[name];
            let mut terminals = Vec::new();
            let body = if self.is_regular(node) {
                self.terminal(node)
            } else {
                self.rule(node, &mut terminals)
            };
            out.push_str(&format!("{}: {body}\n", self.reference(name)));
            for terminal in terminals {
                out = out
                    .replace(&format!("\u{1}{}\u{1}", terminal.0), &format!("U_{next_terminal}"));
                out.push_str(&format!("U_{next_terminal}: {}\n", terminal.1));
                next_terminal += 1;
            }
        }
        self.out = out;
    }

    fn reference(&self, name: &str) -> String {
        let index = self.names[name];
        if self.regular.get(name) == Some(&true) {
            format!("T_{index}")
        } else {
            format!("r_{index}")
        }
    }

    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Literal(text) if text.is_empty() => "/(?:)/".into(),
            Node::Literal(text) => quote(text),
            Node::Regex(text) => format!("/{}/", text.replace('/', "\\/")),
            Node::Rule(name) => self.reference(name),
            Node::Sequence(items) if items.is_empty() => "/(?:)/".into(),
            Node::Sequence(items) => {
                format!(
                    "({})",
                    items.iter().map(|i| self.terminal(i)).collect::<Vec<_>>().join(" ")
                )
            }
            Node::Choice(items) => format!(
                "({})",
                items.iter().map(|i| self.terminal(i)).collect::<Vec<_>>().join(" | ")
            ),
            Node::Repeat(item, low, high) => {
                format!("({}){}", self.terminal(item), repeat(*low, *high))
            }
        }
    }

    /// Runs of regular items go to `terminals` as one terminal each.
    fn rule(&self, node: &Node, terminals: &mut Vec<(usize, String)>) -> String {
        if self.is_regular(node) {
            if let Node::Rule(name) = node {
                return self.reference(name);
            }
            let mark = terminals.len();
            terminals.push((mark, self.terminal(node)));
            return format!("\u{1}{mark}\u{1}");
        }
        match node {
            Node::Rule(name) => self.reference(name),
            Node::Choice(items) => format!(
                "({})",
                items.iter().map(|i| self.rule(i, terminals)).collect::<Vec<_>>().join(" | ")
            ),
            Node::Repeat(item, low, high) => {
                format!("({}){}", self.rule(item, terminals), repeat(*low, *high))
            }
            Node::Sequence(items) => {
                let mut parts = Vec::new();
                let mut at = 0;
                while at < items.len() {
                    let run = items[at..].iter().take_while(|i| self.is_regular(i)).count();
                    if run > 1 {
                        let joined: Vec<_> =
                            items[at..at + run].iter().map(|i| self.terminal(i)).collect();
                        let mark = terminals.len();
                        terminals.push((mark, joined.join(" ")));
                        parts.push(format!("\u{1}{mark}\u{1}"));
                        at += run;
                    } else {
                        parts.push(self.rule(&items[at], terminals));
                        at += 1;
                    }
                }
                format!("({})", parts.join(" "))
            }
            Node::Literal(_) | Node::Regex(_) => self.terminal(node),
        }
    }
}

fn repeat(low: usize, high: Option<usize>) -> String {
    match (low, high) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (low, None) => format!("{{{low},}}"),
        (low, Some(high)) => format!("{{{low},{high}}}"),
    }
}

/// A string literal of Lark.
pub fn quote(text: &str) -> String {
    serde_json::Value::String(text.to_string()).to_string()
}
