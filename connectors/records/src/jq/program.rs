//! Programs, as they are compiled.
//!
//! Only definitions that call themselves can go on for ever, so these are changed before they are compiled: each call is
//! counted, and filters that a definition hands on to itself are bound once, outside, because otherwise each call would
//! keep the filters of all calls before it. Filters of the library that depend on more than the record are replaced.

use std::collections::HashSet;
use std::thread;

use jaq_core::compile;
use jaq_core::data::JustLut;
use jaq_core::load::lex::{self, StrPart, Token};
use jaq_core::load::parse::{BinaryOp, Def, Expect, Parser, Pattern, Term};
use jaq_core::load::{self, Arena, File, Lexer, Loader};
use jaq_core::native::Fun;
use jaq_core::path::{Opt, Part, Path};
use jaq_core::{Compiler, Filter};

use super::natives::{MODIFY, TICK};
use super::places::Marks;
use super::terms::{Itself, parts};
use super::value::Value;
use super::{lists, matches, natives, patterns, places, texts};
use crate::functions;

/// Maximum length of a program, in bytes.
const LONGEST: usize = 64 << 10;
/// Maximum depth of brackets, and of terms.
const BRACKETS: usize = 100;
const TERMS: usize = 400;
/// Depth of terms after which the stack is looked at.
const LOOK: usize = 16;
/// Size of the stack for a compilation, in bytes. Only what is used takes memory.
const STACK: usize = 256 << 20;
/// The name of the program as a definition.
const MAIN: &str = "turnflow_main";

/// What is wrong with a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct ProgramError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Why.
    pub reason: String,
}

/// The variable with what the environment has.
pub(super) const ENVIRONMENT: &str = "$ENV";

/// Compiles a program that has these variables and may see these variables of the environment. With marks, it tells
/// which of its terms fails.
pub(super) fn compile(
    code: &str,
    variables: &[&str],
    environment: &[String],
    marks: Option<&mut Marks>,
) -> Result<Filter<JustLut<Value>>, ProgramError> {
    if code.len() > LONGEST {
        return Err(at(code, code, format!("a program has at most {} kB", LONGEST >> 10)));
    }
    let mut depth = 0_usize;
    for (place, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > BRACKETS {
            return Err(at(code, &code[place..], format!("brackets are nested more than {BRACKETS} times")));
        }
    }
    let fails = |reason: String| at(code, code, reason);
    thread::scope(|scope| {
        let compile = || compiled(code, variables, environment, marks);
        let thread = thread::Builder::new().name("jq".to_owned()).stack_size(STACK).spawn_scoped(scope, compile);
        let thread = thread.map_err(|error| fails(format!("it cannot be compiled: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(fails("it cannot be compiled".to_owned())))
    })
}

fn compiled(
    code: &str,
    variables: &[&str],
    environment: &[String],
    marks: Option<&mut Marks>,
) -> Result<Filter<JustLut<Value>>, ProgramError> {
    let arena = Arena::default();
    let own = load::parse(functions::DEFINITIONS, |parser| parser.defs()).unwrap_or_default();
    let filters: Vec<Fun<JustLut<Value>>> = [natives::natives().collect(), functions::natives().collect()]
        .into_iter()
        .chain([matches::natives().collect::<Vec<_>>(), texts::natives().collect(), lists::natives().collect()])
        .chain([places::natives().collect()])
        .flatten()
        .collect();
    let replaced: HashSet<(&str, usize)> = filters.iter().map(|(name, args, _)| (*name, args.len())).collect();
    let definitions = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
    let definitions = definitions.filter(|def| !replaced.contains(&(def.name, def.args.len()))).chain(own);
    let mut changes =
        Changes { arena: &arena, number: 0, code, environment, marks: None, is_own: false, filters: Vec::new() };
    let mut all = Vec::new();
    for definition in definitions {
        all.push(changes.definition(definition, 0)?);
    }
    let mut main = parsed(code)?;
    changes.marks = marks;
    changes.is_own = true;
    changes.term(&mut main, 0)?;
    all.push(Def { name: MAIN, args: Vec::new(), body: main });
    let known = jaq_core::funs().chain(jaq_std::funs());
    let known = known.filter(|(name, args, _)| !replaced.contains(&(*name, args.len())) && functions::is_known(name));
    // Ours looks at the length of the form first.
    let inner = |name| if name == "strftime" { "time_by_form" } else { name };
    let known: Vec<_> = known.map(|(name, args, filter)| (inner(name), args, filter)).collect();
    let known = known.into_iter().chain(filters);
    let modules = Loader::new(all).load(&arena, File { code: MAIN, path: () });
    let modules = modules.map_err(|_| at(code, "", "the program is wrong".to_owned()))?;
    let seen = (!environment.is_empty()).then_some(ENVIRONMENT);
    let compiler = Compiler::default().with_funs(known).with_global_vars(variables.iter().copied().chain(seen));
    compiler.compile(modules).map_err(|errors| undefined(code, errors))
}

fn parsed(code: &str) -> Result<Term<&str>, ProgramError> {
    let tokens = Lexer::new(code).lex().map_err(|errors| match errors.into_iter().next() {
        Some((expected, part)) => unexpected(code, part, lex_name(&expected)),
        None => at(code, "", "the program is wrong".to_owned()),
    })?;
    Parser::new(&tokens).parse(|parser| parser.term()).map_err(|errors| match errors.into_iter().next() {
        Some((expected, found)) => unexpected(code, Token::opt_as_str(found, code), parse_name(&expected)),
        None => at(code, "", "the program is wrong".to_owned()),
    })
}

fn lex_name<'a>(expected: &lex::Expect<&'a str>) -> &'a str {
    expected.as_str()
}

fn parse_name<'a>(expected: &Expect<&'a str>) -> &'a str {
    expected.as_str()
}

