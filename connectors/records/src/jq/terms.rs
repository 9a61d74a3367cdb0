//! What is in terms: the calls of a definition within it, and parts.

use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Pattern, Term};
use jaq_core::path::{Part, Path};

/// The calls of a definition within it.
pub(super) struct Itself<'a, 'b> {
    pub name: &'a str,
    pub args: &'b [&'a str],
    pub calls: usize,
    /// Another name that the calls get, without the filters that they hand on.
    pub rename: Option<&'a str>,
    /// A call that hands on another filter.
    pub changes_filter: Option<&'a str>,
}

impl<'a> Itself<'a, '_> {
    /// Looks at a term.
    pub fn term(&mut self, term: &mut Term<&'a str>) {
        match term {
            Term::Call(name, given) if *name == self.name && given.len() == self.args.len() => {
                self.calls += 1;
                let hands_on = |(arg, given): (&&str, &Term<&str>)| {
                    arg.starts_with('$') || matches!(given, Term::Call(name, of) if name == arg && of.is_empty())
                };
                if !self.args.iter().zip(given.iter()).all(hands_on) {
                    self.changes_filter.get_or_insert(name);
                }
                given.iter_mut().for_each(|given| self.term(given));
                if let Some(inner) = self.rename {
                    let bound = self.args.iter().zip(std::mem::take(given)).filter(|(arg, _)| arg.starts_with('$'));
                    *term = Term::Call(inner, bound.map(|(_, given)| given).collect());
                }
            }
            Term::Def(definitions, then) => {
                for definition in definitions {
                    // From here on, the name is another definition's.
                    if definition.name == self.name && definition.args.len() == self.args.len() {
                        return;
                    }
                    // A filter of this name within is another filter.
                    self.term(&mut definition.body);
                }
                self.term(then);
            }
            other => parts(other, &mut |part| self.term(part)),
        }
    }
}

/// Gives the terms of a term to `each`, but not those of definitions.
pub(super) fn parts<'a>(term: &mut Term<&'a str>, each: &mut dyn FnMut(&mut Term<&'a str>)) {
    match term {
        Term::Id | Term::Recurse | Term::Num(_) | Term::Break(_) | Term::Var(_) | Term::Arr(None) => {}
        Term::Str(_, text) => {
            for part in text {
                if let StrPart::Term(term) = part {
                    each(term);
                }
            }
        }
        Term::Arr(Some(term)) | Term::Neg(term) | Term::Label(_, term) | Term::Def(_, term) => each(term),
        Term::Obj(fields) => {
            for (name, value) in fields {
                // `{name}` and `{$name}` have no value, and their name must stay what it is.
                if let Some(value) = value {
                    each(name);
                    each(value);
                }
            }
        }
        Term::BinOp(left, operation, right) => {
            each(left);
            if let BinaryOp::Pipe(Some(pattern)) = operation {
                names(pattern, each);
            }
            each(right);
        }
        Term::Fold(_, over, pattern, terms) => {
            each(over);
            names(pattern, each);
            terms.iter_mut().for_each(each);
        }
        Term::TryCatch(term, catch) => {
            each(term);
            catch.iter_mut().for_each(|catch| each(catch));
        }
        Term::IfThenElse(cases, otherwise) => {
            for (condition, then) in cases {
                each(condition);
                each(then);
            }
            otherwise.iter_mut().for_each(|otherwise| each(otherwise));
        }
        Term::Call(_, given) => given.iter_mut().for_each(each),
        Term::Path(of, Path(path)) => {
            each(of);
            for (part, _) in path {
                match part {
                    Part::Index(term) => each(term),
                    Part::Range(from, to) => from.iter_mut().chain(to).for_each(&mut *each),
                }
            }
        }
    }
}

fn names<'a>(pattern: &mut Pattern<&'a str>, each: &mut dyn FnMut(&mut Term<&'a str>)) {
    match pattern {
        Pattern::Var(_) => {}
        Pattern::Arr(patterns) => patterns.iter_mut().for_each(|pattern| names(pattern, each)),
        Pattern::Obj(fields) => {
            for (name, pattern) in fields {
                each(name);
                names(pattern, each);
            }
        }
    }
}
