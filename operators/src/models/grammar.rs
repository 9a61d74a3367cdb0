//! Replies of a form that a caller gives: a JSON schema says which tokens may come next.
//!
//! `llguidance` reads the schema and computes, after each token, the set of tokens with which a valid reply can go on. All
//! others get no chance. So a reply that is not cut is valid, whatever the model.

mod bounds;

use std::error::Error;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use serde_json::{Value, json};
use tokenizers::Tokenizer;
use turnflow_engine::inference::InferenceError;

/// Maximum number of formats of texts in a schema that are not known.
const MOST_FORMATS: usize = 20;
/// The longest problem that is told, in characters.
const SHOWN: usize = 300;

/// Grammars over the tokens of a model.
pub(crate) struct Grammars(ParserFactory);

impl Grammars {
    /// Those of a tokenizer, with the tokens that end a text.
    ///
    /// # Errors
    ///
    /// The bytes of the tokens are not known: tokens are neither pieces of bytes nor of text with a mark for a blank.
    pub fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, InferenceError> {
        let made = || -> Result<ParserFactory, Box<dyn Error + Send + Sync>> {
            let words = token_bytes_from_tokenizer_json(&serde_json::to_value(tokenizer)?)?;
            let info = TokRxInfo::new(words.len() as u32, ends.first().copied().unwrap_or_default());
            let tokens = TokTrie::from(&info, &words).with_eos_tokens(ends);
            let mut factory = ParserFactory::new_simple(&(Arc::new(ApproximateTokEnv::new(tokens)) as _))?;
            factory.quiet().limits_mut().verbose_errors = false;
            Ok(factory)
        };
        let wrong = |error| InferenceError::Tokenizer(format!("no reply can be held to a form with it: {error}"));
        made().map(Self).map_err(wrong)
    }

    /// Checks that a reply can have a form.
    ///
    /// # Errors
    ///
    /// As of [`Grammars::of`], or nothing can begin the reply.
    pub fn check(&self, format: &Value) -> Result<(), InferenceError> {
        // Some schemas turn out to be too large, or to say nothing, with the first token only.
        self.of(format)?.0.compute_mask_or_eos().map_err(wrong).map(drop)
    }

    /// The grammar of a form, which is a `response_format`: any JSON object, or JSON with a schema.
    ///
    /// # Errors
    ///
    /// There is no schema, or it has something that a grammar cannot say.
    pub fn of(&self, format: &Value) -> Result<Grammar, InferenceError> {
        let mut schema = match format["type"].as_str() {
            Some("json_object") => json!({ "type": "object" }),
            _ => format["json_schema"]["schema"].clone(),
        };
        if !schema.is_object() {
            return Err(InferenceError::Form("the form of the reply has no JSON schema".to_owned()));
        }
        bounds::check(&schema).map_err(unheld)?;
        // White space of any length would let a small model write nothing else.
        let options = JsonCompileOptions {
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            whitespace_flexible: false,
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
        // References are followed on the stack.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("form".to_owned()).stack_size(bounds::STACK);
            let made = thread.spawn_scoped(scope, || self.made(schema));
            let made = made.map_err(|error| InferenceError::Failed(format!("no thread for a grammar: {error}")))?;
            made.join().unwrap_or_else(|_| Err(unheld("nothing can be made of it")))
        })
    }

    fn made(&self, mut schema: Value) -> Result<Grammar, InferenceError> {
        for _ in 0..MOST_FORMATS {
            let grammar = Matcher::new(self.0.create_parser(TopLevelGrammar::from_json_schema(schema.clone())));
            let Some(error) = grammar.get_error() else { return Ok(Grammar(grammar)) };
            let unknown = error.split_once("Unknown format: ").and_then(|(_, name)| name.lines().next());
            let Some(unknown) = unknown.map(bare) else { return Err(unheld(shown(&error))) };
            // A format that is not known is an annotation (JSON Schema, validation, section 7.2.3).
            leave_out(&mut schema, unknown);
        }
        Err(InferenceError::Form("the JSON schema has too many formats that are not known".to_owned()))
    }
}

/// No reply can be held to a schema.
fn unheld(problem: impl std::fmt::Display) -> InferenceError {
    InferenceError::Form(format!("the model cannot be held to this JSON schema: {problem}"))
}

/// Leaves a format out of a schema. Values that the schema lists are no part of it.
fn leave_out(schema: &mut Value, format: &str) {
    match schema {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(|name| name == format) {
                fields.remove("format");
            }
            let parts = fields.iter_mut().filter(|(name, _)| !["const", "enum"].contains(&name.as_str()));
            parts.for_each(|(_, part)| leave_out(part, format));
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| leave_out(part, format)),
        _ => {}
    }
}

/// Where a reply is in the grammar of its form.
pub(crate) struct Grammar(Matcher);

impl Grammar {
    /// Leaves a score to those tokens only with which a valid reply goes on, or ends.
    ///
    /// # Errors
    ///
    /// The grammar takes too much memory or time.
    pub fn rule(&mut self, scores: &mut [f32]) -> Result<(), InferenceError> {
        let allowed = self.0.compute_mask_or_eos().map_err(wrong)?;
        for (token, score) in scores.iter_mut().enumerate() {
            if token >= allowed.len() || !allowed.is_allowed(token as u32) {
                *score = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Goes on behind a token. Returns whether the reply is over: nothing can follow.
    ///
    /// # Errors
    ///
    /// The token was not allowed.
    pub fn take(&mut self, token: u32) -> Result<bool, InferenceError> {
        self.0.consume_token(token).map_err(wrong)?;
        Ok(self.0.is_stopped())
    }
}

fn wrong(error: impl std::fmt::Display) -> InferenceError {
    InferenceError::Form(format!("the reply cannot be held to its form: {}", shown(&error.to_string())))
}

/// An error of the grammar without the mark for its details.
fn bare(error: &str) -> &str {
    error.trim_end_matches("<non-verbose/>").trim_end()
}

/// An error of the grammar in words for the caller, who knows nothing of the library and cannot set its options.
fn shown(error: &str) -> String {
    let told = told(error);
    // Some repeat a pattern of the schema.
    match told.char_indices().nth(SHOWN) {
        None => told,
        Some((at, _)) => format!("{}…", &told[..at]),
    }
}

fn told(error: &str) -> String {
    let error = bare(error);
    if let Some((_, keys)) = error.split_once("Unimplemented keys: ") {
        return format!("these keywords are not supported: {}", keys.trim_matches(['[', ']']).replace('"', "`"));
    }
    if error.contains("oneOf constraints are not supported") {
        return "`oneOf` is supported only if its schemas exclude each other: use `anyOf`".to_owned();
    }
    if let Some((_, reference)) = error.split_once("without 'referencing' feature; ") {
        return format!("only references to parts of the schema (`#/…`) are supported: {reference}");
    }
    if error.contains("NoExtensionBias") {
        return "nothing keeps to it; it may refer to itself without an end".to_owned();
    }
    error.to_owned()
}
