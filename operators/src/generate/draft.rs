//! Streams an answer while a model writes it, such that the pieces together are the text of the answer.

use std::sync::Arc;

use parking_lot::Mutex;
use turnflow_engine::language::TextStream;

use super::{Form, plain};
use crate::citations;
use crate::code::Code;
use crate::reply::{ENDS, clean};

/// Maximum length of brackets that may be a citation, in bytes.
const BRACKETS: usize = 64;

/// The text that a model has written so far.
#[derive(Default)]
struct Draft {
    raw: String,
    /// What was sent of the answer.
    sent: String,
}

/// A stream for a model's raw text, which sends the certain part of the answer on. `passages` is the number of passages
/// in the prompt.
pub(super) fn streamed(stream: TextStream, form: Form, passages: usize) -> TextStream {
    if !stream.is_wanted() {
        return TextStream::default();
    }
    let draft = Arc::new(Mutex::new(Draft::default()));
    let again = draft.clone();
    let send = move |piece: &str| {
        let mut draft = draft.lock();
        draft.raw.push_str(piece);
        let certain = certain(&draft.raw, &form);
        if certain == 0 {
            return;
        }
        let text = form.answer(&draft.raw[..certain], passages).text;
        let text = text.trim_end();
        // A model that was asked again may write another text. Then no more is sent, and the answer has the whole text.
        if let Some(rest) = text.strip_prefix(draft.sent.as_str()).filter(|rest| !rest.is_empty()) {
            stream.send(rest);
            draft.sent = text.to_owned();
        }
    };
    TextStream::restartable(send, move || again.lock().raw.clear())
}

/// The length of the part of a model's text whose meaning more text does not change.
fn certain(raw: &str, form: &Form) -> usize {
    let shown = clean(raw);
    let shown = form.unlabelled(&shown);
    let start = shown.to_lowercase();
    // What may become the sentence for not knowing may be replaced by another one.
    let may_be_idk = !form.idk.is_empty() && form.idk.starts_with(&plain(&citations::without(shown)));
    if may_be_idk || form.labels().iter().any(|label| label.starts_with(start.as_str())) {
        return 0;
    }
    let mut end = raw.trim_end().len();
    // A token may be half there, and brackets may become a citation or the text of a link.
    let last = raw[..end].rfind(['<', '[', '【', '［']);
    if let Some(at) = last.filter(|at| end - at <= BRACKETS) {
        let rest = &raw[at..end];
        let is_half = ENDS.iter().any(|token| token.starts_with(rest)) || "<|im_start|>assistant".starts_with(rest);
        let is_edge = ["</s>", "<s>", "<pad>"].iter().any(|token| token.starts_with(rest));
        let closed = rest.find([']', '】', '］']);
        let is_open = !rest.starts_with('<') && closed.is_none_or(|close| rest[close..].chars().count() == 1);
        if is_half || is_edge || is_open {
            end = at;
            // Brackets in brackets.
            end -= raw[..end].len() - raw[..end].trim_end_matches(['[', '<']).len();
        } else if rest.starts_with('[') && rest.ends_with(']') {
            end = at - usize::from(raw[..at].ends_with('['));
        }
    }
    match Code::of(&raw[..end]).open {
        Some(open) => open,
        None => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(reply: &str, size: usize, words: Option<usize>) -> (Vec<String>, String) {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let sent = told.clone();
        let form = Form { words, idk: plain("I do not know.") };
        let listener = TextStream::new(move |piece| sent.lock().push(piece.to_owned()));
        let stream = streamed(listener, form.clone(), 3);
        let letters: Vec<char> = reply.chars().collect();
        letters.chunks(size).for_each(|piece| stream.send(&piece.iter().collect::<String>()));
        let pieces = told.lock().clone();
        (pieces, form.answer(reply, 3).text.trim().to_owned())
    }

    #[test]
    fn pieces_are_the_beginning_of_the_answer() {
        for reply in [
            "Answer: The ferry leaves at ten [1].",
            "\n\n  The ferry leaves at ten [1].\n\n",
            "The ferry leaves at ten [1].<|im_end|>\n<|im_start|>user",
            "At ten [7]. Tickets【2】 at [[2]] or [[9]] and [1, 9].",
            "In [0, 1], see [12](http://x) and `rows[9]`, a `b\n\nand [9].",
            "Use:\n\n```python\nrows = load()\nprint(rows[0], rows[12])\nxs = [7]\n```\n",
            "Write `<s>old</s>` and <pad> for padding [1].",
            "Short answer: answer: Yes.",
            "a [7] (b)",
            "<s> Paris.</s>",
            "[1",
            "十点【1】。",
        ] {
            for size in [1, 2, 3, 7, 1000] {
                let (pieces, text) = pieces(reply, size, None);
                assert!(text.starts_with(&pieces.concat()), "{reply:?} {size}: {pieces:?} {text:?}");
            }
        }
        let (pieces, _) = pieces("The ferry leaves at ten.", 4, None);
        assert!(pieces.len() > 4, "{pieces:?}");
    }

    #[test]
    fn spans_and_texts_that_start_again() {
        let (pieces, text) = pieces("Short answer: in Paris, of course", 3, Some(2));
        assert_eq!((pieces.concat().as_str(), text.as_str()), ("in Paris,", "in Paris,"));
        let told: Arc<Mutex<String>> = Arc::default();
        let sent = told.clone();
        let form = Form { words: None, idk: String::new() };
        let stream = streamed(TextStream::new(move |piece| sent.lock().push_str(piece)), form, 1);
        stream.send("The ferry ");
        stream.restart();
        ["The ferry ", "leaves."].iter().for_each(|piece| stream.send(piece));
        assert_eq!(*told.lock(), "The ferry leaves.");
    }
}
