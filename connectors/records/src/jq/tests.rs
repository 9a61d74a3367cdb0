use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use super::*;
use crate::decode::{Odd, json};

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

/// What a program gives for a record, as JSON, or why it fails.
fn run(code: &str, record: &str) -> Result<Vec<String>, String> {
    let program = Program::of(code, &["$source"], &[]).map_err(|error| error.to_string())?;
    let value = json(record.as_bytes(), &mut Odd::default())?;
    let mut given = Vec::new();
    program.run(value, &[Val::from("file".to_owned())], &mut |value| {
        given.push(value.to_string());
        Ok(())
    })?;
    Ok(given)
}

/// Programs that do not end, or take all memory, and records that make harmless programs do so.
#[test]
fn hostile_programs_and_records_are_ended() {
    let letters = format!("\"{}\"", "a".repeat(20_000));
    let form = format!("\"{}\"", (0..50_000).map(|at| format!("a{at}=1&")).collect::<String>());
    let open = format!("\"{}\"", "[".repeat(200_000));
    let digits = format!("\"{}\"", "9".repeat(200_000));
    let tags = format!("\"{}\"", "<b><i><a>".repeat(100_000));
    let flat = format!("[{}]", "1,".repeat(20_000) + "1");
    let nested = format!("{}1{}", "[".repeat(400), "]".repeat(400));
    let parentheses = format!("{}.{}", "(".repeat(30_000), ")".repeat(30_000));
    let pipes = ".|".repeat(20_000) + ".";
    let negations = "-".repeat(60_000) + "1";
    let tries = "try ".repeat(10_000) + ".";
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
        ("test(. + \"(\")", &letters, "regex"),
        ("\"a\" | test(\"(\" * 100000)", "1", ended),
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
        let is_right = told.contains(expected) && time < Duration::from_secs(10) && most < 64 << 20;
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
        ("reduce range(40) as $i (.; map(. + \"y\")) | length", &cells, 60),
        ("reduce range(2000) as $i (0; (\"x\" * 100000 + \"y\" | length))", &cells, 6),
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

/// What programs may do is what jq does.
#[test]
fn programs_do_what_those_of_jq_do() {
    let mut wrong = Vec::new();
    for (code, record, expected) in [
        ("[.[] | select(. > 1)]", "[1, 2, 3]", "[2,3]"),
        ("map(. + 1) | add", "[1, 2]", "5"),
        ("to_entries | map(.key) | join(\",\")", r#"{"a": 1, "b": 2}"#, r#""a,b""#),
        ("[recurse(if . < 3 then . + 1 else empty end)]", "0", "[0,1,2,3]"),
        ("[limit(3; repeat(. * 2; .))]?", "1", ""),
        ("[limit(3; repeat(1))]", "1", "[1,1,1]"),
        ("[while(. < 8; . * 2)]", "1", "[1,2,4]"),
        ("until(. > 100; . * 2)", "1", "128"),
        ("def fac: if . <= 1 then 1 else . * (. - 1 | fac) end; fac", "20", "2432902008176640000"),
        ("def r($n; f): if $n > 0 then f | r($n - 1; f) else . end; r(3; . + 2)", "1", "7"),
        ("def w(f): if type == \"array\" then map(w(f)) else f end; w(. + 1)", "[1, [2, [3]]]", "[2,[3,[4]]]"),
        ("def f(g): def g2: g; [g2, (def f(h): h; f(1))]; f(2)", "null", "[2,1]"),
        (".a.b |= . + 1", r#"{"a": {"b": 1}}"#, r#"{"a":{"b":2}}"#),
        (
            "[.a = 1, .[2] = 1, (.a.b[1] |= 2), (.a |= empty)]",
            "null",
            r#"[{"a":1},[null,null,1],{"a":{"b":[null,2]}},null]"#,
        ),
        (".[3] = 1, (.[3] |= empty), ([.[] = 2])", "[0]", "[0,null,null,1] [0] [[2]]"),
        ("del(.a, .c)", r#"{"a": 1, "b": 2, "c": 3}"#, r#"{"b":2}"#),
        (".[1:] = [9]", "[1, 2, 3]", "[1,9]"),
        ("(.. | numbers) |= . + 1", "[1, [2]]", "[2,[3]]"),
        ("[paths]", r#"{"a": [1]}"#, r#"[["a"],["a",0]]"#),
        ("walk(if type == \"number\" then . + 1 else . end)", "[1, [2]]", "[2,[3]]"),
        ("[splits(\", *\")]", r#""a, b,c""#, r#"["a","b","c"]"#),
        ("gsub(\"(?<x>[a-z])\"; .x + \"-\")", r#""ab1""#, r#""a-b-1""#),
        ("[match(\"(é)(x)?\"; \"g\") | .offset, .length, .captures[0].string]", r#""aéé""#, r#"[1,1,"é",2,1,"é"]"#),
        ("capture(\"(?<n>[0-9]+)\").n | tonumber", r#""x 42""#, "42"),
        ("[scan(\"\\\\w+\")]", r#""grüße an""#, r#"["grüße","an"]"#),
        ("sub(\"^\\\\s+\"; \"\"; \"s\")", r#""  x""#, r#""x""#),
        ("fromjson.a", r#""{\"a\": 7}""#, "7"),
        ("tojson", r#"{"a": [1, null]}"#, r#""{\"a\":[1,null]}""#),
        ("\"\\(.a) and \\(.b)\"", r#"{"a": [1], "b": "x"}"#, r#""[1] and x""#),
        ("has(\"a\"), has(\"b\")", r#"{"a": null}"#, "true false"),
        ("indices(\"an\"), index(\"an\"), (\"xé\" | length)", r#""banana""#, "[1,3] 1 2"),
        ("contains({a: [\"x\"]})", r#"{"a": ["xyz", 1]}"#, "true"),
        ("group_by(.a) | map(length)", r#"[{"a": 1}, {"a": 2}, {"a": 1}]"#, "[2,1]"),
        ("sort_by(.a) | map(.b)", r#"[{"a": 2, "b": 1}, {"a": 1, "b": 2}]"#, "[2,1]"),
        ("unique | length", "[1, 2, 1]", "2"),
        ("flatten", "[1, [2, [3]]]", "[1,2,3]"),
        ("try error(\"x\") catch .", "1", r#""x""#),
        ("(.a.b)? // \"none\"", r#"{"a": 1}"#, r#""none""#),
        (".a.b", r#"{"a": 1}"#, "cannot index 1 with \"b\""),
        ("1 + \"a\"", "1", "cannot calculate 1 + \"a\""),
        (". % 0", "1", "the divisor is zero"),
        ("$source", "1", r#""file""#),
        ("123456789012345678901234567890 + 1", "1", "123456789012345678901234567891"),
        ("reduce range(1000) as $i (\"\"; . + \"abc\") | length", "1", "3000"),
        ("[.[] | gsub(\"a\"; \"b\")] | length", &format!("[{}\"a\"]", "\"aaaa\",".repeat(2_000)), "2001"),
        ("ltrimstr(\"a\"), ascii_downcase, explode[0], ([97] | implode)", r#""aB""#, r#""B" "ab" 97 "a""#),
        ("@base64, @uri, @html", r#""a<b""#, r#""YTxi" "a%3Cb" "a&lt;b""#),
        ("@base32, (@base32 | @base32d)", r#""hello""#, r#""NBSWY3DP" "hello""#),
        ("todate, (todate | fromdate)", "0", "\"1970-01-01T00:00:00Z\" 0"),
        ("[.[] as [$a, {b: $c}] | $a + $c]", r#"[[1, {"b": 2}]]"#, "[3]"),
        ("first, last, nth(1), first(.[])", "[1, 2, 3]", "1 3 2 1"),
        ("transpose, (map(add))", "[[1, 2], [3, 4]]", "[[1,3],[2,4]] [3,7]"),
        ("bsearch(2), bsearch(5)", "[1, 2, 3]", "1 -4"),
        ("with_entries(.value += 1), map_values(. + 1)", r#"{"a": 1}"#, r#"{"a":2} {"a":2}"#),
        ("[label $out | .[] | if . == 2 then break $out else . end]", "[1, 2, 3]", "[1]"),
        ("[foreach .[] as $x (0; . + $x)]", "[1, 2, 3]", "[1,3,6]"),
        ("limit(2; .[]), (.[-1:])", "[1, 2, 3]", "1 2 [3]"),
        ("@csv", r#"["a\"b", 1.5, null, true]"#, r#""\"a\"\"b\",1.5,,true""#),
        ("@tsv", r#"["a\tb\\c\nd", 1]"#, r#""a\\tb\\\\c\\nd\t1""#),
        ("@csv \"\\(.)!\"", "[1, \"a\"]", r#""1,\"a\"!""#),
        ("@csv", "[[1]]", "cannot be in a row of CSV"),
        ("INDEX(.id)", r#"[{"id": 1, "a": 2}, {"id": "x"}]"#, r#"{"1":{"id":1,"a":2},"x":{"id":"x"}}"#),
        (
            "INDEX(.id) as $all | [JOIN($all; .id)], [JOIN($all; .[]; .id; .[1].a)]",
            r#"[{"id": "x", "a": 2}]"#,
            r#"[[[{"id":"x","a":2},{"id":"x","a":2}]]] [2]"#,
        ),
        ("IN(.[]; 2, 3), IN(.[]; 4)", "[1, 2]", "true false"),
        ("[tostream]", r#"{"a": [1, {"b": 2}]}"#, r#"[[["a",0],1],[["a",1,"b"],2],[["a",1,"b"]],[["a",1]],[["a"]]]"#),
        ("fromstream(tostream)", r#"{"a": [1, {"b": 2}]}"#, r#"{"a":[1,{"b":2}]}"#),
        ("[1 | truncate_stream([[0], 1], [[1, 0], 2], [[1, 0]], [[1]])]", "1", "[[[0],2],[[0]]]"),
        ("toarray, (.[0] | toarray)", "[1]", "[1] [1]"),
        ("map(ascii), (\"aba\" | trimstr(\"a\")), [leaf_paths]", "[65]", r#"["A"] "b" [[0]]"#),
        ("date, dateadd(\"seconds\"; 5), datesub(\"seconds\"; 5)", "0", "\"1970-01-01T00:00:00Z\" 5 -5"),
    ] {
        let told = run(code, record).map_or_else(|reason| reason, |given| given.join(" "));
        if !told.contains(expected) || (told != expected && expected.starts_with('[')) {
            wrong.push(format!("{code}: {told}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Programs, records, and what jq 1.7 gives; `!` stands for an error.
const ROWS: &str = include_str!("jq_rows.tsv");

/// Programs give what those of jq give.
#[test]
fn programs_give_what_jq_gives() {
    let mut wrong = Vec::new();
    for row in ROWS.lines() {
        let cells: Vec<&str> = row.split('\t').collect();
        let [code, record, expected] = cells[..] else { panic!("{row}") };
        let (mut given, mut reason) = (Vec::new(), String::new());
        match Program::of(code, &["$source"], &[]) {
            Ok(program) => {
                let value = json(record.as_bytes(), &mut Odd::default()).unwrap();
                let each = &mut |value: Val| {
                    given.push(shown(&value));
                    Ok(())
                };
                if let Err(error) = program.run(value, &[Val::Null], each) {
                    given.push("!".to_owned());
                    reason = error;
                }
            }
            Err(error) => {
                given.push("!".to_owned());
                reason = error.to_string();
            }
        }
        if given.join(" ") != expected {
            wrong.push(format!("{code} <- {record}: {} ({reason}), jq: {expected}", given.join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A program that fails tells which of its terms does, and with what.
#[test]
fn programs_tell_where_they_fail() {
    let mut wrong = Vec::new();
    for (code, record, expected) in [
        (".a.b", r#"{"a": 1}"#, "line 1, column 1, `.a.b`: cannot index 1 with \"b\""),
        (
            "{id: .id,\n text: (.text | ascii_downcase)}",
            r#"{"text": 5}"#,
            "line 2, column 17, `ascii_downcase`: cannot use 5 as string",
        ),
        (".a + .b", r#"{"a": "x", "b": 1}"#, "line 1, column 1, `.a + .b`: cannot calculate \"x\" + 1"),
        (
            ".items[] | .name | split(\",\")",
            r#"{"items": [{"name": "a"}, {"name": null}]}"#,
            "line 1, column 20, `split(\",\")`: null cannot be split, because it is no text",
        ),
        ("1 + (.a | tonumber)", r#"{"a": "12x"}"#, "line 1, column 11, `tonumber`: \"12x\" cannot be a number"),
        (
            ".time\n| strptime(\"%Y-%m-%d\")\n| mktime",
            r#"{"time": "5 March"}"#,
            "line 2, column 3, `strptime(\"%Y-%m-%d\")`: \"5 March\" is no time of the form \"%Y-%m-%d\": strptime parsing failed: expected to match literal byte `-` from format string, but found byte ` ` in input",
        ),
        (
            "def f: .x | fromjson; .a | f",
            r#"{"a": {"x": "{"}}"#,
            "line 1, column 13, `fromjson`: cannot parse a text as JSON: not JSON: byte offset 1: value or end of sequence expected",
        ),
        (
            ".[] | .id",
            r#"[{"id": 1}, "a long text that is not an object and does not end where it should, for it is long"]"#,
            "line 1, column 7, `.id`: cannot index \"a long text that is not an object and does not end where it… with \"id\"",
        ),
        (
            "map(.n / .d)",
            r#"[{"n": 1, "d": 0}]"#,
            "line 1, column 5, `.n / .d`: 1 cannot be divided, because the divisor is zero",
        ),
        (
            "(.a | tonumber)? // (.b | tonumber)",
            r#"{"a": "x", "b": "y"}"#,
            "line 1, column 27, `tonumber`: \"y\" cannot be a number",
        ),
        (
            "try (.a | tonumber) catch error(\"no number: \" + .)",
            r#"{"a": "x"}"#,
            "line 1, column 27, `error(\"no number: \" + .)`: no number: \"x\" cannot be a number",
        ),
        ("error(\"no customer\")", r#"1"#, "line 1, column 1, `error(\"no customer\")`: no customer"),
        ("if .a then .a else error({code: 5}) end", r#"{}"#, "line 1, column 20, `error({code: 5})`: {\"code\":5}"),
        (".a.b |= . + 1", r#"{"a": {"b": "x"}}"#, "line 1, column 9, `. + 1`: cannot calculate \"x\" + 1"),
        (".list |= map(.x)", r#"{"list": [1]}"#, "line 1, column 14, `.x`: cannot index 1 with \"x\""),
        ("reduce .[] as $x (0; . + $x)", r#"[1, "a"]"#, "line 1, column 22, `. + $x`: cannot calculate 1 + \"a\""),
        (
            "[.[] | test(\"a\")]",
            r#"["a", 1]"#,
            "line 1, column 8, `test(\"a\")`: 1 cannot be matched, because it is no text",
        ),
        (
            "{(.k): 1}",
            r#"{"k": 1}"#,
            "line 1, column 1, `{(.k): 1}`: 1 cannot be the name of a field, because it is no text",
        ),
        ("-.a", r#"{"a": "x"}"#, "line 1, column 1, `-.a`: cannot use \"x\" as number"),
        (
            "\"é\" as $e | .a | gsub($e; 1)",
            r#"{"a": "é"}"#,
            "line 1, column 18, `gsub($e; 1)`: 1 cannot replace a part of a text, because it is no text",
        ),
        (
            ".a | @csv",
            r#"{"a": {"b": 1}}"#,
            "line 1, column 6, `@csv`: {\"b\":1} cannot be a row of CSV, because it is no list",
        ),
        ("sort_by(.a.b)", r#"[{"a": 1}, {"a": 2}]"#, "line 1, column 9, `.a.b`: cannot index 1 with \"b\""),
        (
            ".a[0:\"x\"]",
            r#"{"a": [1]}"#,
            "line 1, column 1, `.a[0:\"x\"]`: the start and the end of a slice are numbers",
        ),
        ("keys", r#"5"#, "line 1, column 1, `keys`: cannot use 5 as iterable (array or object)"),
    ] {
        let told = run(code, record).map_or_else(|reason| reason, |given| given.join(" "));
        if told != expected {
            wrong.push(format!("({code:?}, r#\"{record}\"#, {told:?}),"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each error is where somebody would look for it.
#[test]
fn wrong_programs_are_told_with_their_places() {
    let mut wrong = Vec::new();
    for (code, line, column, reason) in [
        ("", 1, 1, "term"),
        ("   \n\n", 3, 1, "term"),
        ("# only a comment", 1, 17, "term"),
        ("{", 1, 2, "closing brace"),
        (".a |", 1, 5, "term"),
        (".a\n| .b\n| ", 3, 3, "term"),
        ("| .a", 1, 1, "term"),
        (".a |\n| .b", 2, 1, "term"),
        ("{conversation: .c", 1, 18, "closing brace"),
        ("{conversation: .c,, text: .t}", 1, 19, ""),
        ("{conversation .c}", 1, 15, ""),
        ("{conversation: }", 1, 16, "term"),
        ("{conversation: .c text: .t}", 1, 19, "brace"),
        ("[.a, .b", 1, 8, "closing bracket"),
        ("(.a", 1, 4, "closing parenthesis"),
        (".a)", 1, 3, ""),
        (".[0", 1, 4, "closing bracket"),
        ("\"abc", 1, 5, ""),
        ("\"\\(.a\"", 1, 7, "closing quote"),
        ("\"\\q\"", 1, 3, ""),
        ("if .a then .b", 1, 14, "else or end"),
        ("if .a .b else .c end", 1, 10, "then"),
        (".a as x | .b", 1, 7, "pattern"),
        (".a as $x", 1, 9, "|"),
        ("reduce .[] as $x (0)", 1, 1, "`reduce`"),
        ("def f: .a", 1, 10, ";"),
        ("def f(: .a; f", 1, 14, "closing parenthesis"),
        ("def : .a; .", 1, 5, "identifier"),
        ("try", 1, 4, "term"),
        (".a.", 1, 4, ""),
        ("select(.a", 1, 10, "closing parenthesis"),
        ("selct(.a)", 1, 1, "there is no filter `selct`"),
        ("select(.a; .b)", 1, 1, "there is no filter `select`"),
        (".a | rolle", 1, 6, "there is no filter `rolle`"),
        ("{text: .t,\n conversation: .c,\n speaker: (.s | rool)}", 3, 17, "there is no filter `rool`"),
        (".a | $x", 1, 6, "there is no variable `$x`"),
        (".[] as $x | $y", 1, 13, "there is no variable `$y`"),
        ("break $out", 1, 7, "there is no label"),
        ("@nonsense \"x\"", 1, 1, "there is no filter `@nonsense`"),
        ("input", 1, 1, "there is no filter `input`"),
        ("import \"a\" as a; .", 1, 8, ""),
        ("é | ö", 1, 1, ""),
        ("\"é\" | ö", 1, 7, ""),
        (".a || .b", 1, 4, "nothing"),
        (".a == ", 1, 7, "term"),
        ("5 5", 1, 3, "nothing"),
    ] {
        match Program::of(code, &["$source"], &[]).err() {
            Some(error) if (error.line, error.column) == (line, column) && error.reason.contains(reason) => {}
            other => wrong.push(format!("{code:?}: {:?}", other.map(|error| error.to_string()))),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
