use super::*;

fn parts(reply: &str) -> (String, String) {
    let Reply { text, thoughts, .. } = split(reply);
    (text, thoughts.trim().to_owned())
}

const REPLIES: &[(&str, &str, &str)] = &[
    ("<think>\nhm\n</think>\n\nAt ten [1].", "At ten [1].", "hm"),
    ("  <Thinking>hm</THINKING>At ten.", "At ten.", "hm"),
    ("The user asks.\n</think>\n\nAt ten.", "At ten.", "The user asks."),
    ("<think></think>At ten.", "At ten.", ""),
    ("<think>a</think>\n<think>b</think> At ten.", "At ten.", "ab"),
    ("<think>never ends", "", "never ends"),
    ("<think>only thoughts</think>\n", "", "only thoughts"),
    ("◁think▷嗯◁/think▷十点。", "十点。", "嗯"),
    ("[THINK]hm[/THINK]At ten.", "At ten.", "hm"),
    ("<|channel|>analysis<|message|>hm<|channel|>final<|message|>At ten.", "At ten.", "hm"),
    (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Ten.<|return|>",
        "Ten.",
        "hm<|end|><|start|>assistant",
    ),
    ("<|channel|>final<|message|>At ten.<|return|>", "At ten.", ""),
    (
        "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>At <b>ten</b>.\n<|x|><|END_TEXT|>",
        "At <b>ten</b>.\n<|x|>",
        "hm",
    ),
    ("<thought>hm</thought>At ten.<|end|>", "At ten.<|end|>", "hm"),
    ("One.\n<think>\nhm\n</think>\nTwo.", "One.\nTwo.", "hm"),
    ("<think>a</think>draft</think>At ten.", "At ten.", "adraft"),
    ("<think>a</think>\nA draft.\n</think>\n\nAt ten.", "At ten.", "aA draft."),
    ("a</think>b </think>\nc</think>At ten.", "At ten.", "ab c"),
    ("<think>a</think>Perhaps at nine. </think>At ten.", "At ten.", "aPerhaps at nine."),
    ("<think>a</think>At ten.\n</think>\n", "At ten.\n", "a"),
    ("<think>a</think>\n</THINK>\n\nAt ten.", "At ten.", "a"),
    ("a</think></think> </think>At ten.", "At ten.", "a"),
    ("<think>a</think>At ten.</think>\n\n", "At ten.", "a"),
    ("<think>a</think>At ten.\n\n</think>", "At ten.\n\n", "a"),
    ("<think>a</think>草稿</think>渡轮十点开。</think>", "渡轮十点开。", "a草稿"),
    ("<think>a</think>Say \"</think>\" here, a draft.</think>At ten.", "At ten.", "aSay \"</think>\" here, a draft."),
    ("The passage says \"ten\"</think>At ten.", "At ten.", "The passage says \"ten\""),
    ("It is «ten»</think>At ten.", "At ten.", "It is «ten»"),
    ("It is **ten**</think>At ten.", "At ten.", "It is **ten**"),
    ("Use `<think>`, it says.\n</think>\n\nAt ten.", "At ten.", "Use `<think>`, it says."),
    ("**Answer:**<think>Is it so?</think> ten", "**Answer:** ten", "Is it so?"),
    ("```js `x`\n<think>b c d e</think>\n```\nDone", "```js `x`\n```\nDone", "b c d e"),
    // Closed by another tag, empty, and with marks around the text.
    ("<thinking>hm</think>At ten.", "At ten.", "hm"),
    ("<think>hm</thinking>\n\nAt ten.", "At ten.", "hm"),
    ("<think>a `</thinking>` b</thought>At ten.", "At ten.", "a `</thinking>` b"),
    ("<think>a</thinking><think>b</thinking>At ten.", "At ten.", "ab"),
    ("<think>It asks about `</think>`, a tag.</think>At ten.", "At ten.", "It asks about `</think>`, a tag."),
    ("<think>The tag \"</think>\" ends it.</think>\n\nAt ten.", "At ten.", "The tag \"</think>\" ends it."),
    ("<think>It is \"ten\"</think>\"At ten.\"", "\"At ten.\"", "It is \"ten\""),
    ("<think/>At ten.", "At ten.", ""),
    ("<think />\n\nAt ten.", "At ten.", ""),
    ("<unused94>thought\nhm<unused95>At ten.", "At ten.", "thought\nhm"),
    ("<thinking>hm</thinking>At ten.", "At ten.", "hm"),
    ("<think>hm</think>\n<answer>\nAt ten.</answer>", "At ten.", "hm"),
    ("hm</think><answer>At ten: `a < b`, <answers> and </answer", "At ten: `a < b`, <answers> and </answer", "hm"),
    ("<answer>At ten.</answer>", "<answer>At ten.</answer>", ""),
    // Within a line.
    ("text<think>b</think>more", "textmore", "b"),
    (
        "At ten. <think>Is it so? Yes, it is.</think> Tickets are at the pier.",
        "At ten. Tickets are at the pier.",
        "Is it so? Yes, it is.",
    ),
    ("<think>a</think>At ten.<think>b</think> And at two.<think>c\nd</think>", "At ten. And at two.", "abc\nd"),
    ("At ten.<think>It ends here", "At ten.", "It ends here"),
    ("At ten [1]. <think>Wait, let me see", "At ten [1]. ", "Wait, let me see"),
    ("十点开。<think>让我看看", "十点开。", "让我看看"),
    ("At ten <think >\nb\n</think\t>[1].", "At ten [1].", "b"),
    ("渡轮<think>嗯</think>十点开。", "渡轮十点开。", "嗯"),
    ("The ferry <think>OK, ten</think> leaves.", "The ferry leaves.", "OK, ten"),
    ("One.\n\n<think>o <think>i</think> again</think>\n\nTwo.", "One.\n\nTwo.", "o <think>iagain"),
    ("A <think>o <think>i</think> again</think> B.", "A B.", "o <think>i</think> again"),
    ("The ferry leaves.\n<think>a</think>\nDraft\n</think>\nFinal.", "The ferry leaves.\nFinal.", "aDraft"),
    ("</ think>At ten.", "At ten.", ""),
    ("< think>hm< / think >At ten.", "At ten.", "hm"),
    ("<redacted_thinking>x</redacted_thinking>At ten.", "At ten.", "x"),
    ("analysisThe user asks.assistantfinalAt ten.", "At ten.", "The user asks."),
    ("<|start|>assistant<|channel|>analysis<|message|>hm<|channel|>final<|message|>At ten.", "At ten.", "hm"),
    ("渡轮<think>用户想知道时间</think>十点开。", "渡轮十点开。", "用户想知道时间"),
    ("Ten<think></think> sharp", "Ten sharp", ""),
    ("One.\n  <think>b</think>Two.", "One.\nTwo.", "b"),
    ("\u{feff}<think>hm</think>At ten.", "At ten.", "hm"),
    ("<think >hm</think >At ten.", "At ten.", "hm"),
    ("hm</think >At ten.", "At ten.", "hm"),
    ("A<|begin_of_thought|>b<|end_of_thought|>c", "Ac", "b"),
    // What is said about tags is text.
    ("Use <think> x </think> here.", "Use <think> x </think> here.", ""),
    ("用<think>和</think>包起来。", "用<think>和</think>包起来。", ""),
    (
        "The tag <think> is an opening one. It is for thoughts.",
        "The tag <think> is an opening one. It is for thoughts.",
        "",
    ),
    ("A Vec<thought> has thoughts.", "A Vec<thought> has thoughts.", ""),
    ("Use Vec<Thinking> or Promise<Think>. Ten.\nMore.", "Use Vec<Thinking> or Promise<Think>. Ten.\nMore.", ""),
    ("Read a[think] and Set<think>. Ten.", "Read a[think] and Set<think>. Ten.", ""),
    ("Models use tags. <think> is one. Ten.", "Models use tags. <think> is one. Ten.", ""),
    ("The closing tag is \"</think>\". Ten.", "The closing tag is \"</think>\". Ten.", ""),
    ("It ends with </think>, and then. Ten.", "It ends with </think>, and then. Ten.", ""),
    ("标签是“</think>”。十点。", "标签是“</think>”。十点。", ""),
    (
        "1. Start with <think>\n2. Think.\n3. End with </think>\n4. Say.",
        "1. Start with <think>\n2. Think.\n3. End with </think>\n4. Say.",
        "",
    ),
    ("Write ``a<think>b c d e</think>c``.", "Write ``a<think>b c d e</think>c``.", ""),
    (
        "````\n```\na<think>b c</think>\n```\nx</think>y\n````\n",
        "````\n```\na<think>b c</think>\n```\nx</think>y\n````\n",
        "",
    ),
    (
        "It opens with <think>, and must close it with </think>.",
        "It opens with <think>, and must close it with </think>.",
        "",
    ),
    ("Use <think>…</think> here.", "Use <think>…</think> here.", ""),
    ("analysis of the ferry: ten.", "analysis of the ferry: ten.", ""),
    (
        "Say (<think>long thoughts of a model</think>) first.",
        "Say (<think>long thoughts of a model</think>) first.",
        "",
    ),
    ("Write `a<think>b</think>c`.", "Write `a<think>b</think>c`.", ""),
    ("```\na<think>b</think>c\n```\n", "```\na<think>b</think>c\n```\n", ""),
    ("a < b <t", "a < b <t", ""),
    ("<think>a</think>It ends with <think></think>", "It ends with <think></think>", "a"),
    ("<think>a</think>It ends with `</think>`", "It ends with `</think>`", "a"),
    ("<think>a</think>```\nx\n</think>\n```", "```\nx\n</think>\n```", "a"),
    ("<think>a</think>Close it with </think>. Done.", "Close it with </think>. Done.", "a"),
    ("<think>a</think>Write \"</think>\" and `</think>`.", "Write \"</think>\" and `</think>`.", "a"),
    ("Put it into <think> and </think>. Done.", "Put it into <think> and </think>. Done.", ""),
    ("Put it between `<think>` and `</think>` tags.", "Put it between `<think>` and `</think>` tags.", ""),
    ("```\n<think>\nx\n</think>\n```\nDone.", "```\n<think>\nx\n</think>\n```\nDone.", ""),
    ("<thin", "<thin", ""),
    ("  At ten.", "  At ten.", ""),
    ("", "", ""),
];

