// SPDX-License-Identifier: Apache-2.0
//! Regular expressions as JSON Schema and clients write them (ECMA-262 without flags), respelt for
//! the matcher's dialect. What has no equivalent there is refused by name.

use std::iter::Peekable;
use std::str::Chars;

const DIGITS: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
const SPACE: &str =
    r"\t\n\x0B\x0C\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}";
/// What some dialects count as white space beyond SPACE; \S keeps away from those too.
const DOUBTFUL_SPACE: &str = r"\x1C-\x1F\x{85}\x{FEFF}";
const MAX_REPEAT: u32 = 10_000;
/// Kept out of everything a pattern can match. The matcher's library spells a set inside a JSON
/// string wrongly when the set holds all control characters: it then lets \" and \\ in, too.
const NEVER: char = '\x1F';
const EXCEPT_NEVER: &str = r"--[\x1F]]";

type Input<'a> = Peekable<Chars<'a>>;

/// Err names the construct that is not supported or is malformed.
pub fn translate(pattern: &str) -> Result<String, String> {
    let mut input = pattern.chars().peekable();
    let mut out = String::with_capacity(pattern.len() + 16);
    while let Some(c) = input.next() {
        match c {
            '\\' => out.push_str(&escape_outside_class(&mut input)?),
            '[' => out.push_str(&class(&mut input)?),
            '(' => out.push_str(&group(&mut input)?),
            '.' => out.push_str(r"[^\n\r\x1F\x{2028}\x{2029}]"),
            '{' => match repeat_counts(&input)? {
                Some((text, length)) => {
                    out.push_str(&text);
                    input.nth(length - 1);
                    refuse_possessive(&mut input)?;
                }
                None => out.push_str(r"\{"),
            },
            '*' | '+' | '?' => {
                out.push(c);
                refuse_possessive(&mut input)?;
            }
            '^' | '$' | '|' | ')' => out.push(c),
            NEVER => return Err(never()),
            other => push_literal(other, &mut out),
        }
    }
    Ok(out)
}

fn never() -> String {
    "the control character U+001F".into()
}

/// A pattern that matches exactly `text`.
pub fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    text.chars().for_each(|c| push_literal(c, &mut out));
    out
}

fn push_literal(c: char, out: &mut String) {
    // The slash is left to the writer of the grammar; "\<" and "\>" would be word borders.
    if c.is_ascii_punctuation() && !matches!(c, '/' | '<' | '>' | '_') {
        out.push('\\');
    }
    if c.is_control() {
        out.push_str(&format!("\\x{{{:X}}}", c as u32));
    } else {
        out.push(c);
    }
}

fn refuse_possessive(input: &mut Input) -> Result<(), String> {
    if input.peek() == Some(&'+') {
        return Err("a possessive quantifier".into());
    }
    Ok(())
}

/// `{n}`, `{n,}` or `{n,m}` behind an opening brace: its text and how many characters follow the
/// brace.
fn repeat_counts(input: &Input) -> Result<Option<(String, usize)>, String> {
    let body: String = input.clone().take_while(|&c| c != '}').take(24).collect();
    let closed = input.clone().nth(body.chars().count()) == Some('}');
    let is_count = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let (low, high) = body.split_once(',').unwrap_or((&body, &body));
    if !closed || !is_count(low) || !(high.is_empty() || is_count(high)) {
        return Ok(None);
    }
    for count in [low, high].into_iter().filter(|count| !count.is_empty()) {
        if count.parse::<u32>().map_or(true, |value| value > MAX_REPEAT) {
            return Err(format!("a repetition of more than {MAX_REPEAT} ({{{body}}})"));
        }
    }
    Ok(Some((format!("{{{body}}}"), body.len() + 1)))
}

fn group(input: &mut Input) -> Result<String, String> {
    if input.peek() != Some(&'?') {
        return Ok("(?:".into());
    }
    input.next();
    let head: String = input.clone().take(2).collect();
    if head.starts_with(':') {
        input.next();
        return Ok("(?:".into());
    }
    match head.as_str() {
        "<=" => return Err("lookbehind (?<=...)".into()),
        "<!" => return Err("negative lookbehind (?<!...)".into()),
        "P=" => return Err("a backreference (?P=...)".into()),
        _ => {}
    }
    if head.starts_with('=') {
        return Err("lookahead (?=...)".into());
    }
    if head.starts_with('!') {
        return Err("negative lookahead (?!...)".into());
    }
    if head.starts_with('>') {
        return Err("an atomic group (?>...)".into());
    }
    if head.starts_with('<') || head == "P<" {
        // A named group: the name means nothing without references to it.
        for c in input.by_ref() {
            if c == '>' {
                return Ok("(?:".into());
            }
        }
        return Err("a group name without its end".into());
    }
    if head == "i)" || head == "i:" {
        let end = head.chars().nth(1).unwrap_or(')');
        input.nth(1);
        return Ok(format!("(?i{end}"));
    }
    Err(format!("the group (?{head}...)"))
}

fn hex(input: &mut Input, digits: usize) -> Option<u32> {
    let text: String = input.clone().take(digits).collect();
    if text.len() != digits || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    input.nth(digits - 1);
    u32::from_str_radix(&text, 16).ok()
}

