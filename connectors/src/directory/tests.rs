//! Tests of a followed directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::*;
use crate::readers::samples::pdf;
use crate::testing::{Change, Corpus};

fn config(pattern: &str) -> DirectoryConfig {
    turnflow_engine::spec::from_str(&format!("(path: \"docs\", pattern: \"{pattern}\", max_bytes: 1000)")).unwrap()
}

/// A temporary directory that contains an empty directory `docs`.
fn base() -> (tempfile::TempDir, PathBuf) {
    let base = tempfile::tempdir().unwrap();
    let docs = base.path().join("docs");
    fs::create_dir(&docs).unwrap();
    (base, docs)
}

fn follow(base: &tempfile::TempDir) -> Corpus {
    Corpus::run(config("**/*").source(base.path()), Mode::Follow)
}

fn put(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Sets when a file was modified.
fn touch(path: &Path, modified: SystemTime) {
    fs::File::options().append(true).open(path).unwrap().set_modified(modified).unwrap();
}

#[test]
fn a_bad_pattern_is_a_fault_of_the_configuration() {
    assert!(turnflow_engine::spec::from_str::<DirectoryConfig>("(path: \"docs\", pattern: \"a[\")").is_err());
    assert!(turnflow_engine::spec::from_str::<DirectoryConfig>("(path: \"docs\", patern: \"a\")").is_err());
    let pattern = |glob: &str| Pattern::try_from(glob.to_owned()).unwrap();
    assert!(pattern("*.md").matches(Path::new("a.md")) && !pattern("*.md").matches(Path::new("b/a.md")));
    assert!(Pattern::default().matches(Path::new("a.md")) && Pattern::default().matches(Path::new("c/b/a.md")));
}

#[test]
fn once_reads_all_formats_and_no_rubbish() {
    let (base, docs) = base();
    put(&docs, "a.md", "# T\n");
    put(&docs, "b/c.TXT", "plain");
    put(&docs, "b/d.html", "<p>para");
    put(&docs, "e.pdf", pdf("page"));
    put(&docs, "f.jsonl", "{\"_id\": 1, \"text\": \"row\"}\nbad");
    for rubbish in [".hidden.md", ".git/x.md", "b/.x/y.md", "a.md~", ".a.md.swp", "#a.md#", "4913", "x.rs"] {
        put(&docs, rubbish, "no");
    }
    put(&docs, "broken.txt", b"ab\xff");
    put(&docs, "large.md", "x".repeat(1001));
    put(&docs, "not.pdf", "no PDF");
    let corpus = Corpus::run(config("**/*").source(base.path()), Mode::Once);
    assert_eq!(corpus.start(), ["a.md=# T\n", "b/c.TXT=plain", "b/d.html=para", "e.pdf=page", "f.jsonl#1=row"]);
    let dead = corpus.dead();
    assert_eq!(dead[0], "broken.txt: not UTF-8: invalid byte at offset 2");
    assert!(dead[1].starts_with("f.jsonl:2: not a JSON object"), "{dead:?}");
    assert_eq!(dead[2], "large.md: larger than 1000 bytes");
    assert!(dead[3].starts_with("not.pdf: broken PDF"), "{dead:?}");
    corpus.end(false).unwrap();
    let some = Corpus::run(config("b/*.html").source(base.path()), Mode::Once);
    assert_eq!(some.start(), ["b/d.html=para"]);
    fs::remove_dir_all(&docs).unwrap();
    let error = Corpus::run(config("**/*").source(base.path()), Mode::Follow).end(false).unwrap_err();
    assert!(matches!(error, ConnectorError::Io { action: "read", .. }), "{error}");
}

#[test]
fn files_come_change_move_and_go() {
    let (base, docs) = base();
    put(&docs, "a.md", "one");
    let corpus = follow(&base);
    assert_eq!(corpus.start(), ["a.md=one"]);
    put(&docs, "b.txt", "new");
    assert_eq!(corpus.changes(), ["b.txt=new"]);
    put(&docs, "a.md", "two");
    assert_eq!(corpus.changes(), ["a.md=two"]);
    // The same content at the same time and an irrelevant file send nothing, as the next commit shows.
    let modified = fs::metadata(docs.join("a.md")).unwrap().modified().unwrap();
    put(base.path(), "a.md", "two");
    touch(&base.path().join("a.md"), modified);
    fs::rename(base.path().join("a.md"), docs.join("a.md")).unwrap();
    put(&docs, "a.md~", "backup");
    fs::rename(docs.join("b.txt"), docs.join("c.txt")).unwrap();
    assert_eq!(corpus.changes(), ["-b.txt", "c.txt=new"]);
    // Saves the file as editors do.
    put(&docs, ".a.md.tmp", "three");
    fs::rename(docs.join(".a.md.tmp"), docs.join("a.md")).unwrap();
    assert_eq!(corpus.changes(), ["a.md=three"]);
    fs::rename(docs.join("a.md"), docs.join("a.md~")).unwrap();
    assert_eq!(corpus.changes(), ["-a.md"]);
    fs::remove_file(docs.join("c.txt")).unwrap();
    assert_eq!(corpus.changes(), ["-c.txt"]);
    corpus.nothing_more();
    assert_eq!(corpus.dead(), [""; 0]);
    assert!(matches!(corpus.end(true), Err(ConnectorError::Stopped(_))));
}

#[test]
fn documents_carry_facts_about_their_files() {
    let (base, docs) = base();
    let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    put(&docs, "b/a.md", "---\nauthor: Ada\nmime: own\n---\nText");
    put(&docs, "c.csv", "a,b\n1,2");
    put(&docs, "r.jsonl", "{\"_id\": 1, \"text\": \"row\"}");
    touch(&docs.join("b/a.md"), at(1_795_643_809));
    touch(&docs.join("c.csv"), at(0));
    let corpus = follow(&base);
    let sent = corpus.commit();
    let metadata = |(id, document): &Change| (id.clone(), Value::Object(document.as_ref().unwrap().metadata.to_json()));
    let facts: BTreeMap<String, Value> = sent.iter().map(metadata).collect();
    let expected = json!({"author": "Ada", "mime": "own", "modified": "2026-11-25T21:56:49Z", "path": "b/a.md"});
    assert_eq!(facts["b/a.md"], expected);
    let expected = json!({"mime": "text/csv", "modified": "1970-01-01T00:00:00Z", "path": "c.csv"});
    assert_eq!(facts["c.csv"], expected);
    assert!(facts["r.jsonl#1"].get("path").is_none());
    corpus.started();
    // Touched, without a change of its bytes.
    touch(&docs.join("c.csv"), at(60));
    let sent: Vec<_> = corpus.commit().iter().map(metadata).collect();
    let expected = json!({"mime": "text/csv", "modified": "1970-01-01T00:01:00Z", "path": "c.csv"});
    assert_eq!(sent, [("c.csv".to_owned(), expected)]);
}

#[test]
fn directories_come_move_and_go() {
    let (base, docs) = base();
    let corpus = follow(&base);
    assert_eq!(corpus.start(), [""; 0]);
    let elsewhere = base.path().join("elsewhere");
    put(&elsewhere, "x/y/a.md", "a");
    put(&elsewhere, "x/b.md", "b");
    put(&elsewhere, "x/.no/c.md", "c");
    fs::rename(elsewhere.join("x"), docs.join("x")).unwrap();
    assert_eq!(corpus.changes(), ["x/b.md=b", "x/y/a.md=a"]);
    put(&docs, "x/y/a.md", "changed");
    assert_eq!(corpus.changes(), ["x/y/a.md=changed"]);
    fs::rename(docs.join("x"), docs.join("z")).unwrap();
    corpus.until(&["-x/b.md", "-x/y/a.md", "z/b.md=b", "z/y/a.md=changed"]);
    put(&docs, "z/y/a.md", "again");
    assert_eq!(corpus.changes(), ["z/y/a.md=again"]);
    fs::rename(docs.join("z"), elsewhere.join("x")).unwrap();
    assert_eq!(corpus.changes(), ["-z/b.md", "-z/y/a.md"]);
    put(&elsewhere, "x/b.md", "unseen");
    put(&docs, "z.md", "seen");
    assert_eq!(corpus.changes(), ["z.md=seen"]);
}

#[test]
fn trees_deleted_and_made_again_at_once_are_followed() {
    let (base, docs) = base();
    let tree = |content: &str| {
        for directory in 0..20 {
            put(&docs, &format!("t/{directory}/deep/er/f.md"), content);
        }
    };
    tree("0");
    let corpus = follow(&base);
    assert_eq!(corpus.start().len(), 20);
    for round in 1..5 {
        fs::remove_dir_all(docs.join("t")).unwrap();
        tree(&round.to_string());
        let wanted: Vec<String> = (0..20).map(|directory| format!("t/{directory}/deep/er/f.md={round}")).collect();
        corpus.until(&wanted.iter().map(String::as_str).collect::<Vec<_>>());
    }
    // Every directory is still watched.
    for directory in 0..20 {
        put(&docs, &format!("t/{directory}/deep/er/f.md"), "end");
        corpus.until(&[&format!("t/{directory}/deep/er/f.md=end")]);
    }
}

#[test]
fn a_broken_file_withdraws_what_it_said_and_is_told_of_once() {
    let (base, docs) = base();
    put(&docs, "a.txt", "good");
    let corpus = follow(&base);
    corpus.start();
    put(&docs, "a.txt", b"bad\xff");
    assert_eq!(corpus.changes(), ["-a.txt"]);
    put(&docs, "a.txt", b"bad\xff");
    put(&docs, "a.txt", "good");
    assert_eq!(corpus.changes(), ["a.txt=good"]);
    assert_eq!(corpus.dead(), ["a.txt: not UTF-8: invalid byte at offset 3"]);
}

#[test]
fn one_edited_row_is_one_change() {
    let (base, docs) = base();
    let rows = |edited: &str| -> String {
        let row = |id| format!("{{\"_id\": \"{id}\", \"text\": \"{}\"}}\n", if id == 3 { edited } else { "same" });
        (0..20).map(row).collect()
    };
    put(&docs, "d/r.jsonl", rows("old"));
    let corpus = follow(&base);
    assert_eq!(corpus.start().len(), 20);
    put(&docs, "d/r.jsonl", rows("new"));
    assert_eq!(corpus.changes(), ["d/r.jsonl#3=new"]);
    fs::remove_file(docs.join("d/r.jsonl")).unwrap();
    assert_eq!(corpus.changes().len(), 20);
}

#[test]
fn an_unfinished_row_is_waited_for_but_not_for_ever() {
    let (base, docs) = base();
    put(&docs, "r.jsonl", "{\"_id\": \"1\", \"text\": \"a\"}\n");
    let mut source = config("**/*").source(base.path());
    source.torn = Duration::from_millis(1);
    let corpus = Corpus::run(source, Mode::Follow);
    corpus.start();
    put(&docs, "r.jsonl", "{\"_id\": \"1\"");
    assert_eq!(corpus.changes(), ["-r.jsonl#1"]);
    assert_eq!(corpus.dead().len(), 1);
}

#[test]
fn an_emptied_file_is_taken_for_empty_after_a_while() {
    let (base, docs) = base();
    put(&docs, "a.txt", "old");
    put(&docs, "r.jsonl", "{\"_id\": \"1\", \"text\": \"a\"}\n");
    let corpus = follow(&base);
    corpus.start();
    put(&docs, "a.txt", "");
    put(&docs, "r.jsonl", "");
    corpus.until(&["a.txt=", "-r.jsonl#1"]);
}

#[test]
fn a_file_that_is_not_closed_is_read_after_a_while() {
    let (base, docs) = base();
    put(&docs, "a.txt", "old");
    let corpus = follow(&base);
    corpus.start();
    let mut file = fs::File::create(docs.join("a.txt")).unwrap();
    file.write_all(b"half").unwrap();
    assert_eq!(corpus.changes(), ["a.txt=half"]);
    file.write_all(b" whole").unwrap();
    drop(file);
    assert_eq!(corpus.changes(), ["a.txt=half whole"]);
}

#[test]
fn the_directory_itself_may_go_and_come_back() {
    let (base, docs) = base();
    put(&docs, "a.md", "a");
    put(&docs, "d/b.md", "b");
    let corpus = follow(&base);
    corpus.start();
    fs::remove_dir_all(&docs).unwrap();
    corpus.until(&["-a.md", "-d/b.md"]);
    put(&docs, "d/b.md", "back");
    corpus.until(&["d/b.md=back"]);
    put(&docs, "d/b.md", "followed");
    assert_eq!(corpus.changes(), ["d/b.md=followed"]);
    // The directory is replaced by another one in one step.
    let other = base.path().join("other");
    put(&other, "d/b.md", "other");
    fs::rename(&docs, base.path().join("aside")).unwrap();
    fs::rename(&other, &docs).unwrap();
    corpus.until(&["d/b.md=other"]);
    put(&docs, "d/c.md", "new");
    corpus.until(&["d/c.md=new"]);
}

#[cfg(unix)]
#[test]
fn links_to_files_are_followed_and_links_to_directories_are_not() {
    use std::os::unix::fs::symlink;
    let (base, docs) = base();
    let outside = base.path().join("outside.md");
    fs::write(&outside, "target").unwrap();
    fs::create_dir(docs.join("d")).unwrap();
    symlink(&docs, docs.join("d/loop")).unwrap();
    symlink(&docs, docs.join("d/loop.md")).unwrap();
    symlink(&outside, docs.join("link.md")).unwrap();
    symlink(base.path().join("missing.md"), docs.join("later.md")).unwrap();
    let anywhere = "(path: \"docs\", links: Anywhere)";
    let source = turnflow_engine::spec::from_str::<DirectoryConfig>(anywhere).unwrap().source(base.path());
    let corpus = Corpus::run(source, Mode::Follow);
    assert_eq!(corpus.start(), ["link.md=target"]);
    fs::write(&outside, "edited").unwrap();
    assert_eq!(corpus.changes(), ["link.md=edited"]);
    fs::write(base.path().join("missing.md"), "found").unwrap();
    assert_eq!(corpus.changes(), ["later.md=found"]);
    fs::remove_file(&outside).unwrap();
    assert_eq!(corpus.changes(), ["-link.md"]);
    fs::write(&outside, "back").unwrap();
    assert_eq!(corpus.changes(), ["link.md=back"]);
    fs::remove_file(docs.join("link.md")).unwrap();
    assert_eq!(corpus.changes(), ["-link.md"]);
    assert_eq!(corpus.dead(), [""; 0]);
}

/// Why it exists: a link to `/proc/self/environ` showed the tokens of the process.
#[cfg(unix)]
#[test]
fn links_that_lead_out_of_the_directory_are_not_followed() {
    use std::os::unix::fs::symlink;
    let (base, docs) = base();
    put(base.path(), "secret.txt", "secret");
    put(base.path(), "docs2/near.txt", "secret");
    put(&docs, "..2026_01/map.md", "mapped");
    put(&docs, ".git/config.txt", "secret");
    put(&docs, ".env.txt", "secret");
    symlink("..2026_01", docs.join("..data")).unwrap();
    symlink("..data/map.md", docs.join("map.md")).unwrap();
    symlink("../docs/map.md", docs.join("around.md")).unwrap();
    for (link, to) in [
        ("absolute.txt", base.path().join("secret.txt").to_str().unwrap()),
        ("up.txt", "../secret.txt"),
        ("near.txt", "../docs2/near.txt"),
        ("chain.txt", "up.txt"),
        ("config.txt", ".git/config.txt"),
        ("dot.txt", ".env.txt"),
        ("environ.txt", "/proc/self/environ"),
        ("rows.jsonl", "/etc/passwd"),
    ] {
        symlink(to, docs.join(link)).unwrap();
    }
    let corpus = follow(&base);
    assert_eq!(corpus.start(), ["around.md=mapped", "map.md=mapped"]);
    let mut dead = corpus.dead();
    dead.sort();
    let outside = "a link leads out of the directory; `links: Anywhere` follows it";
    let hidden = "a link leads to a hidden file; `links: Anywhere` follows it";
    let expected = [
        ("absolute.txt", outside),
        ("chain.txt", outside),
        ("config.txt", hidden),
        ("dot.txt", hidden),
        ("environ.txt", "this is a file of the operating system, and no document"),
        ("near.txt", outside),
        ("rows.jsonl", outside),
        ("up.txt", outside),
    ];
    let expected = expected.map(|(path, reason)| format!("{path}: {reason}"));
    assert_eq!(dead, expected);
    // A link is switched, first to another file in the directory, then out of it.
    put(&docs, "..2026_02/map.md", "new");
    symlink("..2026_02", docs.join("..tmp")).unwrap();
    fs::rename(docs.join("..tmp"), docs.join("..data")).unwrap();
    corpus.until(&["around.md=new", "map.md=new"]);
    symlink("../secret.txt", docs.join(".tmp")).unwrap();
    fs::rename(docs.join(".tmp"), docs.join("map.md")).unwrap();
    corpus.until(&["-map.md"]);
    // A directory is replaced by a link to another one.
    put(&docs, "d/secret.txt", "harmless");
    corpus.until(&["d/secret.txt=harmless"]);
    fs::rename(docs.join("d"), docs.join(".d")).unwrap();
    symlink("..", docs.join("d")).unwrap();
    corpus.until(&["-d/secret.txt"]);
    let letters = fs::read_to_string(corpus.dead_path()).unwrap();
    assert!(!letters.contains("\"secret\"") && !letters.contains("root:"), "{letters}");
}

/// Even with `links: Anywhere`, only regular files that people wrote.
#[cfg(unix)]
#[test]
fn only_regular_files_are_read() {
    use std::os::unix::fs::symlink;
    let (base, docs) = base();
    let pipe = std::ffi::CString::new(docs.join("pipe.md").to_str().unwrap()).unwrap();
    // SAFETY: the path is a valid string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let _socket = std::os::unix::net::UnixListener::bind(docs.join("socket.md")).unwrap();
    symlink("/dev/zero", docs.join("zero.md")).unwrap();
    symlink(docs.join("pipe.md"), docs.join("linked.jsonl")).unwrap();
    symlink("/proc/self/status", docs.join("status.md")).unwrap();
    symlink("/sys/kernel/notes", docs.join("notes.md")).unwrap();
    put(&docs, "a.md", "a");
    for links in ["Inside", "Anywhere"] {
        let config = format!("(path: \"docs\", links: {links})");
        let source = turnflow_engine::spec::from_str::<DirectoryConfig>(&config).unwrap().source(base.path());
        let corpus = Corpus::run(source, Mode::Once);
        assert_eq!(corpus.start(), ["a.md=a"]);
        let dead = corpus.dead();
        assert!(dead.iter().any(|letter| letter.starts_with("status.md: this is a file of the")), "{dead:?}");
        corpus.end(false).unwrap();
    }
}

/// A change through another name of the file is reported by no event.
#[cfg(unix)]
#[test]
fn a_file_with_several_names_is_read_again() {
    let (base, docs) = base();
    put(&docs, "one.md", "one");
    fs::hard_link(docs.join("one.md"), docs.join("two.md")).unwrap();
    fs::hard_link(docs.join("one.md"), base.path().join("outside.md")).unwrap();
    let corpus = follow(&base);
    assert_eq!(corpus.start(), ["one.md=one", "two.md=one"]);
    fs::write(docs.join("two.md"), "by a name").unwrap();
    corpus.until(&["one.md=by a name", "two.md=by a name"]);
    fs::write(base.path().join("outside.md"), "from outside").unwrap();
    corpus.until(&["one.md=from outside", "two.md=from outside"]);
}

/// After any sequence of changes to the tree, the result is what a cold start would read.
#[test]
fn any_history_tells_what_a_cold_start_reads() {
    let (base, docs) = base();
    let outside = base.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let corpus = follow(&base);
    corpus.start();
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let mut told = BTreeMap::new();
    for round in 0..30 {
        for step in 0..below(40) {
            let mut place = || {
                let depth = below(4);
                let names: Vec<String> = (0..depth).map(|_| format!("d{}", below(3))).collect();
                (names.join("/"), format!("f{}.md", below(3)))
            };
            let ((directory, file), (other, other_file)) = (place(), place());
            let (from, to) = (docs.join(&directory), docs.join(&other));
            // Many of these fail because their target does not exist, which is fine.
            let _ = match below(8) {
                0..3 => fs::create_dir_all(&from).and_then(|()| fs::write(from.join(file), format!("{round} {step}"))),
                3 => fs::remove_file(from.join(file)),
                4 => fs::rename(from.join(file), to.join(other_file)),
                5 if !directory.is_empty() => fs::remove_dir_all(from),
                6 if !directory.is_empty() && !other.is_empty() => fs::rename(from, to),
                7 if !directory.is_empty() => match below(2) {
                    0 => fs::rename(from, outside.join("x")),
                    _ => fs::rename(outside.join("x"), from),
                },
                _ => Ok(()),
            };
        }
        let end = format!("end{round}.txt");
        put(&docs, &end, "end");
        while !told.contains_key(&end) {
            for (id, document) in corpus.commit() {
                match document {
                    Some(document) => told.insert(id, document),
                    None => told.remove(&id),
                };
            }
        }
        let cold = Corpus::run(config("**/*").source(base.path()), Mode::Once);
        let expected: BTreeMap<_, _> =
            cold.commit().into_iter().filter_map(|(id, document)| Some((id, document?))).collect();
        assert_eq!(told, expected, "after round {round}");
    }
    assert_eq!(corpus.dead(), [""; 0]);
}

/// Sets the maximum number of open files of this process.
fn limit_files(most: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid, and lives as long as the calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, most);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    }
}

