//! The comparison as a page that stands alone: the answers before and after, side by side.

use std::fmt::Write as _;

use similar::{ChangeTag, TextDiff};

use super::text::{escaped, said, title, why};
use super::{Fate, Impact};

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --old: #d3302f33; --new: #2e9e4433; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-bottom: .3rem; }
p { margin: .3rem 0; } .quiet { opacity: .7; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
td.n { text-align: right; }
article { border-top: 1px solid var(--line); padding: .6rem 0 1rem; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
.sides > div { border: 1px solid var(--line); border-radius: 6px; padding: .6rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.tag { border-radius: 4px; padding: 0 .4rem; font-size: .85rem; border: 1px solid var(--line); }
.lost .tag { background: var(--old); } .gained .tag { background: var(--new); }
del { background: var(--old); text-decoration: none; } ins { background: var(--new); text-decoration: none; }
@media (max-width: 40rem) { .sides { grid-template-columns: 1fr; } }
";

/// The two texts, each with what the other one lacks marked.
fn marked(before: &str, after: &str) -> (String, String) {
    let (mut old, mut new) = (String::new(), String::new());
    for change in TextDiff::from_words(before, after).iter_all_changes() {
        let text = escaped(change.value());
        match change.tag() {
            ChangeTag::Equal => {
                old.push_str(&text);
                new.push_str(&text);
            }
            ChangeTag::Delete => old.push_str(&format!("<del>{text}</del>")),
            ChangeTag::Insert => new.push_str(&format!("<ins>{text}</ins>")),
        }
    }
    (old, new)
}

impl Impact {
    /// A page that needs nothing else.
    pub fn to_html(&self) -> String {
        let mut out = String::new();
        let _ = write!(
            out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>Impact on {} answers</title><style>{STYLE}</style></head><body>\n",
            self.questions
        );
        let _ = writeln!(out, "<h1>{}</h1>", escaped(&self.summary()));
        let _ = writeln!(out, "<p class=quiet>{} with {}</p>", escaped(&self.pipeline), escaped(&self.change));
        let _ = writeln!(out, "<p class=quiet>{}. {}.</p>", escaped(&self.differing()), escaped(&self.effort()));
        let by = self.by_document();
        if !by.is_empty() {
            let _ = write!(out, "<table><tr><th>document</th>");
            for fate in Fate::ALL {
                let _ = write!(out, "<th>{}</th>", title(fate));
            }
            let _ = writeln!(out, "</tr>");
            for (document, fates) in by {
                let _ = write!(out, "<tr><td>{}</td>", escaped(document));
                for fate in Fate::ALL {
                    let _ = write!(out, "<td class=n>{}</td>", fates.get(&fate).copied().unwrap_or_default());
                }
                let _ = writeln!(out, "</tr>");
            }
            let _ = writeln!(out, "</table>");
        }
        for one in &self.affected {
            let (old, new) = marked(&said(&one.before), &said(&one.after));
            let _ = writeln!(
                out,
                "<article class={}><h2><span class=tag>{}</span> {}</h2>\n\
                 <div class=sides><div>{old}</div><div>{new}</div></div>\n<p class=quiet>By {}</p></article>",
                one.fate.name(),
                title(one.fate),
                escaped(&one.question),
                escaped(&why(one))
            );
        }
        out.push_str("</body></html>\n");
        out
    }
}
