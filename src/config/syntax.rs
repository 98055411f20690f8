//! Errors of YAML's syntax, in the words of someone who wrote the file: the cause and its position, which is often
//! above the line where the parser gave up, at a quote or a bracket that is not closed.

use crate::config::{
    advice::{is_odd_space, odd_characters, without_colon},
    fault::Fault,
    position::{Lines, Position},
    template::in_line,
};

/// The problem that an error of the parser stands for, and its position.
pub(super) fn syntax_problem(text: &str, error: &serde_yaml::Error) -> (Option<Position>, Fault) {
    let message = error.to_string();
    let at = error.location();
    let at = at.map(|at| Position::at(at.line(), at.column()));
    if let Some(found) = template(text, at) {
        return found;
    }
    let (problem, context) = message.split_once(", while ").unwrap_or((&message, ""));
    let problem = problem.split(" at ").next().unwrap_or_default();
    let other = || (at, general(problem));
    // An error about a byte has the position 1:1 too.
    let (Some(position), false) = (at, message.contains(" at position ")) else {
        return unlocated(text, &message, problem);
    };
    let file = SyntaxText { text, position };
    file.odd_blank()
        .or_else(|| file.by_message(problem, position_in(context)))
        .unwrap_or_else(other)
}

/// A template that is no YAML before it is rendered: in the first line that begins with one, or in the line where the
/// parser gave up.
fn template(text: &str, at: Option<Position>) -> Option<(Option<Position>, Fault)> {
    let lines = || text.split('\n').zip(1..);
    let begins = |line: &str| {
        ["{{", "{%", "<%"]
            .iter()
            .any(|mark| line.trim_start().starts_with(mark))
    };
    let is_of_error = |number: usize| at.is_some_and(|at| at.line == number);
    let (line, number) = lines()
        .find(|(line, number)| begins(line) || (is_of_error(*number) && in_line(line).is_some()))?;
    let (offset, fault) = in_line(line)?;
    let column = 1 + line[..offset].chars().count();
    Some((Some(Position::at(number, column)), fault))
}

/// The fault of an error that has no description of its own.
fn general(problem: &str) -> Fault {
    match problem {
        // libyaml's text for a line that belongs to no node.
        "did not find expected <document start>" => Fault::AfterDocument,
        "unknown anchor" => Fault::NeedsQuotes('*'),
        "recursion limit exceeded" => Fault::Syntax("it has too many levels".to_owned()),
        _ => Fault::Syntax(problem.to_owned()),
    }
}

/// An error about bytes, which has an offset instead of a line.
fn unlocated(text: &str, message: &str, problem: &str) -> (Option<Position>, Fault) {
    if problem == "repetition limit exceeded" {
        let fault = "its aliases stand for too many values";
        return (None, Fault::Syntax(fault.to_owned()));
    }
    let offset = message.split(" at position ").nth(1);
    let offset = offset.and_then(|offset| offset.parse::<usize>().ok());
    let offset = offset.filter(|offset| *offset < text.len());
    let at = offset.map(|offset| Lines::of(text).position(text, offset));
    (at, general(problem))
}

/// The position after ` at line ` in a message.
fn position_in(context: &str) -> Option<Position> {
    let (_, mark) = context.split_once(" at line ")?;
    let (line, column) = mark.split_once(" column ")?;
    Some(Position::at(line.parse().ok()?, column.parse().ok()?))
}

/// A text, and the position at which its parser gave up.
struct SyntaxText<'t> {
    text: &'t str,
    position: Position,
}

type Found = Option<(Option<Position>, Fault)>;

