//! Hands terms to tantivy: as one text, with a term on each line. tantivy would write terms that are given one by one as
//! JSON, and read them again.

use tantivy::tokenizer::{Token, TokenStream, Tokenizer};

/// What separates the terms. No term contains it: tokenizers split text at white space.
const SEPARATOR: char = '\n';

/// The text that stands for some terms.
pub(super) fn joined(terms: &[String]) -> String {
    let mut text = String::with_capacity(terms.iter().map(|term| term.len() + 1).sum());
    for term in terms {
        debug_assert!(!term.contains(SEPARATOR), "{term:?}");
        text.push_str(term);
        text.push(SEPARATOR);
    }
    text
}

/// Splits a text into the terms that it stands for.
#[derive(Clone, Debug, Default)]
pub(super) struct Separated {
    token: Token,
}

/// The terms that are left.
pub(super) struct Terms<'a> {
    left: &'a str,
    token: &'a mut Token,
}

impl Tokenizer for Separated {
    type TokenStream<'a> = Terms<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Terms<'a> {
        self.token.reset();
        Terms { left: text, token: &mut self.token }
    }
}

impl TokenStream for Terms<'_> {
    fn advance(&mut self) -> bool {
        let Some((term, left)) = self.left.split_once(SEPARATOR) else { return false };
        self.left = left;
        self.token.position = self.token.position.wrapping_add(1);
        self.token.text.clear();
        self.token.text.push_str(term);
        true
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_come_back_as_they_were() {
        for terms in [&[][..], &["a"], &["a", "", "b b", "a"]] {
            let terms: Vec<String> = terms.iter().map(ToString::to_string).collect();
            let (mut separated, text) = (Separated::default(), joined(&terms));
            let mut stream = separated.token_stream(&text);
            let mut found = Vec::new();
            while stream.advance() {
                found.push(stream.token().text.clone());
            }
            assert_eq!(found, terms);
        }
    }
}