fn unexpected(code: &str, part: &str, expected: &str) -> ProgramError {
    let found = part.chars().take(20).collect::<String>();
    let found = if found.trim().is_empty() { "the end".to_owned() } else { format!("`{}`", found.trim()) };
    at(code, part, format!("{expected} is expected, not {found}"))
}

/// An error at a part of the code.
pub(super) fn at(code: &str, part: &str, reason: String) -> ProgramError {
    let offset = (part.as_ptr() as usize).checked_sub(code.as_ptr() as usize).filter(|offset| *offset <= code.len());
    let before = code.get(..offset.unwrap_or(code.len())).unwrap_or(code);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    ProgramError { line, column, reason }
}

fn undefined(code: &str, errors: compile::Errors<&str, ()>) -> ProgramError {
    for (_, errors) in errors {
        if let Some((name, undefined)) = errors.into_iter().next() {
            return at(code, name, format!("there is no {} `{name}`", undefined.as_str()));
        }
    }
    at(code, "", "the program is wrong".to_owned())
}

/// What is changed in definitions and terms.
struct Changes<'a> {
    arena: &'a Arena,
    /// Number of names that were made.
    number: usize,
    code: &'a str,
    /// What the program may see of the environment.
    environment: &'a [String],
    /// The places of terms that tell that they fail.
    marks: Option<&'a mut Marks>,
    /// Whether they are those of the program, and the filters that definitions around get.
    is_own: bool,
    filters: Vec<&'a str>,
}