/// Texts about tags.
const KEPT: &[&str] = &[
    "DeepSeek writes its thoughts between **<think>** and **</think>** tags.",
    "The tags *<think>* and *</think>* mark the thoughts.",
    "The tags __<think>__ and __</think>__ mark the thoughts.",
    "Use <code><think></code> and <code></think></code> around it.",
    "Use <kbd><think></kbd> to open and <kbd></think></kbd> to close.",
    "The tags are:\n\n- <think>: opens the thoughts\n- </think>: closes them\n\nTickets.",
    "The tags are:\n\n- **<think>**: opens the thoughts\n- **</think>**: closes them\n\nTickets.",
    "The tags are:\n\n- <think> – opens the thoughts\n- </think> – closes them\n\nTickets.",
    "Do it:\n\n1. <think> opens the thoughts.\n2. The model reasons.\n3. </think> closes them.\n\nTickets.",
    "| Tag | Meaning |\n|---|---|\n| <think> | opens the thoughts |\n| </think> | closes them |\n\nTickets.",
    "Steps:\n\n- ```xml\n  <think>\n  reasoning\n  </think>\n  ```\n- Done.",
    "Steps:\n\n1. ```xml\n   <think>\n   reasoning\n   </think>\n   ```\n2. Done.",
    "Example:\n\n> ```\n> <think>I look for the ferry now</think>Ten.\n> ```\n\nDone.",
    "~~~ xml\n<think>\nx y z w\n</think>\n~~~\nDone.",
    "The </think> tag closes the block. Tickets.",
    "When the model emits </think> it stops thinking. Tickets.",
    "Set stop=</think> in the request to cut it. Tickets.",
    "The tag **</think>** closes the block. Tickets.",
    "The tag <code></think></code> closes the block. Tickets.",
    "Mit dem Tag </think> endet der Gedanke. Karten.",
    "- </think> closes the block\n- tickets",
    "| </think> | closes the block |\n|---|---|\n| a | tickets |",
    "<note><thought>I am here today and then</thought><to>Bob</to></note>",
    "a[think] = 1; b[/think] = 2;",
    "[Think] pauses the game.\n[Go] resumes it.",
    "[think](https://x.y) is a link and [thinking][1] too.",
    "See:\n[think](https://x.y/z)\n[other](https://x.y/w)\nTickets.",
    "Les balises « <think> » et « </think> » entourent la pensée.",
    "Die Tags „<think>“ und „</think>“ umgeben den Gedanken.",
    "『<think>』と『</think>』で囲みます。",
    "使用《<think>》和《</think>》包住思考。",
    "open=<think> close=</think> for the parser",
    "start:<think> end:</think> for the parser",
    "Q: What is <think>?\nA: A tag.\nQ: What is </think>?\nA: Its end.",
    "- Config:\n\n      <think>\n      x y z\n      </think>\n\n- Done.",
    "<table><tr><td><thought></td><td>opens</td></tr><tr><td></thought></td></tr></table>",
    "List<thought> a; Map<String, List<reasoning>> b; // </thought>",
    "Ten [1].\n<think> is how DeepSeek opens its thoughts. Tickets.",
    "Ten [1].\n\n<Thought> elements hold ideas in the TEI schema. Tickets.",
    "1. <think>：思考开始\n2. </think>：思考结束\n票在码头。",
    "|<think>|思考の開始|\n|</think>|思考の終了|\n切符は桟橋で。",
    "Le modèle écrit <think> puis son raisonnement, puis </think> et la réponse. Billets.",
    "Zwischen <think> und dem schließenden </think> steht der Gedanke. Karten.",
    "Everything between the opening <think> tag and the closing </think> tag is hidden. Tickets.",
    "The model first emits <think>, then its reasoning, then </think>, and then the answer. Tickets.",
    "It emits <think> first. Then it reasons. Then </think> ends it. Tickets.",
];

