use std::fs;
use std::path::Path;
use std::process::Command;

use turnflow_engine::connector::{CorpusSource as _, Mode, Stop};
use turnflow_engine::spec::from_str;

use super::{Git, GitConfig, Mirror};
use crate::testing::{Corpus, context};

/// Whether `git` is installed.
pub(crate) fn is_there() -> bool {
    let is_there = Command::new("git").arg("--version").output().is_ok_and(|done| done.status.success());
    assert!(is_there || std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "git is missing");
    if !is_there {
        println!("skipped: git is missing");
    }
    is_there
}

fn git(base: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(base).args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]);
    let done = command.args(["-c", "init.defaultBranch=main"]).args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn commit(base: &Path) {
    git(base, &["add", "--all"]);
    git(base, &["commit", "--quiet", "--allow-empty", "--message", "x"]);
}

fn source(base: &Path, further: &str) -> Git {
    let ron = format!("(url: {:?}, every_s: 0.1{further})", base.display().to_string());
    from_str::<GitConfig>(&ron).unwrap().source(&context("docs")).unwrap()
}

/// For the cases of `conformance`.
pub(crate) fn corpus_of(base: &Path, texts: &[String]) -> Git {
    if !base.join(".git").exists() {
        git(base, &["init", "--quiet"]);
        for (number, text) in texts.iter().enumerate() {
            fs::write(base.join(format!("{number}.md")), text).unwrap();
        }
        fs::write(base.join("bad.txt"), b"\xff").unwrap();
        commit(base);
    }
    source(base, "")
}