impl<'a> Changes<'a> {
    fn definition(&mut self, definition: Def<&'a str>, depth: usize) -> Result<Def<&'a str>, ProgramError> {
        let Def { name, args, mut body } = definition;
        let mut itself = Itself { name, args: &args, calls: 0, rename: None, changes_filter: None };
        itself.term(&mut body);
        if itself.calls == 0 {
            self.body(&mut body, &args, depth)?;
            return Ok(Def { name, args, body: if self.is_own { counted(body) } else { body } });
        }
        if let Some(part) = itself.changes_filter {
            let reason = format!(
                "`{name}` calls itself with another filter, which may go on for ever; \
                 give a definition within it what changes as a `$variable`"
            );
            return Err(at(self.code, part, reason));
        }
        let is_bound = |arg: &&str| arg.starts_with('$');
        if args.iter().all(is_bound) {
            self.body(&mut body, &args, depth)?;
            return Ok(Def { name, args, body: counted(body) });
        }
        // `def f($x; g): … f($x + 1; g) …` is `def f($x; g): def r($x): … r($x + 1) …; r($x)`.
        self.number += 1;
        let inner = self.arena.alloc(format!("!{}", self.number)).as_str();
        let mut rename = Itself { name, args: &args, calls: 0, rename: Some(inner), changes_filter: None };
        rename.term(&mut body);
        self.body(&mut body, &args, depth + 1)?;
        let bound: Vec<&'a str> = args.iter().copied().filter(|arg| is_bound(arg)).collect();
        let call = Term::Call(inner, bound.iter().map(|arg| Term::Var(*arg)).collect());
        let within = Def { name: inner, args: bound, body: counted(body) };
        Ok(Def { name, args, body: Term::Def(vec![within], Box::new(call)) })
    }

    /// Changes the body of a definition with these arguments.
    fn body(&mut self, body: &mut Term<&'a str>, args: &[&'a str], depth: usize) -> Result<(), ProgramError> {
        let outside = self.filters.len();
        self.filters.extend(args.iter().filter(|arg| self.is_own && !arg.starts_with('$')));
        let result = self.term(body, depth);
        self.filters.truncate(outside);
        result
    }

    /// Looks what a term takes from the environment. `env` becomes `$ENV`.
    fn environment(&self, term: &mut Term<&'a str>) -> Result<(), ProgramError> {
        let place = |term: &Term<&'a str>| match term {
            Term::Call("env", given) if given.is_empty() && !self.code.contains("def env") => Some("env"),
            Term::Var(name) if *name == ENVIRONMENT => Some(*name),
            _ => None,
        };
        let declare =
            |name: &str| format!("declare it in the line of options at the top: `#: {{\"env\": [\"{name}\"]}}`");
        if let Term::Path(of, Path(path)) = term
            && place(of).is_some()
            && let Some((Part::Index(name), _)) = path.first()
            && let Some((name, at_name)) = text(name)
            && !self.environment.contains(&name)
        {
            let reason = format!("the environment variable `{name}` is not declared: {}", declare(&name));
            return Err(at(self.code, at_name.unwrap_or_default(), reason));
        }
        let written = match term {
            Term::Call(name, _) | Term::Var(name) => *name,
            _ => return Ok(()),
        };
        if place(term).is_none() {
            return Ok(());
        }
        if self.environment.is_empty() {
            let reason = format!("a mapping sees declared environment variables only: {}", declare("NAME"));
            return Err(at(self.code, written, reason));
        }
        *term = Term::Var(ENVIRONMENT);
        Ok(())
    }

    /// Looks at a regular expression or a selector of CSS that is constant.
    fn constant(&self, term: &Term<&'a str>) -> Result<(), ProgramError> {
        let Term::Call(name, given) = term else { return Ok(()) };
        let is_pattern = match (*name, given.len()) {
            ("test" | "match" | "capture" | "scan" | "splits", 1 | 2) | ("sub" | "gsub", 2 | 3) | ("split", 2) => true,
            ("html_find", 1) => false,
            _ => return Ok(()),
        };
        // Another filter may have the name.
        if self.code.contains(&format!("def {name}")) {
            return Ok(());
        }
        let Some((text, place)) = given.first().and_then(text) else { return Ok(()) };
        let flags = match (*name, given.last().and_then(self::text)) {
            ("sub" | "gsub", Some((flags, _))) if given.len() == 3 => flags,
            ("test" | "match" | "capture" | "scan" | "splits" | "split", Some((flags, _))) if given.len() == 2 => flags,
            _ => String::new(),
        };
        let looked = if is_pattern { patterns::check(&text, &flags) } else { functions::check_selector(&text) };
        looked.map_err(|reason| at(self.code, place.unwrap_or(name), reason))
    }

    /// Changes the definitions in a term, and looks at its depth.
    fn term(&mut self, term: &mut Term<&'a str>, depth: usize) -> Result<(), ProgramError> {
        if depth > TERMS {
            return Err(at(self.code, "", format!("it has more than {TERMS} terms in each other")));
        }
        if let Term::Def(definitions, _) = term {
            for definition in definitions {
                let taken = std::mem::replace(definition, Def { name: "", args: Vec::new(), body: Term::Id });
                *definition = self.definition(taken, depth + 1)?;
            }
        }
        let mut result = self.environment(term).and_then(|()| self.constant(term));
        let place = self.marks.as_ref().and_then(|_| places::of(self.code, term));
        let mut updated = places::is_updated(term);
        parts(term, &mut |part| {
            if result.is_ok() {
                // What is updated cannot tell.
                let marks = if std::mem::take(&mut updated) { self.marks.take() } else { None };
                result = self.term(part, depth + 1);
                self.marks = self.marks.take().or(marks);
            }
        });
        // What filters of arguments and rounds do may come to lie in each other, as terms do.
        if let Term::Fold(_, _, _, terms) = term
            && let Some(update) = terms.get_mut(1).filter(|_| self.is_own)
        {
            *update = counted(std::mem::take(update));
        }
        let is_filter = matches!(term, Term::Call(name, given) if given.is_empty() && self.filters.contains(name));
        if self.is_own {
            modify(term);
        }
        if let (Some(place), Some(marks)) = (place, &mut self.marks) {
            marks.mark(term, place, self.arena);
        }
        if is_filter || depth % LOOK == LOOK - 1 {
            *term = counted(std::mem::take(term));
        }
        result
    }
}

