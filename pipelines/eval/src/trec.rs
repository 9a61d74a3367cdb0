//! Reads judgements and reads and writes runs: the evaluation's two plain-text tables.
//!
//! - Judgements (qrels) are BEIR's three tab-separated columns under a header
//!   line, or TREC's four columns (`query iteration document grade`).
//! - Runs are TREC's six columns (`query Q0 document rank score tag`), as
//!   trec_eval reads them.
//!
//! trec_eval splits lines at white space, so TREC's formats cannot contain it in an id. There, white
//! space in an id is percent-encoded ([`encoded`]), and decoded when such a file is read: the passage
//! `9-Part 1` is written as `9-Part%201`. BEIR's tab-separated columns contain ids as they are.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::num::ParseIntError;
use std::path::{Path, PathBuf};

use super::metrics::{Qrels, Run, ranked};

/// Why judgements or a run cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TrecError {
    /// The file cannot be read.
    #[error("{}: cannot read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line of judgements has the wrong number of columns.
    #[error("{}:{line}: {found} columns; judgements have 3, tab-separated, or TREC's 4", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The number of columns found.
        found: usize,
    },
    /// A judgement's grade is not a whole number.
    #[error("{}:{line}: the grade `{text}` is not a whole number", path.display())]
    Grade {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The text found instead.
        text: String,
        /// The parser's error.
        source: ParseIntError,
    },
    /// A line of a run has the wrong number of columns.
    #[error("{}:{line}: {found} columns; a TREC run has 6", path.display())]
    RunColumns {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The number of columns found.
        found: usize,
    },
    /// A score in a run is not a number.
    #[error("{}:{line}: the score `{text}` is not a number", path.display())]
    Score {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The text found instead.
        text: String,
    },
    /// A document has two different grades for one query.
    #[error("{}:{line}: conflicting judgements of `{document}` for `{query}`", path.display())]
    Conflict {
        /// The file.
        path: PathBuf,
        /// The later judgement's line, counted from 1.
        line: usize,
        /// The query's id.
        query: String,
        /// The document's id.
        document: String,
    },
    /// An id is empty, so a run cannot contain it.
    #[error("a TREC run cannot contain an empty id")]
    EmptyId,
    /// The run cannot be written.
    #[error("cannot write the run")]
    Write {
        /// Why not.
        source: io::Error,
    },
}

/// The non-blank lines of a text, numbered from 1, without a byte-order mark.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty())
}