#[test]
fn a_commit_changes_its_files_and_no_others() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    git(base, &["init", "--quiet"]);
    fs::create_dir(base.join("docs")).unwrap();
    for (path, text) in [("docs/a.md", "one"), ("docs/b ü\n.md", "two"), ("docs/c.rs", "code"), ("d.md", "three")] {
        fs::write(base.join(path), text).unwrap();
    }
    std::os::unix::fs::symlink("a.md", base.join("docs/link.md")).unwrap();
    commit(base);
    let running =
        Corpus::run(source(base, r#", pattern: "docs/**", link: Some("https://x.org/{path}")"#), Mode::Follow);
    let first = running.commit();
    running.started();
    let url = first.iter().find(|(id, _)| id == "docs/a.md").unwrap().1.as_ref().unwrap().metadata.to_json();
    assert_eq!((&url["url"], &url["path"]), (&"https://x.org/docs/a.md".into(), &"docs/a.md".into()));
    assert_eq!(crate::testing::told(first), ["docs/a.md=one", "docs/b ü\n.md=two"]);
    fs::write(base.join("docs/a.md"), "new").unwrap();
    git(base, &["mv", "docs/b ü\n.md", "docs/e.md"]);
    fs::write(base.join("d.md"), "not in the pattern").unwrap();
    commit(base);
    assert_eq!(running.changes(), ["-docs/b ü\n.md", "docs/a.md=new", "docs/e.md=two"]);
    // A branch that is rewritten is compared, too. It is written elsewhere, and is there at once.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = elsewhere.path().join("other");
    git(base, &["worktree", "add", "--quiet", "-b", "rewritten", other.to_str().unwrap(), "HEAD~1"]);
    fs::remove_file(other.join("docs/a.md")).unwrap();
    git(&other, &["add", "--all"]);
    git(&other, &["commit", "--quiet", "--amend", "--message", "y"]);
    git(base, &["reset", "--quiet", "--hard", "rewritten"]);
    assert_eq!(running.changes(), ["-docs/a.md", "-docs/e.md", "docs/b ü\n.md=two"]);
    running.end(true).unwrap_err();
}

#[test]
fn a_repository_that_does_not_exist_yet_is_awaited_and_a_branch_is_read() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().join("later");
    let running = Corpus::run(source(&base, r#", branch: Some("next")"#), Mode::Follow);
    std::thread::sleep(std::time::Duration::from_millis(300));
    fs::create_dir(&base).unwrap();
    git(&base, &["init", "--quiet"]);
    fs::write(base.join("a.md"), "main").unwrap();
    commit(&base);
    // The branch exists only with its own commit.
    git(&base, &["checkout", "--quiet", "-b", "other"]);
    fs::write(base.join("a.md"), "next").unwrap();
    commit(&base);
    git(&base, &["branch", "next"]);
    assert_eq!(running.start(), ["a.md=next"]);
    running.end(true).unwrap_err();
}

#[test]
fn rows_large_files_and_pointers_to_other_stores() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    git(base, &["init", "--quiet"]);
    fs::write(base.join("r.jsonl"), "{\"_id\": 1, \"text\": \"one\"}\n{\"_id\": 2, \"text\": \"two\"}\n").unwrap();
    fs::write(base.join("big.md"), "x".repeat(2000)).unwrap();
    fs::write(base.join("lfs.md"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n").unwrap();
    commit(base);
    let running = Corpus::run(source(base, ", max_bytes: 1000"), Mode::Follow);
    assert_eq!(running.start(), ["r.jsonl#1=one", "r.jsonl#2=two"]);
    fs::write(base.join("r.jsonl"), "{\"_id\": 1, \"text\": \"one\"}\n{\"_id\": 2, \"text\": \"new\"}\n").unwrap();
    fs::write(base.join("big.md"), "small").unwrap();
    commit(base);
    assert_eq!(running.changes(), ["big.md=small", "r.jsonl#2=new"]);
    assert_eq!(running.dead().len(), 2, "{:?}", running.dead());
    running.end(true).unwrap_err();
}

#[test]
fn a_copy_in_the_state_is_used_again_and_made_again_if_it_is_damaged() {
    if !is_there() {
        return;
    }
    let (directory, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let base = directory.path();
    git(base, &["init", "--quiet"]);
    fs::write(base.join("a.md"), "one").unwrap();
    commit(base);
    let run = || {
        let context = crate::testing::context_in(state.path(), "docs");
        let ron = format!("(url: {:?})", base.display().to_string());
        let source = from_str::<GitConfig>(&ron).unwrap().source(&context).unwrap();
        let running = Corpus::run(source, Mode::Once);
        assert_eq!(running.start(), ["a.md=one"]);
        running.end(false).unwrap();
    };
    run();
    run();
    let copy = fs::read_dir(state.path().join("components/docs")).unwrap().next().unwrap().unwrap().path();
    // A process that was killed while it fetched leaves its lock.
    fs::write(copy.join("shallow.lock"), "").unwrap();
    run();
    fs::remove_file(copy.join("HEAD")).unwrap();
    run();
}

#[test]
fn a_branch_is_read_beside_a_tag_of_its_name() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    git(base, &["init", "--quiet"]);
    fs::write(base.join("a.md"), "of the tag").unwrap();
    commit(base);
    git(base, &["tag", "main"]);
    git(base, &["tag", "v1"]);
    fs::write(base.join("a.md"), "of the branch").unwrap();
    commit(base);
    for (name, text) in [("main", "of the branch"), ("v1", "of the tag"), ("refs/tags/main", "of the tag")] {
        let running = Corpus::run(source(base, &format!(", branch: Some({name:?})")), Mode::Once);
        assert_eq!(running.start(), [format!("a.md={text}")], "{name}");
        running.end(false).unwrap();
    }
}

/// The ids of a repository may be those of SHA-256; the copy in the state may be of the other kind.
#[test]
fn a_repository_with_longer_ids_is_read() {
    if !is_there() {
        return;
    }
    let (directory, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let base = directory.path();
    for ids in ["sha256", "sha1"] {
        git(base, &["init", "--quiet", &format!("--object-format={ids}")]);
        fs::write(base.join("a.md"), ids).unwrap();
        commit(base);
        let context = crate::testing::context_in(state.path(), "docs");
        let ron = format!("(url: \"file://{}\")", base.display());
        let source = from_str::<GitConfig>(&ron).unwrap().source(&context).unwrap();
        let running = Corpus::run(source, Mode::Once);
        assert_eq!(running.start(), [format!("a.md={ids}")]);
        running.end(false).unwrap();
        fs::remove_dir_all(base.join(".git")).unwrap();
    }
}

/// A plain file server knows nothing of git.
#[test]
fn a_repository_on_a_file_server_is_read() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().to_owned();
    git(&base, &["init", "--quiet"]);
    fs::write(base.join("a.md"), "one").unwrap();
    commit(&base);
    git(&base, &["update-server-info"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = base.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            use std::io::{BufRead, BufReader, Write};
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
            let path = first.split(' ').nth(1).unwrap().split('?').next().unwrap().trim_start_matches('/');
            let reply = match fs::read(served.join(path)) {
                Ok(bytes) => [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", bytes.len()).into_bytes(), bytes],
                Err(_) => [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n".to_vec(), Vec::new()],
            };
            let _ = stream.write_all(&[&reply[0], &b"Connection: close\r\n\r\n"[..], &reply[1]].concat());
        }
    });
    let config = format!("(url: \"http://{address}/.git\", every_s: 0.1)");
    let source = from_str::<GitConfig>(&config).unwrap().source(&context("docs")).unwrap();
    let running = Corpus::run(source, Mode::Follow);
    assert_eq!(running.start(), ["a.md=one"]);
    fs::write(base.join("a.md"), "two").unwrap();
    commit(&base);
    git(&base, &["update-server-info"]);
    assert_eq!(running.changes(), ["a.md=two"]);
    running.end(true).unwrap_err();
}

/// Why it exists: a fetch from such a server went on for an hour, while documents changed.
#[test]
fn a_server_that_accepts_and_does_not_answer_is_left() {
    if !is_there() {
        return;
    }
    // Connections wait in its queue, and nobody reads from them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://{}/x", silent.local_addr().unwrap());
    let config: GitConfig = from_str(&format!("(url: {url:?})")).unwrap();
    let mut mirror = Mirror::open(&config, None).unwrap();
    let (_handle, stop) = Stop::new();
    let error = mirror.fetch(&config, &stop).unwrap_err();
    assert!(crate::remote::may_pass(&error) && error.to_string().contains("does not answer"), "{error}");
}

#[test]
fn pages_are_shown_of_the_published_commit() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    git(base, &["init", "--quiet"]);
    fs::create_dir(base.join("a b")).unwrap();
    fs::write(base.join("a b/-c.pdf"), crate::readers::samples::pdf("page")).unwrap();
    commit(base);
    let source = source(base, "");
    let views = source.page_views().unwrap();
    assert_eq!(views.picture("a b/-c.pdf", 1, "").unwrap(), None);
    let running = Corpus::run(source, Mode::Follow);
    running.commit();
    running.started();
    assert!(views.picture("a b/-c.pdf", 1, "page").unwrap().unwrap().starts_with(b"\x89PNG"));
    assert_eq!(views.picture("a b/d.pdf", 1, "page").unwrap(), None);
    running.end(true).unwrap_err();
}
