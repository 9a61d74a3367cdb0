//! Indexes by content: an encoding is made once for each content, stored in Lance and served
//! from memory. `Dense`, `Sparse` and `MultiVector` differ in what the encoding is and in how
//! blocks of them are searched.

mod claims;
mod index;
mod inventory;
mod scan;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use index::{BlockReader, Derived, Encode, open};
pub(crate) use inventory::{inventory, served, stored};
pub(crate) use scan::{Best, dot};
pub(crate) use store::Stored;
