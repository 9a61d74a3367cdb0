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
        let shown = line.trim_start_matches([' ', '\t']);
        let Some(mark) = shown.chars().next().filter(|mark| matches!(mark, '`' | '~')) else { return shown.is_empty() };
        let rest = shown.trim_start_matches(mark);
        let length = shown.len() - rest.len();
        rest.is_empty() || length >= 3 && self.fence.is_some() && rest.trim().is_empty() && !rest.contains('\n')
    }

    /// Reads the beginning of a line, as far as it tells whether a block opens or closes with it.
    pub fn begin_line(&mut self, line: &str) {
        (self.span, self.run) = (0, 0);
        let line = line.split('\n').next().unwrap_or_default().trim();
        let Some(mark) = line.chars().next().filter(|mark| matches!(mark, '`' | '~')) else { return };
        let rest = line.trim_start_matches(mark);
        let length = line.len() - rest.len();
        match self.fence {
            Some((open, least)) if open == mark && length >= least && rest.is_empty() => self.fence = None,
            // Backticks behind backticks are a span.
            None if length >= 3 && !(mark == '`' && rest.contains('`')) => self.fence = Some((mark, length)),
            _ => {}
        }
    }
}