/// A text without parts that a program makes, and where it begins.
fn text<'a>(term: &Term<&'a str>) -> Option<(String, Option<&'a str>)> {
    let Term::Str(None, parts) = term else { return None };
    let (mut text, mut place) = (String::new(), None);
    for part in parts {
        match part {
            StrPart::Str(part) => {
                place = place.or(Some(*part));
                text.push_str(part);
            }
            StrPart::Char(letter) => text.push(*letter),
            StrPart::Term(_) => return None,
        }
    }
    Some((text, place))
}

/// Updates of what is more than a path, such as `(.[] | select(.a)) |= f`, look for all paths before they change something.
fn modify(term: &mut Term<&str>) {
    /// A variable that no program can name.
    const NEW: &str = "$!new";
    let Term::BinOp(updated, operation, new) = term else { return };
    let is_plain = match &**updated {
        Term::Path(of, Path(parts)) => {
            let is_optional = |(_, optional): &(_, Opt)| matches!(optional, Opt::Optional);
            matches!(**of, Term::Id | Term::Recurse) && !parts.iter().skip(1).any(is_optional)
        }
        of => matches!(of, Term::Id | Term::Recurse),
    };
    if is_plain {
        return;
    }
    let changed = |operation| {
        let operands = (Box::new(Term::Id), Box::new(Term::Var(NEW)));
        Some(Term::BinOp(operands.0, operation, operands.1))
    };
    let filter = match operation {
        BinaryOp::Update => None,
        BinaryOp::Assign => Some(Term::Var(NEW)),
        BinaryOp::UpdateMath(operation) => changed(BinaryOp::Math(*operation)),
        BinaryOp::UpdateAlt => changed(BinaryOp::Alt),
        _ => return,
    };
    let (updated, new) = (std::mem::take(&mut **updated), std::mem::take(&mut **new));
    *term = match filter {
        None => Term::Call(MODIFY, vec![updated, new]),
        Some(filter) => {
            let pattern = BinaryOp::Pipe(Some(Pattern::Var(NEW)));
            Term::BinOp(Box::new(new), pattern, Box::new(Term::Call(MODIFY, vec![updated, filter])))
        }
    };
}

/// The same term; each time that it runs is counted.
fn counted(term: Term<&str>) -> Term<&str> {
    Term::BinOp(Box::new(Term::Call(TICK, Vec::new())), BinaryOp::Pipe(None), Box::new(term))
}
