//! Offsets in bytes, from the lines and columns of serde_yaml's errors.

/// Characters between two offsets that are remembered.
const STEP: usize = 64;

/// The lines of a text as serde_yaml counts them: YAML has more line breaks than `\n`.
pub(super) struct Marks {
    /// The number of characters before each line.
    lines: Vec<usize>,
    /// The offset of each character whose number [`STEP`] divides, so that a long line costs no more than a short one.
    steps: Vec<usize>,
}

impl Marks {
    pub(super) fn of(text: &str) -> Self {
        let (mut lines, mut steps) = (vec![0], Vec::new());
        let mut chars = text.char_indices().enumerate().peekable();
        while let Some((number, (offset, next))) = chars.next() {
            if number % STEP == 0 {
                steps.push(offset);
            }
            let is_break = match next {
                '\r' => !matches!(chars.peek(), Some((_, (_, '\n')))),
                '\n' | '\u{85}' | '\u{2028}' | '\u{2029}' => true,
                _ => false,
            };
            if is_break {
                lines.push(number + 1);
            }
        }
        Self { lines, steps }
    }

    /// The offset of a line and a column, both from 1; `text` must be the text of these marks.
    pub(super) fn offset(&self, text: &str, line: usize, column: usize) -> Option<usize> {
        let Some(before) = self.lines.get(line.checked_sub(1)?) else {
            // The end of a text is on a line of its own, even without a break before it.
            return Some(text.len());
        };
        let number = before + column.checked_sub(1)?;
        let Some(step) = self.steps.get(number / STEP) else {
            return Some(text.len());
        };
        let mut offsets = text[*step..].char_indices().map(|(at, _)| step + at);
        Some(offsets.nth(number % STEP).unwrap_or(text.len()))
    }
}
