//! What programs can do beside jq: texts of parts, texts of markup, times.

mod cut;
mod html;
mod values;

use jaq_core::Error;
use jaq_core::data::JustLut;
use jaq_core::native::{Fun, bome, run, v};
use jaq_json::{Num, Val};

use self::html::metered as metered_html;
use crate::decode::form_fields;
use crate::jq::{Own, Value, steps};
use crate::message::{is_blank, short, text_of};
use crate::times;

/// Maximum length of a time, its form and a selector, in bytes.
const LONGEST: usize = 1_000;

/// Definitions in jq that every mapping has.
pub(crate) const DEFINITIONS: &str = include_str!("functions.jq");

/// Filters of jq that mappings do not have: what they give depends on more than the record, or goes elsewhere. They are
/// replaced by errors, with so many arguments.
const REFUSED: &[(&str, usize)] =
    &[("now", 0), ("halt", 1), ("localtime", 0), ("strflocaltime", 1), ("debug_empty", 0), ("stderr_empty", 0)];

/// Whether mappings have a filter of jq as it is.
pub(crate) fn is_known(name: &str) -> bool {
    !REFUSED.iter().any(|(refused, _)| *refused == name)
}

/// Looks whether a selector of CSS can be used.
pub(crate) fn check_selector(text: &str) -> Result<(), String> {
    html::selector(text).map(drop)
}

/// Our own filters.
pub(crate) fn natives() -> impl Iterator<Item = Fun<JustLut<Value>>> {
    let all: [Own; 16] = [
        ("role", v(0), |cv| bome(Ok(role(cv.1)))),
        ("parts_text", v(0), |cv| bome(Ok(Value::from(values::parts_text(&cv.1.val))))),
        ("meant", v(0), |cv| bome(Ok(Value::new(values::meant(&cv.1.val))))),
        ("content_text", v(0), |cv| bome(Ok(Value::from(values::content_text(&cv.1.val))))),
        ("messages_of", v(1), |mut cv| {
            let speaker = cv.0.pop_var();
            let found = values::messages_of(&cv.1.val, &speaker.val);
            bome(found.map(Value::new).map_err(told))
        }),
        ("form_fields", v(0), |cv| {
            let found = text("form_fields", &cv.1).and_then(|form| {
                crate::jq::steps(form.len() as u64 / 16);
                let _lent = crate::jq::Lent::of(8 * form.len() as u64);
                let fields = form_fields(form.trim().as_bytes());
                fields.map(Value::new).ok_or_else(|| told(format!("{} is no form", short(&cv.1.val))))
            });
            bome(found)
        }),
        ("otlp_value", v(0), |cv| bome(Ok(Value::new(values::otlp_value(&cv.1.val))))),
        ("attributes", v(0), |cv| {
            let found = values::attributes(&cv.1.val);
            bome(found.map(Value::new).map_err(told))
        }),
        ("begins", v(1), |mut cv| {
            let beginnings = cv.0.pop_var();
            bome(Ok(values::begins(&cv.1.val, &beginnings.val).into()))
        }),
        ("html_text", v(0), |cv| bome(text("html_text", &cv.1).map(|text| Value::from(metered_html(&text))))),
        ("mail_text", v(0), |cv| bome(text("mail_text", &cv.1).map(|text| Value::from(mail_text(&text))))),
        ("html_find", v(1), |mut cv| {
            let selector = cv.0.pop_var();
            let found = text("html_find", &cv.1).and_then(|html| {
                let selector = text("html_find", &selector)?;
                html::find(&html, &selector).map(Value::new).map_err(told)
            });
            bome(found)
        }),
        ("mojibake_text", v(0), |cv| bome(text("mojibake_text", &cv.1).map(|text| Value::from(mojibake_text(&text))))),
        ("seconds", v(2), |mut cv| {
            let (zone, form) = (cv.0.pop_var(), cv.0.pop_var());
            let found = text("seconds", &cv.1).and_then(|time| {
                let (form, zone) = (text("seconds", &form)?, text("seconds", &zone)?);
                of_form(&time, &form, Some(&zone)).map(Value::from).map_err(told)
            });
            bome(found)
        }),
        ("seconds", v(0), |cv| {
            bome(match &cv.1.val {
                Val::Null => Ok(cv.1),
                value => match seconds(value) {
                    Some(seconds) => Ok(Value::from(seconds)),
                    None if is_blank(value) => Ok(Value::of(Val::Null, 0)),
                    None => Err(told(format!("{} is no time", short(value)))),
                },
            })
        }),
        ("seconds", v(1), |mut cv| {
            let form = cv.0.pop_var();
            let found = text("seconds", &cv.1).and_then(|time| {
                let form = text("seconds", &form)?;
                of_form(&time, &form, None).map(Value::from).map_err(told)
            });
            bome(found)
        }),
    ];
    let refused = |(name, arguments): &(&'static str, usize)| -> Own {
        (name, v(*arguments), |_| bome(Err(told("a mapping has no clock and no output".to_owned()))))
    };
    all.into_iter().chain(REFUSED.iter().map(refused)).map(run::<JustLut<Value>>)
}

fn of_form(text: &str, form: &str, zone: Option<&str>) -> Result<f64, String> {
    steps(8);
    match text.len().max(form.len()) > LONGEST {
        true => Err("the time or its form is too long".to_owned()),
        false => times::of_form(text, form, zone),
    }
}

/// The time that a value is. Many forms are tried.
fn seconds(value: &Val) -> Option<f64> {
    fn within(value: &Val) {
        looked_at(value);
        if let Val::Obj(fields) = value {
            steps(fields.len() as u64 / 8);
            fields.iter().for_each(|(_, inner)| within(inner));
        }
    }
    steps(32);
    within(value);
    times::seconds(value)
}