/// An id as TREC's formats contain it: white space is percent-encoded as in URLs (`%20` for a
/// blank), and so is a `%` that would otherwise be read as an encoded byte. Other ids are unchanged.
pub fn encoded(id: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut done = 0;
    for (at, letter) in id.char_indices() {
        let rest = &id[at..];
        if letter.is_whitespace() || (letter == '%' && hex(rest.as_bytes()).is_some()) {
            out.push_str(&id[done..at]);
            done = at + letter.len_utf8();
            for byte in rest.as_bytes().iter().take(letter.len_utf8()) {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    if done == 0 {
        return Cow::Borrowed(id);
    }
    out.push_str(&id[done..]);
    Cow::Owned(out)
}

/// The id that [`encoded`] gives as `text`. Text that is not valid UTF-8 after decoding is returned
/// as it is.
pub fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let (bytes, mut out) = (text.as_bytes(), Vec::with_capacity(text.len()));
    let mut at = 0;
    while at < bytes.len() {
        match hex(&bytes[at..]) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// The byte that a text begins with, if it is percent-encoded.
fn hex(text: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match text {
        [b'%', high, low, ..] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    }
}

/// Reads judgements.
///
/// The first line is a header if its last column is not a whole number. A
/// duplicate judgement counts once. Ids are decoded unless the columns are BEIR's three, separated by tabs.
///
/// # Errors
///
/// The file cannot be read, a line has the wrong columns, or two lines disagree.
pub fn read_qrels(path: &Path) -> Result<Qrels, TrecError> {
    let unread = |source| TrecError::Read { path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let mut qrels = Qrels::new();
    for (nth, (line, row)) in lines(&text).enumerate() {
        // Ids may contain spaces if tabs separate the columns.
        let columns: Vec<&str> = match row.contains('\t') {
            true => row.split('\t').map(str::trim).collect(),
            false => row.split_whitespace().collect(),
        };
        let (query, document, grade) = match columns[..] {
            [query, document, grade] if row.contains('\t') => (query.into(), document.into(), grade),
            [query, document, grade] | [query, _, document, grade] => (decoded(query), decoded(document), grade),
            _ => {
                return Err(TrecError::Columns { path: path.into(), line, found: columns.len() });
            }
        };
        let grade: i64 = match grade.parse() {
            Ok(grade) => grade,
            Err(_) if nth == 0 => continue,
            Err(source) => {
                return Err(TrecError::Grade { path: path.into(), line, text: grade.into(), source });
            }
        };
        let judged = qrels.entry(query.clone().into_owned()).or_default();
        if judged.insert(document.clone().into_owned(), grade).is_some_and(|before| before != grade) {
            let (query, document) = (query.into_owned(), document.into_owned());
            return Err(TrecError::Conflict { path: path.into(), line, query, document });
        }
    }
    Ok(qrels)
}

/// Reads a run: TREC's six columns, separated by tabs, or by spaces if there are no tabs. Ids are
/// decoded.
///
/// # Errors
///
/// The file cannot be read, or a line has the wrong number of columns or an invalid score.
pub fn read_run(path: &Path) -> Result<Run, TrecError> {
    let unread = |source| TrecError::Read { path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let mut run = Run::new();
    for (line, row) in lines(&text) {
        let columns: Vec<&str> = match row.contains('\t') {
            true => row.split('\t').map(str::trim).collect(),
            false => row.split_whitespace().collect(),
        };
        let [query, _, document, _, score, _] = columns[..] else {
            return Err(TrecError::RunColumns { path: path.into(), line, found: columns.len() });
        };
        let score: f64 =
            score.parse().map_err(|_| TrecError::Score { path: path.into(), line, text: score.to_owned() })?;
        run.entry(decoded(query).into_owned()).or_default().push((decoded(document).into_owned(), score));
    }
    Ok(run)
}

/// Writes a run as `query Q0 document rank score tag`, ranked as trec_eval ranks it.
///
/// Columns are separated by spaces, and white space in ids is encoded.
///
/// # Errors
///
/// An id is empty, or writing fails.
pub fn write_run(to: &mut dyn Write, run: &Run, tag: &str) -> Result<(), TrecError> {
    let documents = run.values().flatten().map(|(document, _)| document);
    if run.keys().chain(documents).any(String::is_empty) {
        return Err(TrecError::EmptyId);
    }
    let fault = |source| TrecError::Write { source };
    for (query, results) in run {
        let query = encoded(query);
        for (rank, (document, score)) in (1..).zip(ranked(results)) {
            writeln!(to, "{query} Q0 {} {rank} {score} {tag}", encoded(document)).map_err(fault)?;
        }
    }
    to.flush().map_err(fault)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::prop_assert;
    use proptest::prop_assert_eq;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    use super::*;

    /// Reads `text` from a temporary file.
    fn qrels(name: &str, text: &str) -> Result<Qrels, TrecError> {
        let path = std::env::temp_dir().join(format!("turnflow-{}-{name}.tsv", std::process::id()));
        std::fs::write(&path, text).expect("a temporary file");
        let read = read_qrels(&path);
        std::fs::remove_file(&path).expect("the temporary file");
        read
    }

    #[test]
    fn reads_beir_and_trec_judgements() {
        let beir = "query-id\tcorpus-id\tscore\r\nq\t9-Part 1.(a)\t1\r\nq\td\t-1\r\n\r\nq\td\t-1\r\n";
        let read = qrels("beir", beir).expect("BEIR");
        assert_eq!(read["q"], [("9-Part 1.(a)".to_owned(), 1), ("d".to_owned(), -1)].into());
        assert_eq!(qrels("bare", "q\td\t2\n").expect("no header")["q"]["d"], 2);
        assert_eq!(qrels("trec", "q 0 d  3\nr\t0\te\t1\n").expect("TREC")["q"]["d"], 3);
        assert!(qrels("empty", "query-id\tcorpus-id\tscore\n").expect("a header").is_empty());
    }

    #[test]
    fn ids_with_blanks_are_encoded_in_trec_files_only() {
        for (id, text) in [
            ("9-Part 1.(a)", "9-Part%201.(a)"),
            ("100%", "100%"),
            ("a%20b", "a%2520b"),
            ("% 20", "%%2020"),
            ("a\u{a0}b", "a%C2%A0b"),
            ("2f67<::>1", "2f67<::>1"),
        ] {
            assert_eq!((encoded(id), decoded(text)), (text.into(), id.into()));
        }
        // Latin-1 is no UTF-8.
        assert_eq!(decoded("%E9t%E9"), "%E9t%E9");
        assert_eq!(qrels("four", "q%201 0 9-Part%201 1\n").expect("TREC")["q 1"]["9-Part 1"], 1);
        assert_eq!(qrels("three", "q\ta%20b\t1\n").expect("BEIR")["q"]["a%20b"], 1);
    }

    /// Any run is read back as it was written, and trec_eval finds six columns.
    #[test]
    fn runs_are_read_back() {
        let path = std::env::temp_dir().join(format!("turnflow-{}-back.trec", std::process::id()));
        let id = "[ -~\t\n\r\u{a0}\u{2003}é%]{1,8}";
        let rows = proptest::collection::btree_map(id, 0.0..1.0_f64, 1..4);
        let config = Config { failure_persistence: None, ..Config::with_cases(200) };
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]))
            .run(&(id, rows), |(query, rows)| {
                let run = Run::from([(query, rows.into_iter().collect())]);
                let mut out = Vec::new();
                write_run(&mut out, &run, "t").expect("a run");
                let text = String::from_utf8(out.clone()).expect("UTF-8");
                prop_assert!(text.lines().all(|line| line.split_whitespace().count() == 6), "{text}");
                std::fs::write(&path, out).expect("a temporary file");
                let read = read_run(&path).expect("a run");
                prop_assert_eq!(read.keys().collect::<Vec<_>>(), run.keys().collect::<Vec<_>>());
                for (query, results) in &run {
                    prop_assert_eq!(ranked(&read[query]), ranked(results));
                }
                Ok(())
            })
            .expect("every run is read back");
        std::fs::remove_file(&path).expect("the temporary file");
    }

    #[test]
    fn errors_name_the_line() {
        for (name, bad, expected) in [
            ("two", "q\td", "2 columns; judgements have 3, tab-separated, or TREC's 4"),
            ("grade", "q\td\tyes", "the grade `yes` is not a whole number"),
            ("conflict", "q\ta\t0", "conflicting judgements of `a` for `q`"),
        ] {
            let error = qrels(name, &format!("q\ta\t1\n{bad}\n")).expect_err(name).to_string();
            assert!(error.ends_with(&format!(".tsv:2: {expected}")), "{error}");
        }
    }

    #[test]
    fn writes_runs_that_split_into_six() {
        let written = |documents: &[(&str, f64)]| {
            let list = documents.iter().map(|(d, s)| ((*d).to_owned(), *s)).collect();
            let mut out = Vec::new();
            write_run(&mut out, &Run::from([("q".to_owned(), list)]), "t")
                .map(|()| String::from_utf8_lossy(&out).into_owned())
        };
        assert_eq!(written(&[("a", 0.25), ("b", 0.5)]).expect("a run"), "q Q0 b 1 0.5 t\nq Q0 a 2 0.25 t\n");
        let path = std::env::temp_dir().join(format!("turnflow-{}-run.trec", std::process::id()));
        std::fs::write(&path, "q Q0 b 1 0.5 t\n\nq Q0 a 2 0.25 t\n").expect("a temporary file");
        assert_eq!(read_run(&path).expect("a run")["q"], [("b".to_owned(), 0.5), ("a".to_owned(), 0.25)]);
        for (bad, told) in [("q Q0 b 1 0.5", "5 columns; a TREC run has 6"), ("q Q0 b 1 x t", "`x` is not a number")] {
            std::fs::write(&path, bad).expect("a temporary file");
            let error = read_run(&path).expect_err(bad).to_string();
            assert!(error.contains(told), "{error}");
        }
        std::fs::remove_file(&path).expect("the temporary file");
        assert_eq!(written(&[("a b\tc", 2.0)]).expect("a run"), "q Q0 a%20b%09c 1 2 t\n");
        assert!(matches!(written(&[("", 2.0)]), Err(TrecError::EmptyId)));
    }
}