/// Too many open files, or a network drive that does not respond, say nothing about the documents.
#[test]
fn what_cannot_be_read_for_a_while_stays_and_is_read_later() {
    let (base, docs) = base();
    put(&docs, "a.md", "one");
    put(&docs, "b/c.md", "deep");
    put(base.path(), "changed.md", "two");
    put(base.path(), "new/d.md", "three");
    let corpus = follow(&base);
    assert_eq!(corpus.start(), ["a.md=one", "b/c.md=deep"]);
    let before = limit_files(3);
    fs::rename(base.path().join("changed.md"), docs.join("a.md")).unwrap();
    fs::rename(base.path().join("new"), docs.join("new")).unwrap();
    // Time for a check. On a slower machine, the test verifies less.
    std::thread::sleep(Duration::from_millis(700));
    limit_files(before);
    corpus.until(&["a.md=two", "new/d.md=three"]);
    assert_eq!(corpus.dead(), Vec::<String>::new());
    assert!(matches!(corpus.end(true), Err(ConnectorError::Stopped(_))));
}

/// A directory whose source begins while too many files are open.
struct Limited {
    source: Directory,
    begins: std::sync::mpsc::Sender<()>,
    /// Whether there are fewer again when the source has ended.
    restores: bool,
}

impl CorpusSource for Limited {
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let before = limit_files(3);
        self.begins.send(()).unwrap();
        let done = Box::new(self.source).run(mode, output);
        if self.restores {
            limit_files(before);
        }
        done
    }
}