/// What logs call a user and an agent, without what is between words.
const USERS: &[&str] = &[
    "user",
    "human",
    "customer",
    "visitor",
    "client",
    "prompter",
    "enduser",
    "consumer",
    "caller",
    "guest",
    "requester",
    "incoming",
    "inbound",
];
const AGENTS: &[&str] = &[
    "assistant",
    "agent",
    "ai",
    "bot",
    "gpt",
    "model",
    "chatbot",
    "operator",
    "automatedagent",
    "humanagent",
    "virtualagent",
    "virtualassistant",
    "outgoing",
    "outbound",
];

/// The text of HTML.
pub(crate) fn html_text(html: &str) -> String {
    html::text(html)
}

/// `user` or `agent`, from what logs call them; any other text stays as it is, and anything else is null.
fn role(value: Value) -> Value {
    if let Val::TStr(text) = &value.val {
        steps(text.len() as u64 / 16);
    }
    let Some(name) = text_of(&value.val) else { return Value::of(Val::Null, 0) };
    Value::from(role_of(&name))
}

fn role_of(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let words: String = name.chars().filter(|letter| letter.is_alphanumeric()).collect();
    let is_one = |of: &[&str]| of.contains(&&*words);
    if is_one(USERS) {
        "user".to_owned()
    } else if is_one(AGENTS) {
        "agent".to_owned()
    } else {
        name
    }
}

/// Counts a look at all of a text or of the digits of a number.
fn looked_at(value: &Val) {
    match value {
        Val::TStr(text) | Val::BStr(text) => steps(text.len() as u64 / 256),
        Val::Num(Num::Dec(digits)) => steps(digits.len() as u64 / 16),
        // It becomes digits, which takes longer for each bit of a larger number.
        Val::Num(Num::BigInt(number)) => steps(number.bits().saturating_mul(number.bits()) >> 16),
        _ => {}
    }
}

fn told(reason: String) -> Error<Value> {
    steps(48);
    Error::new(Value::from(reason))
}

fn text(name: &str, value: &Value) -> Result<String, Error<Value>> {
    if let Val::TStr(text) = &value.val {
        steps(1 + text.len() as u64 / 16);
    }
    text_of(&value.val).ok_or_else(|| told(format!("`{name}` needs a text, and gets {}", short(&value.val))))
}

/// A text whose UTF-8 was read as Latin-1 or as Windows writes it, as it was: `GrÃ¼ÃŸe` becomes `Grüße`. Another text
/// stays as it is.
fn mojibake_text(text: &str) -> String {
    steps(text.len() as u64 / 8);
    let latin: Option<Vec<u8>> = text.chars().map(|letter| u8::try_from(u32::from(letter)).ok()).collect();
    let bytes = latin.or_else(|| {
        let (bytes, _, is_lossy) = encoding_rs::WINDOWS_1252.encode(text);
        (!is_lossy).then(|| bytes.into_owned())
    });
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| text.to_owned())
}

/// What a mail says itself: without the text that it quotes at its end, the line before that, and the signature.
pub(crate) fn mail_text(body: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in body.lines() {
        if line == "-- " || line == "--" {
            break;
        }
        lines.push(line);
    }
    let is_blank = |line: &&str| line.trim().is_empty();
    let drop_blank = |lines: &mut Vec<&str>| {
        while lines.last().is_some_and(is_blank) {
            lines.pop();
        }
    };
    drop_blank(&mut lines);
    let mut has_quoted = false;
    while lines.last().is_some_and(|line| line.starts_with('>') || has_quoted && line.trim().is_empty()) {
        lines.pop();
        has_quoted = true;
    }
    // `On Monday, Ann wrote:`, perhaps on two lines.
    if has_quoted && lines.last().is_some_and(|line| line.trim_end().ends_with(':')) {
        while lines.last().is_some_and(|line| !line.trim().is_empty()) {
            lines.pop();
        }
    }
    drop_blank(&mut lines);
    // Mailboxes put `>` before a line that begins with `From `.
    let undone =
        |line: &&str| line.strip_prefix('>').filter(|line| line.starts_with("From ")).unwrap_or(line).to_owned();
    lines.iter().map(undone).collect::<Vec<_>>().join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_text() {
        for (html, expected) in [
            ("<p>At&nbsp;ten &amp; <b>noon</b></p>", "At\u{a0}ten & noon"),
            ("<div>One<br>two</div>\n<ul><li>a</li><li>b</li></ul>", "One\ntwo\na\nb"),
            ("plain &lt;text&gt;", "plain <text>"),
            ("<style>x{}</style><script>1</script>y", "y"),
        ] {
            assert_eq!(html::text(html), expected, "{html}");
        }
    }

    #[test]
    fn letters_that_were_read_wrongly_are_put_right() {
        for (wrong, right) in [
            ("Gr\u{c3}\u{bc}\u{c3}\u{9f}e", "Grüße"),
            ("GrÃ¼ÃŸe", "Grüße"),
            ("â€œyesâ€\u{9d} ðŸ‘‹", "\u{201c}yes\u{201d} 👋"),
            ("Grüße", "Grüße"),
            ("plain", "plain"),
            ("日本", "日本"),
        ] {
            assert_eq!(mojibake_text(wrong), right, "{wrong}");
        }
    }

    #[test]
    fn a_mail_says_what_is_not_quoted() {
        let reply = "Yes.\n\n>From noon on.\n\nOn Mon, 2 Mar 2026, Ann\n<ann@x.example> wrote:\n> Is it open?\n> \n\n-- \nMara\n";
        assert_eq!(mail_text(reply), "Yes.\n\nFrom noon on.");
        assert_eq!(mail_text("> quoted\nfirst, then the answer"), "> quoted\nfirst, then the answer");
    }
}