#[test]
fn texts_about_tags_are_kept() {
    for text in KEPT {
        assert_eq!(parts(text), ((*text).to_owned(), String::new()));
    }
}

#[test]
fn thoughts_are_no_part_of_a_text() {
    for (reply, text, thoughts) in REPLIES {
        let (got, thought) = parts(reply);
        assert_eq!((got.as_str(), thought.as_str()), (*text, *thoughts), "{reply:?}");
    }
    assert!(split("hm</think>x").lacks_opening && !split("<think>hm</think>x").lacks_opening);
}

#[test]
fn pieces_of_any_size_give_the_same_text() {
    for reply in REPLIES.iter().map(|(reply, ..)| reply).chain(KEPT) {
        let whole = split_streamed(reply);
        for size in 1..8 {
            let mut splitter = Splitter::new(usize::MAX);
            let letters: Vec<char> = reply.chars().collect();
            let mut text: String =
                letters.chunks(size).map(|piece| splitter.push(&piece.iter().collect::<String>())).collect();
            text.push_str(&splitter.end());
            assert_eq!((text, splitter.thoughts), (whole.text.clone(), whole.thoughts.clone()), "{reply:?} {size}");
        }
    }
}

#[test]
fn a_tag_behind_the_text_is_not_sent() {
    for (pieces, text) in [
        (&["<think>a</think>At ten.", "</think>"][..], "At ten."),
        (&["<think>a</think>At ten.", "</th", "ink>\n", "\n"], "At ten."),
        (&["<think>a</think>", "</thi", "nk>", "At ten."], "At ten."),
        (&["<think>a</think>At ten.</th"], "At ten.</th"),
        (&["<think>a</think>At ten.</think>", " No."], "At ten.</think> No."),
    ] {
        let mut splitter = Splitter::new(0);
        let sent: String = pieces.iter().map(|piece| splitter.push(piece)).collect();
        assert_eq!(sent + &splitter.end(), text, "{pieces:?}");
    }
}

