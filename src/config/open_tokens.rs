//! Quotes and brackets of a YAML text, for errors about those that are not closed.

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
