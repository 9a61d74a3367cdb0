//! Programs and records that take too much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use jaq_json::Val;

use super::run;
use crate::jq::limits;

/// Counts what a thread takes at most.
struct Counting;

thread_local! {
    static TAKEN: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let _ = TAKEN.try_with(|taken| {
        taken.set(taken.get() + change);
        let _ = MOST.try_with(|most| most.set(most.get().max(taken.get())));
    });
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps to the contract.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Programs that do not end, or take all memory, and records that make harmless programs do so.
#[test]
fn hostile_programs_and_records_are_ended() {
    let letters = format!("\"{}\"", "a".repeat(20_000));
    let form = format!("\"{}\"", (0..50_000).map(|at| format!("a{at}=1&")).collect::<String>());
    let open = format!("\"{}\"", "[".repeat(200_000));
    let digits = format!("\"{}\"", "9".repeat(200_000));
    let tags = format!("\"{}\"", "<b><i><a>".repeat(100_000));
    let flat = format!("[{}]", "1,".repeat(20_000) + "1");
    let numbered = |part: &dyn Fn(u32) -> String, number| (0..number).map(part).collect::<Vec<_>>().join(",");
    let (fields, list) = (numbered(&|at| format!("\"k{at}\":{at}"), 3_000), numbered(&|at| at.to_string(), 20_000));
    let large = format!("{{\"list\":[{list}],\"fields\":{{{fields}}},\"text\":\"{}\"}}", "ab ba ".repeat(20_000));
    let nested = format!("{}1{}", "[".repeat(400), "]".repeat(400));
    let parentheses = format!("{}.{}", "(".repeat(30_000), ")".repeat(30_000));
    let pipes = ".|".repeat(20_000) + ".";
    let negations = "-".repeat(60_000) + "1";
    let tries = "try ".repeat(10_000) + ".";
    let (alike, decimal) = (format!("\"{}\"", "a".repeat(200_000)), format!("1.{}", "3".repeat(500_000)));
    let definitions = |body: &dyn Fn(u32) -> String| {
        let all: String = (1..2_000).map(|at| format!(" def a{at}: {};", body(at - 1))).collect();
        format!("def a0: .;{all} a1999")
    };
    let ended = "ended";
    let mut wrong = Vec::new();
    for (code, record, expected) in [
        // Endless.
        ("repeat(.)", "1", ended),
        ("[repeat(.)]", "1", ended),
        ("repeat(empty)", "1", ended),
        ("last(repeat(1))", "1", ended),
        ("[range(1e9)] | length", "1", ended),
        ("range(1e9) | empty", "1", ended),
        ("range(0; 1; 0) | empty", "1", ended),
        ("last(range(infinite))", "1", ended),
        ("reduce range(1e12) as $i (0; . + $i)", "1", ended),
        ("while(true; . + 1) | empty", "1", ended),
        ("until(false; .)", "1", ended),
        ("recurse | empty", "1", ""),
        ("[recurse(.)] | length", "1", ended),
        ("def f: f; f", "1", ended),
        ("def f: f, f; f", "1", ended),
        ("def f: 1 + f; f", "1", ended),
        ("def f: [f]; f", "1", ended),
        ("def f: {a: f}; f", "1", ended),
        ("def f($x): f($x + 1); f(0)", "1", ended),
        ("def f(g): f(g | .); f(.)", "1", "calls itself with another filter"),
        ("def f(g): if g then f(g) else 1 end; f(true)", "1", ended),
        ("def f: def g: f; g; f", "1", ended),
        ("def f: try f catch f; f", "1", ended),
        ("def f: (f)? // f; f", "1", ended),
        ("def f: .[0] | f; path(f)", "null", ended),
        ("def f: . | f; f |= 1", "null", ended),
        ("def f: .[0] | f; f |= 1", "[]", ended),
        ("def f: .a | f; f |= 1", "null", ended),
        ("reduce range(1e9) as $i ([]; .[$i * 90000] = 1)", "1", ended),
        ("def f: label $x | f; f", "1", ended),
        ("first(range(1; infinite) | select(. < 0))", "1", ended),
        ("limit(1e18; repeat(1)) | empty", "1", ended),
        ("[limit(1e9; repeat(1))]", "1", ended),
        ("combinations(40) | empty", "[0, 1]", ended),
        ("[combinations(40)]", "[0, 1]", ended),
        ("foreach repeat(1) as $x (0; . + $x) | empty", "1", ended),
        ("def f: reduce (1, 2) as $x (.; f); f", "1", ended),
        ("any(repeat(1); false)", "1", ended),
        // Errors that would show all of a large value.
        ("repeat(ascii?) | empty", &letters, ended),
        ("repeat(html_find(\"a\")?) | empty", &large, ended),
        ("repeat(ltrimstr(1)?, startswith(1)?) | empty", &letters, ended),
        ("repeat(tonumber?) | empty", &large, ended),
        // Growing.
        ("reduce range(60) as $i (\"x\"; . + .)", "1", ended),
        ("\"x\" * 1000000000", "1", ended),
        ("\"x\" * 1000000000000", "1", ended),
        ("reduce range(60) as $i ([1]; . + .)", "1", ended),
        ("reduce range(60) as $i ({}; . + {\"\\($i)\": .})", "1", ended),
        ("reduce range(100) as $i (1; [., .]) | tojson", "1", ended),
        ("reduce range(100) as $i (1; [., .])", "1", ended),
        ("reduce range(100) as $i (1; [., .]) | . == [.]", "1", ended),
        ("reduce range(100) as $i (1; [., .]) | [..] | length", "1", ended),
        ("reduce range(100) as $i (1; [., .]) | flatten", "1", ended),
        ("reduce range(60) as $i (1; [., .]) as $x | {($x): 1}", "1", "cannot be the name of a field"),
        ("[reduce range(60) as $i (1; [., .])] | unique", "1", ended),
        ("reduce range(1e5) as $i (1; [.])", "1", ended),
        ("reduce range(100) as $i (1; [., .]) | tostream | empty", "1", ended),
        ("form_fields | length", &form, "50000"),
        ("\"[{\\\"a\\\":\" * 100000 | messages_of(\"user\")", "1", ended),
        ("fromstream(range(1e9) | [[0], 1]) | empty", "1", ended),
        ("reduce range(60) as $i ([1]; . + .) | @csv", "1", ended),
        ("reduce range(1e5) as $i (1; {a: .})", "1", ended),
        ("reduce range(1e5) as $i (.; setpath([range($i)]; 1))", "null", "cannot use"),
        ("reduce range(40) as $i (10; . * .)", "1", ended),
        ("reduce range(40) as $i (\"ab\"; gsub(\"\"; \"xxxxxxxx\"))", "1", ended),
        ("[range(1e4)] | combinations(2) | empty", "1", ended),
        ("[range(1000) as $i | [range(1000)]]", "1", ended),
        ("[., .] | until(false; [.[], .[]])", "1", ended),
        ("[limit(100000; repeat(\"x\" * 1000))]", "1", ended),
        ("reduce range(1e6) as $i (\"\"; . + \"abcdefgh\" + .[0:8])", "1", ended),
        (". / \"\" | map(explode) | add | implode / \"\" | until(false; . + .)", &letters, ended),
        (".[1e9] = 1", "[]", "out of bounds"),
        (". as [$a] | [., ., .] | until(false; map(.))", "[1]", ended),
        // Regular expressions.
        ("test(\"(a?){1000}a{1000}\")", &letters, ended),
        ("test(\"((((a{100}){100}){100}){100})\")", &letters, "regex"),
        ("test(\"(a*)*b\")", &letters, "false"),
        ("test(\"(a|a)*b\")", &letters, "false"),
        ("[match(\"a\"; \"g\")] | length", &letters, "20000"),
        ("[range(10000) | tostring as $x | \"a\" | test($x + \"\\\\w{20}\")] | length", "1", ended),
        ("[match(\"(a?){400}(a?){400}\"; \"g\")] | length", &letters, "25"),
        ("test(. + \"(\")", &letters, "unclosed group"),
        ("\"a\" | test(\"(\" * 100000)", "1", ended),
        // Large records, of which each step could take long.
        ("reduce range(1e9) as $i (.; .list |= (.[1:] + [\"x\"]))", &large, ended),
        ("reduce range(1e9) as $i (.; .fields.k5 = $i | . as $x | .)", &large, ended),
        ("range(1e9) as $i | .fields + {a: $i} | empty", &large, ended),
        ("range(1e9) as $i | del(.fields.k5) | empty", &large, ended),
        ("range(1e9) as $i | .list | tojson | ltrimstr(\"[\") | empty", &large, ended),
        ("range(1e9) as $i | .list | tojson | fromjson | empty", &large, ended),
        ("range(1e9) as $i | .text | @base64 | empty", &large, ended),
        ("range(1e9) as $i | .text | @sh | empty", &large, ended),
        ("range(1e9) as $i | .text | ascii_downcase | empty", &large, ended),
        ("range(1e9) as $i | .text | match(\"a\"; \"g\") | empty", &large, ended),
        ("range(1e9) as $i | .text | test(\"[ab]*a[ab]{300}c\") | empty", &large, ended),
        ("range(1e9) as $i | splits(\"a\")? | empty", &large, ended),
        ("repeat(.) | empty", &large, ended),
        ("def f: f; f", &large, ended),
        ("[limit(1e9; repeat(.list))]", &large, ended),
        ("[limit(1e9; repeat(.))]", &large, ended),
        // What comes to lie in each other without a definition that calls itself.
        ("(reduce range(1e5) as $i (.; .)) |= 1", "1", "1"),
        ("(foreach range(1e5) as $i (.; .)) |= 1", "1", ended),
        ("path(reduce range(1e9) as $i (.; .a))", "null", ended),
        ("del(reduce range(1e9) as $i (.; .a))", "null", ended),
        (&definitions(&|at| format!("a{at}|.")), "1", ended),
        (&definitions(&|at| format!("[a{at}]")), "1", ended),
        (&definitions(&|at| format!("first(a{at})")), "1", ended),
        (&format!("{} |= 1", definitions(&|at| format!("first(a{at})"))), "1", ended),
        (&definitions(&|at| format!("a{at}|a{at}")), "1", ended),
        (&definitions(&|at| format!("a{at},a{at}")), "1", ended),
        // What is not taken yet.
        ("reduce range(1e9) as $i (0; (1, empty))", &large, ended),
        ("foreach range(1e9) as $i (0; (1, empty)) | empty", &large, ended),
        ("def f: f, 1; f", &large, ended),
        (". as $r | [limit(200; repeat($r.list | sort_by(.)))]", &large, ended),
        // Numbers.
        ("\"9\" * 4000000 | tonumber", "1", ended),
        ("(\"9\" * 9000 | tonumber) as $x | range(1e9) | $x * $x | empty", "1", ended),
        ("(\"1.5\" + \"1\" * 4000000 | tonumber) as $x | range(1e9) | $x < 1 | empty", "1", ended),
        ("(\"1.5\" + \"1\" * 4000000) as $x | [range(1e9) | $x | tonumber]", &large, ended),
        ("range(1e9) as $i | . < 1 | empty", &decimal, ended),
        ("[range(300) | if . % 3 == 0 then [nan] else [. * 7 % 13] end] | sort | length", "1", "300"),
        // Searches that look at all that follows, for each match.
        ("gsub(\"a.*b|a\"; \"c\")", &alike, ended),
        ("[scan(\"(?:a.*b)?\")] | length", &alike, ended),
        ("[splits(\"a\\\\B.*b|a\")]", &alike, ended),
        ("[splits(\"a\\\\B.*b|a\")]", &format!("\"{}\"", "aé".repeat(50_000)), ended),
        ("[scan(\"\\\\b\\\\w+\\\\b\")] | length", &format!("\"{}\"", "größe ab ".repeat(10_000)), "20000"),
        // Records.
        ("fromjson", &open, "cannot parse"),
        ("fromjson | . * . | length", &digits, ""),
        ("html_text | length", &tags, ended),
        ("indices(.[0:10000]) | length", &letters, ""),
        (". - . | length", &flat, "0"),
        ("[.[] as $a | .[] as $b | $a * $b] | length", &flat, ended),
        ("map(. as $x | [range(100)]) | length", &flat, ended),
        ("until(false; [.])", &nested, ended),
        ("[..] | map(tojson) | map(length) | add", &nested, ""),
        ("error([.[], .[]] | [., ., .])", &flat, "1,1"),
        ("strftime(\"%99999999Y\")", "0", ""),
        // Programs that are hard to read.
        (&parentheses, "1", "nested"),
        (&pipes, "1", "terms in each other"),
        (&negations, "1", "terms in each other"),
        (&tries, "1", "terms in each other"),
        ("import \"x\" as x; .", "1", ""),
        ("input", "1", "there is no filter"),
        ("halt", "1", "no clock"),
        ("$ENV", "1", "declared environment variables only"),
    ] {
        let shown: String = code.chars().take(60).collect();
        MOST.set(TAKEN.get());
        let (before, begun) = (TAKEN.get(), Instant::now());
        let found = run(code, record);
        let (time, most) = (begun.elapsed(), MOST.get() - before);
        let drift = limits::DRIFT.replace(0);
        println!("{shown}: {time:?}, {} kB: {}", most >> 10, format!("{found:?}").chars().take(90).collect::<String>());
        let told = match &found {
            Ok(given) => given.join(" "),
            Err(reason) => reason.clone(),
        };
        let is_right = told.contains(expected) && time < Duration::from_secs(60) && most < 64 << 20;
        if !is_right || drift > 0 {
            wrong.push(format!(
                "{shown} (drift {drift}): {time:?}, {most} bytes: {}",
                told.chars().take(300).collect::<String>()
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a program does with many matches, cells or elements takes memory for what it holds, and not for all it has made.
#[test]
fn many_matches_take_the_memory_of_what_is_held() {
    let words = format!("\"{}\"", "abcdefgh \\t ".repeat(100_000));
    let cells = format!("[{}\"c\"]", "\"cell\",".repeat(99_999));
    let mut wrong = Vec::new();
    for (code, record, times) in [
        ("gsub(\"\\\\s+\"; \" \")", &words, 4),
        ("gsub(\"(?<first>[a-z])[a-z]*\"; .first) | length", &words, 4),
        ("[splits(\"\\\\s+\")] | length", &words, 12),
        ("[scan(\"[a-z]+\")] | join(\" \") | length", &words, 12),
        ("ascii_upcase | ltrimstr(\"A\") | length", &words, 4),
        ("@csv", &cells, 6),
        ("@tsv | length", &cells, 6),
        ("join(\",\") | length", &cells, 6),
        ("add | length", &cells, 6),
        ("map(. + \"x\") | join(\"\") | length", &cells, 30),
        ("reduce .[] as $one (\"\"; . + $one) | length", &cells, 6),
        ("[limit(50000; .[])] | length", &cells, 16),
        ("del(.[] | select(. == \"c\")) | length", &cells, 60),
        // Each round lets go of what the one before has made.
        ("reduce range(5) as $i (.; map(. + \"y\")) | length", &cells, 60),
        ("reduce range(800) as $i (0; (\"x\" * 100000 + \"y\" | length))", &cells, 6),
    ] {
        let before = TAKEN.get();
        MOST.set(before);
        let found = run(code, record);
        let (most, most_expected) = (MOST.get() - before, (record.len() * (times + 12)) as isize);
        if found.is_err() || most > most_expected || limits::DRIFT.replace(0) > 0 {
            let found = format!("{found:?}").chars().take(90).collect::<String>();
            wrong.push(format!("{code}: {most} of {most_expected} bytes: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a program does with a long text takes a step for many of its bytes, so a record with one allows few more of them.
#[test]
fn a_long_text_counts_less_than_many_values() {
    let weight = |value: Val| limits::weight_of(&value, limits::size_of(&value).0);
    assert_eq!(weight(Val::from("x".repeat(200))), 202);
    assert!(weight(Val::from("x".repeat(10 << 20))) < 330 << 10);
    let list: Val = (0..100_000_isize).map(Val::from).collect();
    assert_eq!(weight(list.clone()), limits::size_of(&list).0);
}

/// A filter that looks at all of a value and counts one step makes a program that does not end in an hour.
#[test]
fn what_a_filter_looks_at_is_counted() {
    let many = |part: &str| format!("[{}]", vec![part; 10_000].join(","));
    let blanks = format!("\"{}\"", " ".repeat(1_000_000));
    let fields: Vec<String> = (0..10_000).map(|at| format!("\"k{at}\":1")).collect();
    let fields = format!("{{{}}}", fields.join(","));
    let named = format!("[{{\"{0}\":1}}]", "k".repeat(1_000_000));
    let typed = format!("[{{\"type\":\"{}\"}}]", "k".repeat(1_000_000));
    for (code, record, least) in [
        ("parts_text", many("[]"), 10_000),
        ("content_text", many("1"), 10_000),
        ("parts_text", typed, 1_000_000 / 256),
        ("meant", blanks.clone(), 1_000_000 / 256),
        ("trim", blanks.clone(), 1_000_000 / 256),
        ("ltrim", blanks.clone(), 1_000_000 / 256),
        ("rtrim", blanks.clone(), 1_000_000 / 256),
        ("tonumber?", blanks.clone(), 1_000_000 / 64),
        (". as $all | \"a\" | inside($all)", format!("\"{}\"", "é".repeat(500_000)), 1_000_000 / 64),
        ("keys_unsorted", fields, 10_000),
        ("seconds", blanks, 1_000_000 / 256),
        ("messages_of(\"user\")", many("[]"), 10_000),
        ("{attributes: .} | attributes", many("{}"), 10_000),
        ("{kvlistValue: {values: .}} | otlp_value", many("1"), 10_000),
        (".[0] | otlp_value", named, 1_000_000 / 256),
        (".[] | html_text?", many("1"), 48 * 10_000),
        (".[] | .[]?", many("1"), 4 * 10_000),
    ] {
        let _ = run(code, &record);
        let taken = limits::TAKEN.get();
        assert!(taken >= least, "{code}: {taken} steps, and not {least}");
    }
}
