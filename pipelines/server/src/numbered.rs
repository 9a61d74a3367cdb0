//! The numbers of citations as OpenAI's clients read them: `[1]` is the first annotation, `[2]` the second one.
//!
//! A pipeline numbers the passages that its model was given, and the annotations name only those that the answer cites. A
//! client that finds the source of a mark by its number, as Open WebUI does, needs the one to follow from the other. So the
//! passages are numbered anew, in the order in which the text cites them first, while the text is written.

use turnflow_operators::citations::marks;

/// A mark is at most so long, in bytes; what is open for longer is text.
const LONGEST: usize = 60;

/// The passages that a text cites.
#[derive(Debug, Default)]
pub struct Numbered {
    /// Their numbers in the pipeline, from 1, in the order of the new ones.
    order: Vec<usize>,
}

impl Numbered {
    /// The text with new numbers. `passages` were given to its writer.
    pub fn text(&mut self, text: &str, passages: usize) -> String {
        let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
        for mark in marks(text, passages) {
            out.push_str(&text[copied..mark.bytes.start]);
            copied = mark.bytes.end;
            let numbers: Vec<String> = mark.passages.iter().map(|number| self.number(*number).to_string()).collect();
            out.push_str(&format!("[{}]", numbers.join(", ")));
        }
        out.push_str(&text[copied..]);
        out
    }

    /// The part of the text whose marks are certain, whatever follows, with new numbers.
    pub fn certain(&mut self, text: &str, passages: usize) -> String {
        let open = text.char_indices().rev().take_while(|(at, _)| text.len() - at <= LONGEST);
        let mut end = text.len();
        for (at, c) in open {
            match c {
                '[' | '【' | '［' => {
                    // What follows the brackets decides whether it is a mark, as in a link.
                    let inner = &text[at..];
                    let closed = inner.find([']', '】', '］']).is_some_and(|close| {
                        inner[close..].chars().nth(1).is_some_and(|after| !"[【［".contains(after))
                    });
                    if closed {
                        break;
                    }
                    end = at;
                }
                '\n' => break,
                _ => {}
            }
        }
        self.text(&text[..end], passages)
    }

    fn number(&mut self, passage: usize) -> usize {
        let at = self.order.iter().position(|known| *known == passage);
        at.unwrap_or_else(|| {
            self.order.push(passage);
            self.order.len() - 1
        }) + 1
    }

    /// The passages in the order of their new numbers: those that are cited, and then the others of so many.
    pub fn order(&self, passages: usize) -> Vec<usize> {
        let others = (1..=passages).filter(|passage| !self.order.contains(passage));
        self.order.iter().copied().chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_numbered_in_the_order_in_which_they_are_cited() {
        let mut numbered = Numbered::default();
        let text = numbered.text("A [4]. B [2, 4]【1】, `x[2]`, [2](http://a), rows[0] and [9].", 5);
        assert_eq!(text, "A [1]. B [2, 1][3], `x[2]`, [2](http://a), rows[0] and [9].");
        assert_eq!(numbered.order(5), [4, 2, 1, 3, 5]);
        assert_eq!(Numbered::default().text("No marks.", 5), "No marks.");
    }

    #[test]
    fn a_text_that_is_written_piece_by_piece_has_the_numbers_of_the_whole() {
        let whole = "Ä [4] b [2][4], a [3](link) [no mark] x 【5】[1, 3]\n[2] [a [b [c";
        let (mut all, mut pieces) = (Numbered::default(), Numbered::default());
        let expected = all.text(whole, 5);
        let mut sent = String::new();
        for (end, _) in whole.char_indices() {
            let certain = pieces.certain(&whole[..end], 5);
            assert!(certain.starts_with(&sent), "{certain:?} begins with {sent:?}");
            assert!(expected.starts_with(&certain), "{expected:?} begins with {certain:?}");
            sent = certain;
        }
        assert_eq!(pieces.text(whole, 5), expected);
        assert!(expected.contains("[3](link)") && sent.len() > 30, "{sent}");
        // What stays open is text.
        let long = format!("[{}", "x".repeat(100));
        assert_eq!(Numbered::default().certain(&long, 5), long);
    }
}
