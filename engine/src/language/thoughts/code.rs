//! Code in a text that grows: fenced blocks, and spans between backticks within a line (CommonMark 0.31, sections 4.5 and
//! 6.1).

/// Where a text is in code.
#[derive(Clone, Debug, Default)]
pub(super) struct CodeState {
    /// The mark of the open block, and its length.
    fence: Option<(char, usize)>,
    /// The number of backticks that opened a span of the line, or 0.
    span: usize,
    /// The number of backticks at the end of what was read.
    run: usize,
}

impl CodeState {
    /// Whether the next character is code.
    pub fn is_in_code(&self) -> bool {
        self.fence.is_some() || self.after_run() > 0
    }

    /// Whether the line is in a block.
    pub fn is_in_block(&self) -> bool {
        self.fence.is_some()
    }

    fn after_run(&self) -> usize {
        match (self.run, self.span) {
            (0, span) => span,
            (run, 0) => run,
            (run, span) if run == span => 0,
            (_, span) => span,
        }
    }

    /// Reads a part of a line, without its end.
    pub fn read(&mut self, part: &str) {
        for c in part.chars() {
            if c == '`' {
                self.run += 1;
            } else if self.run > 0 {
                (self.span, self.run) = (self.after_run(), 0);
            }
        }
    }

    /// Whether more text may tell whether a line that begins like this opens or closes a block.
    pub fn needs_more(&self, line: &str) -> bool {
        let is_whole = line.contains('\n');
        let shown = self.shown(line.split('\n').next().unwrap_or_default());
        let Some(mark) = shown.chars().next().filter(|mark| matches!(mark, '`' | '~')) else {
            // A number or a sign may be the mark of an item.
            let may_be_item =
                shown.len() <= MOST_OF_AN_ITEM && shown.chars().all(|sign| "-*+>.)0123456789".contains(sign));
            return !is_whole && may_be_item;
        };
        let rest = shown.trim_start_matches(mark);
        let length = shown.len() - rest.len();
        let is_open = match self.fence {
            Some(_) => length >= 3 && rest.trim().is_empty(),
            // Another backtick would make it a span.
            None => length >= 3 && mark == '`' && rest.len() <= MOST_INFO && !rest.contains('`'),
        };
        !is_whole && (rest.is_empty() || is_open)
    }

    /// Reads the beginning of a line, as far as it tells whether a block opens or closes with it.
    pub fn begin_line(&mut self, line: &str) {
        (self.span, self.run) = (0, 0);
        let line = self.shown(line.split('\n').next().unwrap_or_default()).trim_end();
        let Some(mark) = line.chars().next().filter(|mark| matches!(mark, '`' | '~')) else { return };
        let rest = line.trim_start_matches(mark);
        let length = line.len() - rest.len();
        match self.fence {
            Some((open, least)) if open == mark && length >= least && rest.is_empty() => self.fence = None,
            // Backticks behind backticks are a span.
            None if length >= 3 && !(mark == '`' && (rest.len() > MOST_INFO || rest.contains('`'))) => {
                self.fence = Some((mark, length))
            }
            _ => {}
        }
    }

    /// A line behind the marks of quotations, and of items, with which no block ends.
    fn shown<'a>(&self, line: &'a str) -> &'a str {
        let mut shown = line.trim_start();
        loop {
            let rest = shown.strip_prefix('>');
            let rest = rest.or_else(|| self.fence.is_none().then(|| behind_item(shown)).flatten());
            match rest {
                Some(rest) => shown = rest.trim_start(),
                None => return shown,
            }
        }
    }
}

/// Longest text behind backticks that open a block, in bytes.
const MOST_INFO: usize = 200;

/// Longest mark of an item, in bytes.
const MOST_OF_AN_ITEM: usize = 10;

/// What follows the mark of an item, as in `- one` and `1. one`.
fn behind_item(line: &str) -> Option<&str> {
    let number = line.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let (sign, rest) = match line.len() - number.len() {
        0 => (line.strip_prefix(['-', '*', '+']), line),
        1..MOST_OF_AN_ITEM => (number.strip_prefix(['.', ')']), number),
        _ => (None, line),
    };
    sign.filter(|_| !rest.is_empty()).filter(|rest| rest.starts_with([' ', '\t']))
}
