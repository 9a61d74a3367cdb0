//! Reads a model's step: a thought and an action.

use crate::reply::{clean, object, strip, unquote};

/// What the model wants to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Search the corpus for these words.
    Search(String),
    /// Find the sentences with these words in the passages read so far.
    Lookup(String),
    /// Show the passage with this number, longer than a search shows it.
    Read(usize),
    /// Give this answer.
    Finish(String),
}

impl Action {
    /// The name in prompts.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Search(_) => "search",
            Action::Lookup(_) => "lookup",
            Action::Read(_) => "read",
            Action::Finish(_) => "finish",
        }
    }

    /// What stands in the brackets.
    pub fn input(&self) -> String {
        match self {
            Action::Search(text) | Action::Lookup(text) | Action::Finish(text) => text.clone(),
            Action::Read(number) => number.to_string(),
        }
    }
}

/// A step of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The thought; may be empty.
    pub thought: String,
    /// The action, or what is wrong with it: a note to the model.
    pub action: Result<Action, String>,
}

/// Maximum number of words in a search. Small models paste whole passages.
pub(super) const WORDS: usize = 60;
/// Maximum number of characters of a thought.
const THOUGHT: usize = 1000;

/// Reads a reply: a thought, and the first action. What follows the action, such as an observation that the model made
/// up, is ignored.
pub(super) fn read(reply: &str) -> Step {
    let reply = clean(reply);
    let reply = &reply[..observation(&reply)];
    let (thought, rest) = match labelled(reply, "action") {
        Some((at, after)) => (&reply[..at], Some(&reply[after..])),
        None => match bare(reply) {
            Some(at) => (&reply[..at], Some(&reply[at..])),
            None => (reply, None),
        },
    };
    let thought = strip(thought.trim(), &["thought:", "thought 1:", "**thought:**"]);
    let end = thought.char_indices().nth(THOUGHT).map_or(thought.len(), |(at, _)| at);
    let thought = thought[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    let action = match rest.and_then(named) {
        Some((name, input)) => of(&name, &input),
        None => match object(reply).and_then(|object| {
            let text = |keys: &[&str]| keys.iter().find_map(|key| object.get(*key)?.as_str().map(str::to_owned));
            Some((text(&["action", "tool", "name"])?, text(&["input", "query", "answer", "text", "action_input"])?))
        }) {
            Some((name, input)) => of(&name, &input),
            None => Err("the reply has no action".to_owned()),
        },
    };
    Step { thought, action }
}

/// The start of the first line that begins with "Observation", or the end.
fn observation(reply: &str) -> usize {
    labelled(reply, "observation").map_or(reply.len(), |(at, _)| at)
}

/// The first line that begins with a label and a colon, ignoring letter case, emphasis and a number: the start of the
/// line and the end of the colon.
fn labelled(reply: &str, label: &str) -> Option<(usize, usize)> {
    let mut at = 0;
    for line in reply.split_inclusive('\n') {
        let shown = line.trim_start_matches(|c: char| c.is_whitespace() || "*_#>-".contains(c));
        if let Some(head) = shown.get(..label.len())
            && head.eq_ignore_ascii_case(label)
        {
            let rest = &shown[label.len()..];
            let after = rest.trim_start_matches(|c: char| c == ' ' || c == '*' || c.is_ascii_digit());
            if after.starts_with([':', '：']) {
                let colon = after.chars().next().map_or(1, char::len_utf8);
                return Some((at, at + line.len() - after.len() + colon));
            }
        }
        at += line.len();
    }
    None
}

/// The start of the first line that begins with an action and a bracket, without the label.
fn bare(reply: &str) -> Option<usize> {
    let mut at = 0;
    for line in reply.split_inclusive('\n') {
        let shown = line.trim_start();
        if named(shown).is_some_and(|(name, _)| of(&name, "1").is_ok()) {
            return Some(at + line.len() - shown.len());
        }
        at += line.len();
    }
    None
}

/// Splits `search[the words]` into its name and its input. The closing bracket may be missing.
fn named(text: &str) -> Option<(String, String)> {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || "*_`".contains(c));
    let end = text.find(|c: char| !c.is_ascii_alphabetic())?;
    let (name, rest) = text.split_at(end);
    let rest = rest.trim_start_matches([' ', '*', '`']);
    let (open, close) = match rest.chars().next()? {
        '[' => ('[', ']'),
        '(' => ('(', ')'),
        ':' => (':', '\n'),
        _ => return None,
    };
    if name.is_empty() {
        return None;
    }
    let inner = &rest[open.len_utf8()..];
    // The bracket that matches: an answer may contain citations in brackets.
    let mut depth = 1_usize;
    let end = inner.char_indices().find_map(|(at, c)| {
        if c == close {
            depth -= 1;
        } else if c == open {
            depth += 1;
        }
        (depth == 0).then_some(at)
    });
    let inner = &inner[..end.unwrap_or(inner.len())];
    Some((name.to_lowercase(), unquote(inner.trim()).to_owned()))
}