/// Reading them again with each piece or line takes many minutes.
#[test]
fn long_replies_are_read_once() {
    let odd = [
        "\n",
        "`</think>`\n",
        "<|end_text|>",
        "</think>x",
        "word ",
        "<",
        "</think>\n\n",
        "x<think>a ",
        "x <think> a",
        "x<think>a</think> ",
        "x <think>",
        "```\n",
        "[think]a[/think]\n",
    ];
    for part in odd {
        for before in ["", "<think>a</think>x", "<|start_thinking|>a<|end_thinking|>x"] {
            let reply = before.to_owned() + &part.repeat(30_000);
            split(&reply);
            let mut splitter = Splitter::new(usize::MAX);
            let pieces = reply.as_bytes().chunks(4).map(|piece| std::str::from_utf8(piece).unwrap());
            pieces.for_each(|piece| _ = splitter.push(piece));
            splitter.end();
        }
    }
}

#[test]
fn text_is_not_held_back_where_no_tag_can_be_missing() {
    let mut splitter = Splitter::new(0);
    assert_eq!(splitter.push("The "), "The ");
    assert_eq!(splitter.push("ferry\n<"), "ferry\n");
    assert_eq!(splitter.push("b> x"), "<b> x");
    let mut splitter = Splitter::new(8);
    assert_eq!(splitter.push("The fer"), "");
    assert_eq!(splitter.push("ry leaves"), "The ferry leaves");
}