impl<'t> SyntaxText<'t> {
    fn line(&self, number: usize) -> &'t str {
        let line = self.text.split('\n').nth(number - 1).unwrap_or_default();
        line.strip_suffix('\r').unwrap_or(line)
    }

    /// A tab or a blank that is none to YAML, before the line's first word.
    fn odd_blank(&self) -> Found {
        let number = self.position.line;
        let line = self.line(number);
        let is_blank = |next: char| next.is_whitespace() || is_odd_space(next) || next == '-';
        let column = |wanted: fn(char) -> bool| {
            let mut blanks = line.chars().take_while(|next| is_blank(*next));
            blanks.position(wanted).map(|before| before + 1)
        };
        let at = |column| Some(Position::at(number, column));
        if let Some(column) = column(|next| next == '\t')
            && !self.is_in_brackets()
        {
            return Some((at(column), Fault::Tab));
        }
        let column = column(is_odd_space)?;
        let rest = line.trim_start_matches(is_blank);
        let word = rest.split(':').next().unwrap_or_default();
        let space = line.chars().nth(column - 1)?;
        let odd = odd_characters(&format!("{space}{word}"))?;
        let (found, fix) = (odd.found, odd.fix);
        Some((at(column), Fault::OddKey { found, fix }))
    }

    /// Whether the line begins inside of brackets, where tabs are blanks.
    fn is_in_brackets(&self) -> bool {
        let lines = self.text.split_inclusive('\n').take(self.position.line - 1);
        let end = lines.map(str::len).sum();
        !OpenTokens::of(&self.text[..end]).brackets.is_empty()
    }

    fn by_message(&self, problem: &str, context: Option<Position>) -> Found {
        let tokens = || OpenTokens::of(self.text);
        let opened = |offset, token| {
            let at = Lines::of(self.text).position(self.text, offset);
            Some((Some(at), Fault::Unclosed { token }))
        };
        match problem {
            "mapping values are not allowed in this context" => self.second_colon(),
            "could not find expected ':'" => {
                let number = context.map_or(self.position.line, |context| context.line);
                match tokens().long_quote(self.text, number) {
                    Some((offset, quote)) => opened(offset, quote),
                    None => self.colonless(number),
                }
            }
            "found unexpected end of stream" | "found unexpected document indicator" => {
                let (offset, quote) = tokens().quote?;
                opened(offset, quote)
            }
            "found character that cannot start any token" => {
                let line = self.line(self.position.line);
                match line.chars().nth(self.position.column - 1)? {
                    '\t' => Some((Some(self.position), Fault::Tab)),
                    found => Some((Some(self.position), Fault::NeedsQuotes(found))),
                }
            }
            "did not find expected alphabetic or numeric character" => {
                let before = self.position.column.saturating_sub(1).max(1);
                let line = self.line(self.position.line);
                let found = line.chars().nth(before - 1).filter(|c| "*&".contains(*c))?;
                let at = Position::at(self.position.line, before);
                Some((Some(at), Fault::NeedsQuotes(found)))
            }
            _ if problem.starts_with("did not find expected ") => {
                let tokens = tokens();
                if let Some((offset, quote)) = tokens.long_quote(self.text, self.position.line) {
                    return opened(offset, quote);
                }
                if let Some((offset, bracket)) = tokens.brackets.last()
                    && Lines::of(self.text).position(self.text, *offset) < self.position
                {
                    return opened(*offset, *bracket);
                }
                let line = self.line(self.position.line);
                let indent = line.chars().take_while(|next| *next == ' ').count();
                (indent > 0 && indent + 1 == self.position.column)
                    .then_some((Some(self.position), Fault::OtherIndent))
            }
            _ => None,
        }
    }

    /// A colon where no key can be: the line above has none, or this one has two, or is indented too far.
    fn second_colon(&self) -> Found {
        let number = self.position.line;
        let line = self.line(number).chars();
        let before: String = line.take(self.position.column - 1).collect();
        if before.contains(": ") {
            return Some((Some(self.position), Fault::SecondColon));
        }
        let lines: Vec<_> = self.text.split('\n').take(number - 1).collect();
        let above = 1 + lines.iter().rposition(|line| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with('#')
        })?;
        let line_above = Self {
            text: self.text,
            position: Position::at(above, 1),
        };
        let found = line_above.odd_blank().or_else(|| self.colonless(above));
        found.or_else(|| {
            let line = self.line(number);
            let column = 1 + line.chars().take_while(|next| *next == ' ').count();
            Some((Some(Position::at(number, column)), Fault::TooFarIn))
        })
    }

    /// A line without a colon between its key and its value.
    fn colonless(&self, number: usize) -> Found {
        let line = self.line(number);
        let words = line.trim_start_matches([' ', '-']);
        let code = words.split(" #").next().unwrap_or_default().trim_end();
        let has_colon = code.contains(": ") || code.ends_with(':');
        if code.is_empty() || has_colon || code.starts_with(['"', '\'', '[', '{', '#']) {
            return None;
        }
        let fault = without_colon(code).unwrap_or_else(|| Fault::NoColon {
            text: code.to_owned(),
            lacks: "colon",
            fixed: match code.split_once(' ') {
                Some((key, value)) => format!("{key}: {}", value.trim_start()),
                None => format!("{code}:"),
            },
        });
        let column = 1 + line.chars().count() - words.chars().count();
        Some((Some(Position::at(number, column)), fault))
    }
}

