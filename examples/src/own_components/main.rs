//! turnflow's command line with additional components: an operator, a chunker and a source of turns.
//!
//! ```console
//! $ own_components check pipeline.ron
//! $ own_components docs Acronyms
//! $ own_components run pipeline.ron --once
//! ```

mod acronyms;
mod paragraphs;
mod spool;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut catalog = turnflow::catalog();
    catalog.operators.push(acronyms::KIND);
    catalog.chunkers.push(paragraphs::KIND);
    catalog.turn_sources.push(spool::KIND);
    catalog.reference.push_str(include_str!("reference.md"));
    turnflow::main_with(catalog)
}
