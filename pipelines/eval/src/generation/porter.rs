//! Porter's stemmer (Porter 1980) as implemented in NLTK, which Google's `rouge_score` uses: with
//! NLTK's irregular forms and its changes to steps 1, 2 and 5.

/// Words with an irregular stem.
const IRREGULAR: &[(&str, &str)] = &[
    ("skies", "sky"),
    ("sky", "sky"),
    ("dying", "die"),
    ("lying", "lie"),
    ("tying", "tie"),
    ("news", "news"),
    ("innings", "inning"),
    ("inning", "inning"),
    ("outings", "outing"),
    ("outing", "outing"),
    ("cannings", "canning"),
    ("canning", "canning"),
    ("howe", "howe"),
    ("proceed", "proceed"),
    ("exceed", "exceed"),
    ("succeed", "succeed"),
];

const STEP_2: &[(&str, &str)] = &[
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
];

const STEP_3: &[(&str, &str)] =
    &[("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")];

const STEP_4: &[&str] = &[
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
];

/// The stem of a word of lower-case ASCII letters and digits.
pub fn stem(word: &str) -> String {
    if let Some((_, stem)) = IRREGULAR.iter().find(|(form, _)| *form == word) {
        return (*stem).to_owned();
    }
    if word.len() <= 2 {
        return word.to_owned();
    }
    let word = step_1c(step_1b(step_1a(word)));
    let word = step_2(word);
    let word = replaced(&word, STEP_3).unwrap_or(word);
    step_5(step_4(word))
}

/// Which letters are consonants. `y` is a consonant at the beginning and after a vowel.
fn consonants(word: &str) -> Vec<bool> {
    let mut flags: Vec<bool> = Vec::with_capacity(word.len());
    for letter in word.bytes() {
        flags.push(match letter {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => flags.last().is_none_or(|before| !before),
            _ => true,
        });
    }
    flags
}

/// Porter's m: how often a consonant follows a vowel.
fn measure(stem: &str) -> usize {
    consonants(stem).windows(2).filter(|pair| !pair[0] && pair[1]).count()
}

fn has_vowel(stem: &str) -> bool {
    consonants(stem).contains(&false)
}

/// Porter's condition *o, with NLTK's rule for two letters.
fn ends_cvc(word: &str) -> bool {
    match consonants(word)[..] {
        [.., true, false, true] => !word.ends_with(['w', 'x', 'y']),
        [false, true] => true,
        _ => false,
    }
}

/// Replaces the first matching ending if the stem before it has a measure above 0; `None` if no
/// ending matches.
fn replaced(word: &str, rules: &[(&str, &str)]) -> Option<String> {
    let (stem, with) = rules.iter().find_map(|(ending, with)| Some((word.strip_suffix(ending)?, with)))?;
    Some(if measure(stem) > 0 { format!("{stem}{with}") } else { word.to_owned() })
}

fn step_1a(word: &str) -> String {
    if let Some(stem) = word.strip_suffix("ies") {
        return format!("{stem}{}", if word.len() == 4 { "ie" } else { "i" });
    }
    if let Some(stem) = word.strip_suffix("sses") {
        return format!("{stem}ss");
    }
    match word.strip_suffix('s') {
        Some(stem) if !stem.ends_with('s') => stem.to_owned(),
        _ => word.to_owned(),
    }
}

fn step_1b(word: String) -> String {
    if let Some(stem) = word.strip_suffix("ied") {
        return format!("{stem}{}", if word.len() == 4 { "ie" } else { "i" });
    }
    if let Some(stem) = word.strip_suffix("eed") {
        return if measure(stem) > 0 { format!("{stem}ee") } else { word };
    }
    let stems = ["ed", "ing"].iter().filter_map(|ending| word.strip_suffix(ending));
    let Some(stem) = stems.into_iter().find(|stem| has_vowel(stem)) else { return word };
    if ["at", "bl", "iz"].iter().any(|ending| stem.ends_with(ending)) {
        return format!("{stem}e");
    }
    let (letters, flags) = (stem.as_bytes(), consonants(stem));
    if let [.., before, last] = letters
        && before == last
        && flags.last() == Some(&true)
    {
        return if b"lsz".contains(last) { stem.to_owned() } else { stem[..stem.len() - 1].to_owned() };
    }
    if measure(stem) == 1 && ends_cvc(stem) { format!("{stem}e") } else { stem.to_owned() }
}

fn step_1c(word: String) -> String {
    match word.strip_suffix('y') {
        Some(stem) if stem.len() > 1 && consonants(stem).last() == Some(&true) => format!("{stem}i"),
        _ => word,
    }
}

fn step_2(word: String) -> String {
    if let Some(stem) = word.strip_suffix("alli").filter(|stem| measure(stem) > 0) {
        return step_2(format!("{stem}al"));
    }
    if let Some(replaced) = replaced(&word, STEP_2) {
        return replaced;
    }
    // The measure includes the `l`, so that short stems (`geo`) match too.
    match word.strip_suffix("logi") {
        Some(_) if measure(&word[..word.len() - 3]) > 0 => word[..word.len() - 1].to_owned(),
        _ => word,
    }
}

fn step_4(word: String) -> String {
    let stem = STEP_4.iter().find_map(|ending| Some((*ending, word.strip_suffix(ending)?)));
    match stem {
        Some((ending, stem)) if measure(stem) > 1 && (ending != "ion" || stem.ends_with(['s', 't'])) => stem.to_owned(),
        _ => word,
    }
}

fn step_5(mut word: String) -> String {
    if let Some(stem) = word.strip_suffix('e') {
        let m = measure(stem);
        if m > 1 || m == 1 && !ends_cvc(stem) {
            word = stem.to_owned();
        }
    }
    if word.ends_with("ll") && measure(&word[..word.len() - 1]) > 1 {
        word.pop();
    }
    word
}
