//! Runs the bodies of the fuzz targets (`fuzz/src`) on their seeds, on every input that once broke something, and on
//! seeded mutations of both. Checks for panics, and for memory beyond what an input of its size may need. PDF files, whose
//! reader is not in Rust, are mutated in the tests of the command line, where a child process reads them.
//! `TURNFLOW_FUZZ=N` makes N mutations for each target.

// The files are shared with a crate in which everything is public.
#![allow(dead_code)]

#[path = "../../fuzz/src/archives.rs"]
mod archives;
#[path = "../../fuzz/src/catalog.rs"]
mod catalog;
#[path = "../../fuzz/src/mutations.rs"]
mod mutations;
#[path = "../../fuzz/src/readers.rs"]
mod readers;
#[path = "../../fuzz/src/records.rs"]
mod records;
#[path = "../../fuzz/src/resume.rs"]
mod resume;
#[path = "../../fuzz/src/spec.rs"]
mod spec;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

use self::mutations::Mutator;

/// Number of mutations of the seeds.
const MUTATIONS: usize = 2000;
/// Maximum memory for an input of at most a quarter of a mebibyte, in bytes.
const MOST_BYTES: usize = 256 << 20;

/// Counts the allocations of a thread while it is measured.
struct Counting;

thread_local! {
    static HELD: Cell<Option<(isize, isize)>> = const { Cell::new(None) };
}

fn count(bytes: isize) {
    let _ = HELD.try_with(|held| {
        if let Some((now, most)) = held.get() {
            held.set(Some((now + bytes, most.max(now + bytes))));
        }
    });
}

// SAFETY: forwards to the system allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak number of bytes that `body` holds.
fn most_held(body: impl FnOnce()) -> usize {
    HELD.set(Some((0, 0)));
    body();
    let (_, most) = HELD.take().unwrap_or_default();
    most.unsigned_abs()
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn run(target: &str, body: fn(&[u8])) {
    run_within(MOST_BYTES, target, body);
}

/// Runs a target whose inputs may need so many bytes.
fn run_within(most_bytes: usize, target: &str, body: fn(&[u8])) {
    let seeds = seeds(target);
    assert!(!seeds.is_empty());
    let check = |input: &[u8], what: &str| {
        // If the process aborts, the input is kept in this file.
        let kept = std::env::var_os("TURNFLOW_FUZZ_KEEP").map(|directory| Path::new(&directory).join(target));
        if let Some(kept) = &kept {
            fs::write(kept, input).unwrap();
        }
        let most = most_held(|| body(input));
        assert!(most <= most_bytes, "{target}: {what}, of {} bytes, needs {most}", input.len());
    };
    for (number, seed) in seeds.iter().enumerate() {
        check(seed, &format!("seed {number}"));
    }
    let mutations = std::env::var("TURNFLOW_FUZZ").ok().and_then(|number| number.parse().ok()).unwrap_or(MUTATIONS);
    let mut mutator = Mutator::new(target.len() as u64);
    for number in 0..mutations {
        check(&mutator.mutate(&seeds), &format!("mutation {number}"));
    }
}

#[test]
fn spec_is_told_what_is_wrong() {
    run("spec", |data| drop(spec::spec(data, &catalog::CATALOG)));
}

#[test]
fn turn_records() {
    run("turn_record", records::turn_record);
}

#[test]
fn answer_records_and_dead_letters() {
    run("answer_record", records::answer_record);
}

#[test]
fn rows_of_a_corpus() {
    run("jsonl_rows", readers::jsonl_rows);
}

#[test]
fn markdown_files() {
    run("markdown", readers::markdown);
}

#[test]
fn html_files() {
    run("html", readers::html);
}

#[test]
fn text_documents() {
    run("docx", archives::docx);
}

#[test]
fn presentations() {
    run("pptx", archives::pptx);
}

#[test]
fn workbooks() {
    run("xlsx", archives::xlsx);
}

#[test]
fn books() {
    run("epub", archives::epub);
}

#[test]
fn pictures() {
    // A small file may have a large picture.
    run_within(1 << 30, "picture", readers::picture);
}

#[test]
fn tables() {
    run("csv", readers::csv);
}

#[test]
fn messages() {
    run("eml", readers::eml);
}

#[test]
fn what_a_restart_finds() {
    run("resume", resume::resume);
}