#[test]
fn pieces_of_any_text_give_the_same_text() {
    const WORDS: &[&str] = &[
        "<think>",
        "</think>",
        "<thinking>",
        "</thinking>",
        "<think/>",
        "[THINK]",
        "[/THINK]",
        "<answer>",
        "</answer>",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "analysis",
        "assistantfinal",
        "`",
        "```",
        "``",
        "~~~",
        "\n",
        "\n\n",
        " ",
        "  ",
        "- ",
        "1. ",
        "> ",
        "| ",
        "**",
        "\"",
        "„",
        "“",
        "(",
        ")",
        ".",
        ",",
        ":",
        "The ferry ",
        "leaves",
        "渡轮",
        "。",
        "x",
        "<",
        "</",
        "=",
        "<code>",
        "</code>",
        "\u{feff}",
    ];
    let mut state = 7_u64;
    let mut next = move |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % most
    };
    for _ in 0..20_000 {
        let text: String = (0..=next(14)).map(|_| WORDS[next(WORDS.len())]).collect();
        let whole = split_streamed(&text);
        // Nothing is held back for a model whose thoughts have an opening tag.
        let most_held = if whole.lacks_opening || next(2) == 0 { usize::MAX } else { 0 };
        let (mut splitter, mut got, mut rest) = (Splitter::new(most_held), String::new(), &*text);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.ceil_char_boundary(1 + next(6).min(rest.len() - 1)));
            got += &splitter.push(piece);
            rest = after;
        }
        got += &splitter.end();
        assert_eq!((got, splitter.thoughts), (whole.text, whole.thoughts), "{text:?}");
    }
}
