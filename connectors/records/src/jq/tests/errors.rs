//! What is told of programs that are wrong or fail.

use super::{Program, run};

/// A program that fails tells which of its terms does, and with what.
#[test]
fn programs_tell_where_they_fail() {
    let mut wrong = Vec::new();
    for (code, record, expected) in [
        (".a.b", r#"{"a": 1}"#, "cannot index 1 with \"b\" (line 1, column 1: `.a.b`)"),
        (
            "{id: .id,\n text: (.text | ascii_downcase)}",
            r#"{"text": 5}"#,
            "cannot use 5 as string (line 2, column 17: `ascii_downcase`)",
        ),
        (
            ".rows as [$first] | $first",
            r#"{"rows": "x"}"#,
            "cannot index \"x\" with 0 (line 1, column 1: `.rows as [$first]`)",
        ),
        (". as {a: $x} | $x", "5", "cannot index 5 with \"a\" (line 1, column 1: `. as {a: $x}`)"),
        (". as {a: $x} | $x | tonumber", r#"{"a": "y"}"#, "\"y\" cannot be a number (line 1, column 21: `tonumber`)"),
        (
            r#"@csv "a,\(.rows)""#,
            r#"{"rows": 5}"#,
            r#"5 cannot be a row of CSV, because it is no list (line 1, column 1: `@csv "a,\(.rows)"`)"#,
        ),
        (
            ".re as $re | \"x\" | test($re)",
            r#"{"re": "(a"}"#,
            "\"(a\" is no regular expression: unclosed group (line 1, column 20: `test($re)`)",
        ),
        (
            ".re as $re | \"x\" | test($re)",
            r#"{"re": "error: (a\nerror: b"}"#,
            "\"error: (a\\nerror: b\" is no regular expression: unclosed group (line 1, column 20: `test($re)`)",
        ),
        ("[range(.to)]", r#"{"to": null}"#, "null is no number for a range (line 1, column 1: `[range(.to)]`)"),
        ("5 | strftime(5)", "{}", "5 is no form of a time, because it is no text (line 1, column 5: `strftime(5)`)"),
        ("[limit(.n; 1, 2)]", "{}", "null is no number for a limit (line 1, column 1: `[limit(.n; 1, 2)]`)"),
        ("[limit(.n; 1, 2)]", r#"{"n": -1}"#, "limit takes no negative number (line 1, column 1: `[limit(.n; 1, 2)]`)"),
        (".a + .b", r#"{"a": "x", "b": 1}"#, "cannot calculate \"x\" + 1 (line 1, column 1: `.a + .b`)"),
        (
            ".items[] | .name | split(\",\")",
            r#"{"items": [{"name": "a"}, {"name": null}]}"#,
            "null cannot be split, because it is no text (line 1, column 20: `split(\",\")`)",
        ),
        ("1 + (.a | tonumber)", r#"{"a": "12x"}"#, "\"12x\" cannot be a number (line 1, column 11: `tonumber`)"),
        (
            ".time\n| strptime(\"%Y-%m-%d\")\n| mktime",
            r#"{"time": "5 March"}"#,
            "\"5 March\" is no time of the form \"%Y-%m-%d\": strptime parsing failed: expected to match literal byte `-` from format string, but found byte ` ` in input (line 2, column 3: `strptime(\"%Y-%m-%d\")`)",
        ),
        (
            "def f: .x | fromjson; .a | f",
            r#"{"a": {"x": "{"}}"#,
            "cannot parse a text as JSON: not JSON: byte offset 1: value or end of sequence expected (line 1, column 13: `fromjson`)",
        ),
        (
            ".[] | .id",
            r#"[{"id": 1}, "a long text that is not an object and does not end where it should, for it is long"]"#,
            "cannot index \"a long text that is not an object and does not end where it… with \"id\" (line 1, column 7: `.id`)",
        ),
        (
            "map(.n / .d)",
            r#"[{"n": 1, "d": 0}]"#,
            "1 cannot be divided, because the divisor is zero (line 1, column 5: `.n / .d`)",
        ),
        (
            "(.a | tonumber)? // (.b | tonumber)",
            r#"{"a": "x", "b": "y"}"#,
            "\"y\" cannot be a number (line 1, column 27: `tonumber`)",
        ),
        (
            "try (.a | tonumber) catch error(\"no number: \" + .)",
            r#"{"a": "x"}"#,
            "no number: \"x\" cannot be a number",
        ),
        ("error(\"no customer\")", r#"1"#, "no customer"),
        ("if .a then .a else error({code: 5}) end", r#"{}"#, "{\"code\":5}"),
        (".a.b |= . + 1", r#"{"a": {"b": "x"}}"#, "cannot calculate \"x\" + 1 (line 1, column 9: `. + 1`)"),
        (".list |= map(.x)", r#"{"list": [1]}"#, "cannot index 1 with \"x\" (line 1, column 14: `.x`)"),
        ("reduce .[] as $x (0; . + $x)", r#"[1, "a"]"#, "cannot calculate 1 + \"a\" (line 1, column 22: `. + $x`)"),
        (
            "[.[] | test(\"a\")]",
            r#"["a", 1]"#,
            "1 cannot be matched, because it is no text (line 1, column 8: `test(\"a\")`)",
        ),
        (
            "{(.k): 1}",
            r#"{"k": 1}"#,
            "1 cannot be the name of a field, because it is no text (line 1, column 1: `{(.k): 1}`)",
        ),
        ("-.a", r#"{"a": "x"}"#, "cannot use \"x\" as number (line 1, column 1: `-.a`)"),
        (
            "\"é\" as $e | .a | gsub($e; 1)",
            r#"{"a": "é"}"#,
            "1 cannot replace a part of a text, because it is no text (line 1, column 18: `gsub($e; 1)`)",
        ),
        (
            ".a | @csv",
            r#"{"a": {"b": 1}}"#,
            "{\"b\":1} cannot be a row of CSV, because it is no list (line 1, column 6: `@csv`)",
        ),
        ("sort_by(.a.b)", r#"[{"a": 1}, {"a": 2}]"#, "cannot index 1 with \"b\" (line 1, column 9: `.a.b`)"),
        (
            ".a[0:\"x\"]",
            r#"{"a": [1]}"#,
            "the start and the end of a slice are numbers (line 1, column 1: `.a[0:\"x\"]`)",
        ),
        // What is between brackets, given to definitions, caught, or beside letters of several bytes.
        (".a | (. + 1) * 2", r#"{"a": "x"}"#, "cannot calculate \"x\" + 1 (line 1, column 7: `. + 1`)"),
        ("(1 + .b) - .a", r#"{"a": "x", "b": 1}"#, "cannot calculate 2 - \"x\" (line 1, column 1: `(1 + .b) - .a`)"),
        ("-(.a)", r#"{"a": "x"}"#, "cannot use \"x\" as number (line 1, column 1: `-(.a)`)"),
        ("(.[] | .a.b) = 1", r#"[{"a": 5}]"#, "cannot index 5 with \"b\" (line 1, column 1: `(.[] | .a.b) = 1`)"),
        (
            "(.[] | select(.a)) |= (.b |\n tonumber)",
            r#"[{"a": 1, "b": "x"}]"#,
            "\"x\" cannot be a number (line 2, column 2: `tonumber`)",
        ),
        (
            "def f(g): [.[] | g];\nf(.x | tonumber)",
            r#"[{"x": "k"}]"#,
            "\"k\" cannot be a number (line 2, column 8: `tonumber`)",
        ),
        (
            "def f: .a | tonumber;\n(.a | tonumber)? // f",
            r#"{"a": "x"}"#,
            "\"x\" cannot be a number (line 1, column 13: `tonumber`)",
        ),
        (
            "try (.a | tonumber)\ncatch (1 + \"x\" + .)",
            r#"{"a": "x"}"#,
            "cannot calculate 1 + \"x\" (line 2, column 8: `1 + \"x\"`)",
        ),
        (
            "\"日🎉\" as $e |\n \"\\(.a) ü \\(.b | tonumber)\"",
            r#"{"a": 1, "b": "x"}"#,
            "\"x\" cannot be a number (line 2, column 18: `tonumber`)",
        ),
        (
            "reduce .[] as $x (0;\n . + ($x | tonumber))",
            r#"["z"]"#,
            "\"z\" cannot be a number (line 2, column 12: `tonumber`)",
        ),
        ("keys", r#"5"#, "cannot use 5 as iterable (array or object) (line 1, column 1: `keys`)"),
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