/// The same in a directory that is read once. If it lasts, it is said, and the run goes on.
#[test]
fn a_directory_that_is_read_once_waits_for_what_may_pass() {
    let (base, docs) = base();
    put(&docs, "a.md", "one");
    put(&docs, "b/c.md", "deep");
    let limit = limit_files(1000);
    let (begins, begun) = std::sync::mpsc::channel();
    let source = config("**/*").source(base.path());
    let corpus = Corpus::run(Limited { source, begins: begins.clone(), restores: false }, Mode::Once);
    begun.recv().unwrap();
    // Time for the first attempt. On a slower machine, the test verifies less.
    std::thread::sleep(Duration::from_millis(700));
    limit_files(limit);
    assert_eq!(corpus.start(), ["a.md=one", "b/c.md=deep"]);
    assert_eq!(corpus.dead(), Vec::<String>::new());

    let mut source = config("**/*").source(base.path());
    source.passing = Duration::from_millis(1);
    let corpus = Corpus::run(Limited { source, begins, restores: true }, Mode::Once);
    assert_eq!(corpus.start(), Vec::<String>::new());
    assert_eq!(corpus.dead().len(), 1);
}

#[cfg(unix)]
#[test]
fn pages_are_shown_of_files_inside_only() {
    let (base, docs) = base();
    put(&docs, "a/b.pdf", pdf("A page"));
    put(&docs, "bad.pdf", "no PDF");
    put(base.path(), "secret.pdf", pdf("Outside"));
    std::os::unix::fs::symlink("../secret.pdf", docs.join("link.pdf")).unwrap();
    let views = config("**/*").source(base.path()).page_views().unwrap();
    let png = views.picture("a/b.pdf", 1, "A page").unwrap().unwrap();
    assert!(png.starts_with(b"\x89PNG") && png != views.picture("a/b.pdf", 1, "").unwrap().unwrap());
    assert_eq!(views.picture("gone.pdf", 1, "").unwrap(), None);
    assert_eq!(views.picture("a.md", 1, "").unwrap(), None);
    let why = |document: &str, page| views.picture(document, page, "").unwrap_err().to_string();
    assert!(why("a/b.pdf", 2).contains("no page 2") && why("bad.pdf", 1).contains("no PDF"));
    for outside in ["link.pdf", "../secret.pdf", base.path().join("secret.pdf").to_str().unwrap()] {
        assert!(why(outside, 1).contains("out of the directory"), "{}", why(outside, 1));
    }
}