/// The character behind `\u`.
fn unicode_escape(input: &mut Input) -> Result<char, String> {
    let bad = || "a \\u escape that is no character".to_string();
    if input.peek() == Some(&'{') {
        input.next();
        let body: String = input.by_ref().take_while(|&c| c != '}').take(8).collect();
        return u32::from_str_radix(&body, 16).ok().and_then(char::from_u32).ok_or_else(bad);
    }
    let unit = hex(input, 4).ok_or_else(bad)?;
    if (0xD800..0xDC00).contains(&unit) {
        let mut ahead = input.clone();
        if ahead.next() == Some('\\') && ahead.next() == Some('u') {
            if let Some(low) = hex(&mut ahead, 4).filter(|low| (0xDC00..0xE000).contains(low)) {
                *input = ahead;
                let code = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
                return char::from_u32(code).ok_or_else(bad);
            }
        }
    }
    char::from_u32(unit).ok_or_else(bad)
}

/// An escape that stands for one character; None for those that stand for a class.
fn escaped_char(c: char, input: &mut Input) -> Result<Option<char>, String> {
    Ok(Some(match c {
        'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'p' | 'P' => return Ok(None),
        't' => '\t',
        'n' => '\n',
        'r' => '\r',
        'v' => '\x0B',
        'f' => '\x0C',
        'a' => '\x07',
        '0' => '\0',
        'u' => unicode_escape(input)?,
        'x' => {
            hex(input, 2).and_then(char::from_u32).ok_or("a \\x escape without two hex digits")?
        }
        'c' => match input.next() {
            Some(letter) if letter.is_ascii_alphabetic() => char::from(letter as u8 % 32),
            _ => return Err("a \\c escape without a letter".into()),
        },
        '1'..='9' => return Err(format!("the backreference \\{c}")),
        'k' => return Err("the backreference \\k<...>".into()),
        'b' => return Err("the word boundary \\b".into()),
        'B' => return Err("the word boundary \\B".into()),
        'A' | 'Z' | 'z' | 'G' => return Err(format!("the anchor \\{c} (use ^ and $)")),
        c if c.is_ascii_alphabetic() => return Err(format!("the escape \\{c}")),
        c => c,
    }))
}

/// The inside of a class for `\d`, `\w`, ... and whether it is negated.
fn escaped_class(c: char, input: &mut Input) -> Result<String, String> {
    Ok(match c {
        'd' => DIGITS.into(),
        'D' => format!(r"[^{DIGITS}\x1F]"),
        'w' => WORD.into(),
        'W' => format!(r"[^{WORD}\x1F]"),
        's' => SPACE.into(),
        'S' => format!("[^{SPACE}{DOUBTFUL_SPACE}]"),
        _ => {
            if input.next() != Some('{') {
                return Err(format!("the escape \\{c} without {{...}}"));
            }
            let name: String = input.by_ref().take_while(|&c| c != '}').take(64).collect();
            format!("\\{c}{{{name}}}")
        }
    })
}

fn escape_outside_class(input: &mut Input) -> Result<String, String> {
    let c = input.next().ok_or("a backslash at the end")?;
    match escaped_char(c, input)? {
        Some(NEVER) => Err(never()),
        Some(c) => {
            let mut out = String::new();
            push_literal(c, &mut out);
            Ok(out)
        }
        None => Ok(format!("[[{}]{EXCEPT_NEVER}", escaped_class(c, input)?)),
    }
}

enum ClassItem {
    One(char),
    Set(String),
}

fn class_item(c: char, input: &mut Input) -> Result<ClassItem, String> {
    if c != '\\' {
        return Ok(ClassItem::One(c));
    }
    let c = input.next().ok_or("a backslash at the end")?;
    if c == 'b' {
        return Ok(ClassItem::One('\x08'));
    }
    match escaped_char(c, input)? {
        Some(c) => Ok(ClassItem::One(c)),
        None => Ok(ClassItem::Set(escaped_class(c, input)?)),
    }
}

fn class(input: &mut Input) -> Result<String, String> {
    let negated = input.peek() == Some(&'^');
    if negated {
        input.next();
    }
    let mut out = String::from(if negated { r"[^\x1F" } else { "[[" });
    let mut empty = true;
    loop {
        let c = input.next().ok_or("a character class without its end")?;
        if c == ']' {
            break;
        }
        empty = false;
        let first = class_item(c, input)?;
        let mut ahead = input.clone();
        let range = ahead.next() == Some('-') && !matches!(ahead.peek(), None | Some(']'));
        match first {
            ClassItem::One(low) if range => {
                input.next();
                let next = input.next().ok_or("a character class without its end")?;
                match class_item(next, input)? {
                    ClassItem::One(high) if high < low => {
                        return Err(format!("the range {low}-{high}, which runs backwards"));
                    }
                    ClassItem::One(high) => {
                        push_literal(low, &mut out);
                        out.push('-');
                        push_literal(high, &mut out);
                    }
                    ClassItem::Set(set) => {
                        push_literal(low, &mut out);
                        out.push_str("\\-");
                        out.push_str(&set);
                    }
                }
            }
            ClassItem::One(c) => push_literal(c, &mut out),
            ClassItem::Set(set) => out.push_str(&set),
        }
    }
    if empty {
        return if negated {
            Ok(r"[^\x1F]".into())
        } else {
            Err("an empty character class []".into())
        };
    }
    out.push(']');
    if !negated {
        out.push_str(EXCEPT_NEVER);
    }
    Ok(out)
}
