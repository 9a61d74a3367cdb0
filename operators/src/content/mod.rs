//! Indexes by content: each content is encoded once; encodings are stored in Lance and served from memory. `Dense`,
//! `Sparse`, `MultiVector` and `Static` differ in the encoding and in how they search blocks of it.

mod blocks;
mod candidates;
mod claims;
mod contents;
#[cfg(test)]
mod damage_tests;
mod faults;
mod index;
mod inventory;
mod parts;
mod placed;
mod read;
mod rows;
mod salvage;
mod scan;
mod scans;
mod store;
#[cfg(test)]
mod tests;
mod unused;

pub(crate) use blocks::{Block, Derived};
pub(crate) use candidates::Candidates;
pub(crate) use contents::Encode;
pub(crate) use index::{BlockIndex, BlockReader, open, open_blocks};
pub(crate) use inventory::{inventory, served, stored};
pub(crate) use parts::{answer, encodings, nearest};
pub(crate) use rows::Stored;
pub(crate) use scan::{Best, Floor, dot};
pub(crate) use scans::Scans;
pub(crate) use store::BACKED_UP;