/// The quotes and brackets that are open at the end of a text, or where a bracket of another kind closes; each by its
/// offset in bytes.
#[derive(Default)]
pub(super) struct OpenTokens {
    pub(super) quote: Option<(usize, char)>,
    pub(super) brackets: Vec<(usize, char)>,
    /// Texts in quotes that go over several lines: where they begin and end.
    long_quotes: Vec<(usize, char, usize)>,
}

impl OpenTokens {
    /// Reads a text roughly as a parser does; it need not be valid.
    pub(super) fn of(text: &str) -> Self {
        let mut tokens = Self::default();
        let mut rest = text.char_indices().peekable();
        // Whether a value can begin here; in the middle of a word, quotes and brackets are letters.
        let mut is_start = true;
        while let Some((at, next)) = rest.next() {
            match next {
                '"' | '\'' if is_start => {
                    tokens.quote = Some((at, next));
                    let Some(end) = closing(text, at, next) else {
                        return tokens;
                    };
                    tokens.quote = None;
                    if text[at..end].contains('\n') {
                        tokens.long_quotes.push((at, next, end));
                    }
                    while rest.next_if(|(at, _)| *at <= end).is_some() {}
                    is_start = false;
                }
                '[' | '{' if is_start => tokens.brackets.push((at, next)),
                ']' | '}' => match tokens.brackets.last() {
                    Some((_, '[')) if next == '}' => return tokens,
                    Some((_, '{')) if next == ']' => return tokens,
                    _ => drop(tokens.brackets.pop()),
                },
                '#' if is_start => while rest.next_if(|(_, next)| *next != '\n').is_some() {},
                '|' | '>' if is_start && tokens.brackets.is_empty() => {
                    let end = end_of_block(text, at);
                    while rest.next_if(|(at, _)| *at < end).is_some() {}
                    is_start = true;
                }
                ',' if !tokens.brackets.is_empty() => is_start = true,
                // After a word, a blank begins nothing but a comment; after a colon, it begins a value.
                ' ' | '\t' if !is_start => {
                    let before = text[..at].chars().next_back();
                    let begins_comment = rest.peek().is_some_and(|(_, next)| *next == '#');
                    is_start = begins_comment || before == Some(':');
                }
                '\n' => is_start = true,
                ' ' | '\t' | '\r' => {}
                '-' | '?' if is_start => {
                    is_start = rest.peek().is_some_and(|(_, next)| *next == ' ');
                }
                ':' if !tokens.brackets.is_empty() => is_start = true,
                _ => is_start = false,
            }
        }
        tokens
    }

    /// The beginning of a text in quotes over several lines that begins or ends on this line.
    pub(super) fn long_quote(&self, text: &str, line: usize) -> Option<(usize, char)> {
        let lines: Vec<_> = text.split_inclusive('\n').take(line).collect();
        let end: usize = lines.iter().map(|line| line.len()).sum();
        let range = end - lines.last()?.len()..end;
        let has_edge =
            |(start, _, end): &&(usize, char, usize)| range.contains(start) || range.contains(end);
        let (start, quote, _) = self.long_quotes.iter().find(has_edge)?;
        Some((*start, *quote))
    }
}

/// The offset of the quote that closes the one at `at`.
fn closing(text: &str, at: usize, quote: char) -> Option<usize> {
    let mut rest = text[at + 1..].char_indices().peekable();
    while let Some((offset, next)) = rest.next() {
        if next == '\\' && quote == '"' {
            rest.next();
        } else if next == quote {
            let is_doubled = quote == '\'' && rest.next_if(|(_, next)| *next == '\'').is_some();
            if !is_doubled {
                return Some(at + 1 + offset);
            }
        }
    }
    None
}

/// The end of the block scalar whose `|` or `>` stands at `at`: the next line that is not indented deeper than its key.
fn end_of_block(text: &str, at: usize) -> usize {
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let own = text[start..at].len() - text[start..at].trim_start_matches([' ', '-']).len();
    // Without a key, the block is an item of a list.
    let own = if start + own == at {
        indent(&text[start..])
    } else {
        own
    };
    let mut end = at;
    for (number, line) in text[at..].split_inclusive('\n').enumerate() {
        if number > 0 && !line.trim().is_empty() && indent(line) <= own {
            break;
        }
        end += line.len();
    }
    end
}
