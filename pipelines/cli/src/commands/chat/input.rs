//! The input line: editing and history.

/// A line of text with a cursor.
#[derive(Debug, Default)]
pub(super) struct Input {
    text: String,
    /// Bytes before the cursor, at the boundary of a character.
    at: usize,
    earlier: Vec<String>,
    /// The shown line of the history.
    shown: Option<usize>,
}

impl Input {
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text before the cursor.
    pub fn before_cursor(&self) -> &str {
        &self.text[..self.at]
    }

    /// Inserts text; line breaks become spaces, and other control characters are dropped.
    pub fn insert(&mut self, text: &str) {
        let text = text.replace("\r\n", " ").replace(['\n', '\r', '\t'], " ");
        let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
        self.text.insert_str(self.at, &text);
        self.at += text.len();
    }

    pub fn set(&mut self, text: &str) {
        text.clone_into(&mut self.text);
        self.at = text.len();
    }

    pub fn clear(&mut self) {
        self.set("");
    }

    /// Takes the line and adds it to the history.
    pub fn take(&mut self) -> String {
        let text = std::mem::take(&mut self.text);
        (self.at, self.shown) = (0, None);
        if !text.trim().is_empty() && self.earlier.last() != Some(&text) {
            self.earlier.push(text.clone());
        }
        text
    }

    pub fn backspace(&mut self) {
        if let Some(last) = self.text[..self.at].chars().next_back() {
            self.at -= last.len_utf8();
            self.text.remove(self.at);
        }
    }

    pub fn delete(&mut self) {
        if self.at < self.text.len() {
            self.text.remove(self.at);
        }
    }

    pub fn delete_word(&mut self) {
        let before = self.text[..self.at].trim_end();
        let from = before
            .rfind(char::is_whitespace)
            .map_or(0, |at| at + before[at..].chars().next().map_or(0, char::len_utf8));
        self.text.replace_range(from..self.at, "");
        self.at = from;
    }

    pub fn left(&mut self) {
        self.at -= self.text[..self.at].chars().next_back().map_or(0, char::len_utf8);
    }

    pub fn right(&mut self) {
        self.at += self.text[self.at..].chars().next().map_or(0, char::len_utf8);
    }

    pub fn home(&mut self) {
        self.at = 0;
    }

    pub fn end(&mut self) {
        self.at = self.text.len();
    }

    /// Shows the previous line.
    pub fn before(&mut self) {
        let at = self.shown.unwrap_or(self.earlier.len()).checked_sub(1);
        if let Some(at) = at {
            self.shown = Some(at);
            self.set(&self.earlier[at].clone());
        }
    }

    /// Shows the next line.
    pub fn after(&mut self) {
        let Some(at) = self.shown.map(|at| at + 1) else { return };
        self.shown = (at < self.earlier.len()).then_some(at);
        self.set(&self.earlier.get(at).cloned().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_edited_in_any_script() {
        let mut input = Input::default();
        input.insert("grüße 日本\n語\u{1b}");
        assert_eq!(input.text(), "grüße 日本 語");
        input.left();
        input.left();
        input.backspace();
        assert_eq!((input.text(), input.before_cursor()), ("grüße 日 語", "grüße 日"));
        input.delete();
        input.delete_word();
        assert_eq!(input.text(), "grüße 語");
        input.home();
        input.left();
        input.delete();
        input.right();
        input.end();
        input.right();
        assert_eq!(input.text(), "rüße 語");
    }

    #[test]
    fn earlier_lines_come_back() {
        let mut input = Input::default();
        for line in ["one", "two", "two"] {
            input.insert(line);
            assert_eq!(input.take(), line);
        }
        input.before();
        input.before();
        input.before();
        assert_eq!(input.text(), "one");
        input.after();
        assert_eq!(input.text(), "two");
        input.after();
        input.after();
        assert_eq!(input.text(), "");
    }
}