/// The action of this name, or a note to the model.
fn of(name: &str, input: &str) -> Result<Action, String> {
    let words = || {
        let words: Vec<&str> = input.split_whitespace().take(WORDS).collect();
        if words.is_empty() { Err(format!("`{name}` needs words in its brackets")) } else { Ok(words.join(" ")) }
    };
    match name {
        "search" | "retrieve" => words().map(Action::Search),
        "lookup" | "find" => words().map(Action::Lookup),
        "read" | "open" => {
            let number = crate::reply::number(input).and_then(|number| usize::try_from(number).ok());
            number.map(Action::Read).ok_or_else(|| "`read` needs the number of a passage in its brackets".to_owned())
        }
        "finish" | "answer" => match input.trim() {
            "" => Err("`finish` needs the answer in its brackets".to_owned()),
            answer => Ok(Action::Finish(answer.to_owned())),
        },
        other => Err(format!("there is no action `{}`", other.chars().take(40).collect::<String>())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn steps_are_read() {
        let search = |text: &str| Ok(Action::Search(text.to_owned()));
        for (reply, thought, action) in [
            (
                "Thought: I need the city.\nAction: search[city of the ferry]",
                "I need the city.",
                search("city of the ferry"),
            ),
            (
                "I need it.\n**Action:** Search(\"the ferry\")\nObservation: [1] It is free.",
                "I need it.",
                search("the ferry"),
            ),
            ("action 2: search[a\nObservation: b", "", search("a")),
            ("Thought: x\nsearch[one two", "x", search("one two")),
            (
                "{\"action\": \"search\", \"input\": \"ferry\"}",
                "{\"action\": \"search\", \"input\": \"ferry\"}",
                search("ferry"),
            ),
            ("Action: read[2]", "", Ok(Action::Read(2))),
            ("Action: lookup[built in]<|im_end|>", "", Ok(Action::Lookup("built in".into()))),
            (
                "Action: finish[In 1931 [1], by hand [2].] Done.",
                "",
                Ok(Action::Finish("In 1931 [1], by hand [2].".into())),
            ),
            ("Action: finish[two\nlines]", "", Ok(Action::Finish("two\nlines".into()))),
            ("Action: finish: 1931\nThe end", "", Ok(Action::Finish("1931".into()))),
            ("Action: search[]", "", Err("`search` needs words in its brackets".into())),
            ("Action: read[it]", "", Err("`read` needs the number of a passage in its brackets".into())),
            ("Action: calculate[1 + 1]", "", Err("there is no action `calculate`".into())),
            ("It was built in 1931.", "It was built in 1931.", Err("the reply has no action".into())),
            ("", "", Err("the reply has no action".into())),
            ("Observation: x\nAction: search[y]", "", Err("the reply has no action".into())),
        ] {
            let step = read(reply);
            assert_eq!((&*step.thought, step.action), (thought, action), "{reply}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_reply_is_read(reply in "(Action|Thought|observation|[*:：\\[\\]()\"{}\n]|search|read|finish|[a-zé日👍\u{301} ]|[0-9]){0,40}") {
            let step = read(&reply);
            if let Ok(Action::Search(text) | Action::Lookup(text)) = &step.action {
                prop_assert!(!text.is_empty() && text.split_whitespace().count() <= WORDS);
            }
        }
    }
}
