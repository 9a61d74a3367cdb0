//! Tests of pipelines: turns, the documents of the corpora, and the expected results.
//!
//! Tests are in the field `tests` of the pipeline file, or in a file next to it: those of
//! `hybrid.ron` in `hybrid.test.ron`.
//!
//! ```ron
//! [
//!     Test(
//!         name: "a follow-up is understood",
//!         corpora: {"docs": [Doc(id: "k1", text: "The default of k1 is 1.2.")]},
//!         models: {"llm": Replies(["It is 1.2."])},
//!         set: {"nodes.fused.top": 5},
//!         turns: [User("What is k1?"), Agent("A parameter."), User("And its default?")],
//!         expect: [Expect(turn: 2, status: Answered, answer: "1.2", hits: ["k1"])],
//!     ),
//! ]
//! ```

mod adapt;
mod config;
mod expect;
mod find;
mod replies;

pub use adapt::{Adapted, adapt};
pub use config::{Doc, Expect, HitsIn, Outcome, Said, TestConfig};
pub use expect::{Missed, missed};
pub use find::{Found, Test, find};
pub use replies::{Replies, with_replies};
