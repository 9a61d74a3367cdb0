//! The grammar of refusals: who lacks what, and where it is not said.
//!
//! Patterns read one clause in the plain spelling of `clauses`, where each word follows a space. They are built of
//! classes of words: who speaks, what the sources are called, what verbs of having, finding and telling there are, and
//! what can be lacking. Words of the subject match anything.

use std::sync::LazyLock;

use regex::Regex;

use super::clauses::{Clause, plain_pattern as pattern};

/// Adverbs between an auxiliary and a verb.
const ADV: &str = r"(?: (?:\w+ly|also|yet|even|just|at all|still|ever|here|quite|either|again|of course|in fact|at present|at the moment|as yet|to me|for me|myself))*";
/// A negated auxiliary verb.
const NOT: &str = r"(?: (?:do|does|did|can|could|will|would|have|has|had|may|might|be|is|are|was|were|am|seems?|appears?)ADV (?:not|never)| (?:never|no longer|nowhere|hardly|barely))ADV(?: (?:seem|appear|want|manage|be able)s?(?: to)?)?";
/// Forms of *be* and verbs like it.
const BE: &str = r"(?: (?:is|are|was|were|be|been|being|has been|have been|had been|remains?|seems?(?: to be)?|appears?(?: to be)?|to be))ADV";
/// The assistant, speaking of itself.
const FIRST: &str = r" (?:i|we|(?:this|the|your) (?:assistant|chatbot|bot|agent|language model))(?: (?:simply|really|just|honestly|truly|unfortunately|currently|still|sadly|regrettably|also|personally|actually|frankly|therefore|must say|have to say))*";
/// Whether sources were given, found or may be used.
const QUALITY: &str = r"(?:provided|given|available|retrieved|supplied|above|attached|cited|uploaded|accompanying|existing|present|received|returned|indexed|selected|quoted|accessible|underlying|consulted)";
/// Words before the name of sources.
const DET: &str = r"(?: (?:the|these|those|this|that|my|our|your|any|all|both|of|some|one|two|three|four|five|six|several|other|first|second|last|relevant|source|reference|listed|search|full|whole|entire|short|few|various|different|current|specific|text|same|single|QUALITY|and|in|or|to hand))*";
/// Names of sources that are hardly ever what an answer is about.
const SOURCE: &str = r"(?:passages?|contexts?|sources?|excerpts?|extracts?|snippets?|knowledge base|search results?|corpus|corpora|source material|source materials)";
/// Names of sources that an answer may be about too.
const PAPER: &str = r"(?:documents?|texts?|materials?|articles?|pages?|records?|documentation|docs|files?|references?|literature|notes?|manuals?|guides?|guidebooks?|reports?|contents?|logs?|leaflets?|brochures?|transcripts?|pieces|paragraphs?|sections?|chunks?|websites?|information|info|data|database|background|evidence|results?|collections?|handbooks?|menus?|books?|faqs?|facts|policy|policies|index)";
/// Names of texts, among those.
const TEXTS: &str = r"(?:documents?|texts?|materials?|articles?|pages?|documentation|docs|references|literature|information|info|background|notes)";
/// Words before the subject of a clause.
const LEAD: &str = r"^(?: (?:and|or|that|unfortunately|sadly|regrettably|sorry|as|because|since|apparently|given that|while|though|although|,))*";
/// Words between the sources and their verb.
const AFTER: &str = r"(?: (?:i|we|you|that|which|were|was|are|is|have|has|had|been|to|for|me|us|at|in|hand|here|on|about|this|the|from|can|could|consult|see|access|received|got|found|retrieved|seen|read|question|search|query|so far|above|QUALITY|\w+ly)){0,7}?";
/// Verbs of sources that say something.
const TELL: &str = r"(?: (?:mention|specif|stat|say|tell|address|discuss|indicat|explain|clarif|describ|reveal|disclos|elaborat|touch|answer|refer|speak|name|detail|comment|note|deal|go into|go so far|get around|allude|settle|spell|shed|let me|let us|allow me|allow us|enable me|help|identif|confirm|establish|defin|quantif|report|resolv|pinpoint|outlin|elucidat|hint|mak|resolv|rais|bring up|brings up|permit|allow|get as far as|get to|go as far as)\w*)";
/// Verbs of sources that have something.
const HOLD: &str = r"(?: (?:contain|includ|provid|cover|give|giving|gave|list|offer|have|having|had|has|hold|show|present|suppl|carr|extend|reach|appear|seem|go|suggest|support|bear|relat|record|compar|featur|yield|return)\w*)";
/// What can be lacking.
const THING: &str = r"(?: (?:information|info|details?|data|answers?|knowledge|passages?|documents?|sources?|materials?|context|mention|references?|figures?|clues?|idea|specifics|anything|something|indications?|statements?|explanations?|descriptions?|statistics|facts?|results?|entry|entries|guidance|insights?|word|words|hints?|trace|inkling|basis|records?|numbers?|particulars|notion|access|luck|examples|visibility))";
/// Up to some words before what is lacking.
const SOME: &str = r"(?: (?:\w+)){0,5}?";
/// Participles of what sources do with facts.
const GIVEN: &str = r"(?: (?:specified|mentioned|stated|provided|given|covered|available|discussed|described|addressed|listed|included|disclosed|documented|indicated|found|explained|detailed|reported|named|contained|dealt with|answered|shown|recorded|present|to be found|noted|touched(?: up)?on|clear|clarified|revealed|identified|supplied|part|said|defined|there|treated|supported|referenced|elaborated(?: on)?|known|set out|spelled out|spelt out|evident|apparent|obvious|quoted|anywhere|set|captured|represented|offered|made clear))";
/// Before sources: where something is not said.
const IN: &str = r"(?: (?:in|by|within|among|amongst|from|through|across|inside|on|of|based on|given|with|using|according to|anywhere in|as part of|out of|at))";
/// What an assistant does for who asks.
const SERVE: &str = r"(?: (?:answer|say|tell|find|provide|give|determine|confirm|help|assist|locate|offer|respond|explain|recommend|advise|comment|verify|identify|establish|work (?:it |that |this )?out|make out|derive|conclude|speak|do (?:so|that|this|it)|share|state|specify|name|list|describe|discuss|access|retrieve|look|check|know|guess|estimate|judge|assess|reply|compare|decide|supply|point|report|quote|infer|deduce|pinpoint|clarify|elaborate|address|resolve|back|vouch|trace|discern|ascertain|fulfil+|comply|be (?:of (?:\w+ )?(?:help|use|assistance)|sure|certain|more specific)|satisfy|figure|present|disclose|go into|attest|settle|predict|accurately|definitively|gather|extract|obtain|track|come up|assert|rule))";
/// States of who does not know.
const UNSURE: &str = r"(?: (?:sure|certain|aware|confident|able|in a position|familiar|in possession|informed|equipped|qualified|acquainted|privy|knowledgeable|the right|allowed|permitted|clear|positive|capable|authori[sz]ed|entirely sure))";

/// A pattern, and whether it holds only at the beginning of a clause.
fn build(text: &str) -> Regex {
    let mut text = text.to_owned();
    let classes = [
        ("{not}", NOT),
        ("{be}", BE),
        ("{first}", FIRST),
        ("{det}", DET),
        ("{source}", SOURCE),
        ("{paper}", PAPER),
        ("{after}", AFTER),
        ("{tell}", TELL),
        ("{hold}", HOLD),
        ("{thing}", THING),
        ("{some}", SOME),
        ("{given}", GIVEN),
        ("{in}", IN),
        ("{serve}", SERVE),
        ("{unsure}", UNSURE),
        ("{adv}", ADV),
        ("{texts}", TEXTS),
        ("{lead}", LEAD),
    ];
    // `{sources}` names sources for certain: by their name, by a word that says they were given, or by their owner.
    let sources = format!(
        "(?:{DET} {SOURCE}|{DET} (?:QUALITY|my|our)(?: \\w+)? {PAPER}|{DET} {PAPER}(?: (?:that )?(?:i|we) (?:was|were|have|had|can|could|am|found|got)|(?: (?:that|which) (?:was|were|are))? (?:QUALITY|at hand|here|at my disposal))\\b)"
    );
    let any = format!("(?:{sources}|{DET} {PAPER})");
    text = text.replace("{sources}", &sources).replace("{any}", &any);
    for (name, class) in classes {
        text = text.replace(name, class);
    }
    pattern(&text.replace("ADV", ADV).replace("QUALITY", QUALITY))
}

/// The patterns of clauses that decline, by who lacks what.
static REFUSALS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // The assistant does not have, find or know something.
        r"{first}{not} (?:have|hold|possess|get|got){adv} (?:any|enough|sufficient|adequate|specific|detailed|exact|the|that|this|those|these|access|it|details?|information|info|data|much|more|further|complete|precise|reliable|current|anything|documents|knowledge|what|one|a (?:specific|definite|definitive|clear|precise|reliable|good|full|complete|record|clue|source|list|figure|number|way|answer|document|passage))\b",
        r"{first}{not} (?:have|hold|possess|get|got){some}{thing}\b",
        r"{first}{not}{adv} (?:find|found|locate|located|retrieve|retrieved|discover|discovered|come across|came across|spot|spotted|detect|turn up|encounter|encountered|uncover|trace|obtain|establish|identify)\b",
        r"{first}{not}{adv} (?:see|seen|recall|notice|noticed){some}(?:{thing}| any| where| that| it)\b",
        r"{first}{not}{adv} know\b",
        r"{first}(?: (?:am|are|was|were|have been|had been))(?:ADV| (?:\w+))? (?:not|never){adv}{unsure}\b",
        r"{first}(?: (?:am|are|was|were|have been|remain))ADV (?:unable|unsure|uncertain|unaware|ignorant|incapable|at a loss|in the dark|powerless|without|missing|lacking|clueless|unfamiliar|short of|out of my depth|none the wiser|stumped)\b",
        r"{first} (?:can|could){adv} (?:not|never){adv}(?: (?:be able to|seem to|manage to|claim to|pretend to|hope to|wish to|want to|help but))?{adv}{serve}\b",
        r"{first} (?:will|would|may|might|do|did|must|should){adv} not{adv} (?:be able to|be in a position to|answer|comment|guess|speculate|know|be of (?:much |any )?help|be certain|be sure)\b",
        r"{first}(?: (?:am|are|was|were|have been)){adv} not{adv} (?:given|provided|shown|supplied|told)\b",
        r"^(?: (?:and|or|nor|that|this|unfortunately|sadly))*{first} can{adv} not$",
        r"{first}{adv}(?: (?:have|had|got|have got|find|found|hold|possess|know|see|saw|came across|come across|can find|could find|can see|could see|can offer|can give|can say|could locate|can tell you|retrieved|received|was given|were given|got back)){adv} (?:no|nothing|none|little|too little|very little|not enough|insufficient|zero|neither|not (?:a|one)(?: single)?)(?:{some}{thing}\b| (?:on|about|regarding|concerning|to go on|relevant|of|in|more|that|here|for|whatsoever|at all|such)\b|$)",
        r"{first}{adv}(?: (?:have|had|got)){adv} (?:no|neither|nothing|none)\b",
        r"{first}{adv} (?:lack|lacked|fail to|failed to|come up (?:empty|short|blank)|came up (?:empty|short|blank)|came (?:away|back) (?:with nothing|empty)|draw a blank|drew a blank)\b",
        r"{first}{adv} (?:must|have to|need to|will|would|had better|am going to) (?:have to )?(?:decline|pass|abstain|refrain|leave (?:that|this|it|the question))\b",
        r"{first} would(?:{adv} (?:rather|prefer) not| (?:only|just|merely)? ?(?:have to |need to )?be (?:only |just |merely )?(?:guessing|speculating|a guess)| have to (?:guess|speculate|invent))",
        r" (?:would|will|could) (?:only |just |merely )?be (?:a |pure |mere |sheer |idle )*(?:guess|guesswork|speculation|conjecture)\b",
        r"{first} wish{first} could\b",
        r" (?:searched|looked|went|read|checked|combed){some}(?: \w+){0,8} (?:in vain|to no avail|without (?:success|result|luck|finding)|found nothing|came (?:away|back) (?:with nothing|empty)|(?:and|but) (?:there )?(?:is|was) nothing)\b",
        r"{first} (?:do|did) not{adv} (?:think|believe)(?: that)?(?:{sources}|{any})\b",
        r" (?:none|nothing|little|not much) of (?:what|that) (?:i|we|was|is)\b",
        r"^(?: (?:\w+|,)){0,8}? not in (?:there|here)$",
        r"{lead}(?: (?:in|within|from|by|according to|on the basis of)){sources}.*{be}{adv} (?:not|never){adv}{given}\b",
        r" (?:knowledge|information|data|materials?|documents?|sources?|passages?) (?:i|we) (?:have|had|was given|were given|can see|can access|hold|received|found){not}\b",
        r"{be}{adv} not{adv} (?:mentioned|covered|specified|described|explained|addressed|discussed|listed|stated|answered|given)(?: (?:there|here|in (?:it|them|there|here|any of them)))$",
        r" (?:beats|eludes|escapes) (?:me|us|the (?:documents|sources|passages|texts))\b| your guess is as good",
        // Only the passages, or only these topics.
        r"{first} (?:can|may|am able to|am allowed to|am permitted to) only (?:answer|help|talk|assist|discuss|speak|respond)\b",
        r"{first} (?:can|may|must) (?:answer|help|assist)(?: \w+){0,4} only\b",
        // The knowledge of the assistant.
        r" (?:my|our) (?:knowledge|expertise|information|training|data|sources?|documents?|records?|notes|material|search|memory)(?: \w+){0,4}?{not}\b",
        // The sources do not say or have it.
        r"{sources}{after}{not}{adv}(?:{tell}|{hold})\b",
        r"{lead}{any}{not}{adv}{tell}\b",
        r"{lead}{det} {texts}{not}{adv}{hold}\b",
        r"{lead} (?:it|they|neither|none|these|this){not}{adv}(?: (?:mention|specif|stat|say|tell|explain|indicat|disclos|elaborat|address|discuss|provid|contain|includ|give|clarif|cover|describ)\w*)(?:(?: (?:any|enough|specific|detailed|exact|explicit|further|more|much|that|this|the answer|what|which|who|how|why|when|where|whether|if|about|anything|details?|information))\b|{some}{thing}\b|$)",
        r"{any}{after}{not}{adv}(?:{tell}|{hold}(?: (?:who|what|when|where|whether|how|which|why)|{some}(?:{thing}| specific| any| the answer| enough)))\b",
        r"{any}{after}{adv} (?:lacks?|omits?|lacked|stops? short|falls? short|cuts? off|leaves? (?:out|open|unanswered|it|that|this|the question|us)|(?:is|are|remains?|stays?|was|were|keeps?|kept){adv} (?:silent|mute|mum|quiet|tight-lipped|insufficient|inadequate|too (?:vague|short|general|thin|sparse|limited)|unclear|vague|irrelevant|of no (?:help|use)|not (?:enough|sufficient|helpful|relevant|clear|explicit|specific|about|related|useful|concerned)|unrelated|no help)|fails? to|failed to|neglects? to|ends? before)\b",
        r"{any}{after}{adv} (?:say|give|contain|have|has|hold|offer|provide|include|make|mention|show|tell|list|reveal|carry|supply|return|yield|bring|turn|found|returned|yielded|produced|gave|contained|brought|turned|came|had|offered|provided|made|said|shed)(?:s|es)?(?: (?:us|me|you|up|back|out))? (?:nothing|no{some}{thing}|little|none|neither|empty|blank|not (?:a|one) (?:word|single)|no (?:light|such)|zero)\b",
        r"(?:{sources}|{lead}{any}){after}{adv} (?:give|offer|provide|name|state|list|mention|quote|cite|show)s? no\b",
        r"(?:{sources}|{lead}{det} {texts}){after}{adv} (?:have|has|contain|contains|include|includes|hold|holds)? no (?:entry|entries|mention|word|chapter|section|answer|description|explanation)\b",
        r"{not}{adv} (?:appear|occur|figure|feature|come up|show up|surface|turn up|crop up|exist|emerge|follow)(?: anywhere)?{in}(?:{sources}| (?:the|these|this|my|our|any|those){any})\b",
        r"^(?: (?:sadly|unfortunately))* not (?:all|every|everything|each|much)(?: \w+){0,5}{be}{given}{in}(?:{sources}|{any})\b",
        r" (?:search|searches|query|queries|lookup|look-up|retrieval)(?: \w+){0,6} (?:found|returned|turned up|yielded|produced|gave|brought up|came up|came back|did not|had|yields|returns|finds)(?: \w+){0,2} (?:nothing|no (?:\w+ )?(?:results?|hits?|matches|documents?|passages?|information|mention|answers?|data|details|sources?|entry|entries)|empty|blank|with nothing|return|find|turn|yield|produce|zero)\b",
        r" (?:none|neither|not one|not any|not a single one|no one|no|not a single){adv}(?:{sources}|{any})(?: \w+){0,4}?(?:{tell}|{hold})\b",
        r" (?:none|neither|not one) (?:of (?:them|these|those|it) )?(?:mentions?|says?|states?|covers?|answers?|addresses|deals?|touch(?:es)?|tells?|explains?|contains?)\b",
        r" (?:no|few) (?:\w+ ){0,2}(?:passages?|documents?|sources?|results?|excerpts?|snippets?|hits?|match(?:es)?|records?) (?:\w+ ){0,3}?(?:found|retrieved|returned|available|match|matched|mention|mentions|covers?|answers?|deals?|address|addresses|explains?|discuss|discusses|relates?|provided|contains?|says?|gives?|touch|touches|on|about|for)\b",
        r" (?:nothing|nowhere|not anywhere|anywhere){some}(?:{in}|{not})?{some}(?:{sources}| (?:the|these|this|that|my|our) {paper})\b",
        r" nothing (?:was|is|were|has been|could be|can be){adv} (?:found|said|stated|mentioned|available|provided|retrieved|returned|given|written|reported)\b",
        r"^(?: (?:there is|i see|i found|i find|i have))? ?nothing (?:that )?(?:i (?:have|was|can|found|know|read|received)|we (?:have|were|can|found|know)|here|relevant|on (?:this|that|it)|about (?:this|that|it))\b",
        // It is not in the sources.
        r" not{adv}(?:{given}(?: (?:\w+ly|at all))?)?(?: (?:or|and|nor)(?: \w+)?{given})?(?: (?:for|to) (?:me|us|you))?{in}(?:{sources}| (?:the|these|this|my|our|what|any|those|either|all|anything){any}| (?:what|anything) (?:i|we|was|has|is))\b",
        r" left (?:open|out|unanswered|blank|unsaid|aside|unexplained|unclear)(?: \w+){0,2}{in}(?:{sources}| (?:the|these|this|my|our|those){any})\b",
        r" (?:at no point|nowhere|in no (?:place|passage|part|section)|in none|on none|in neither)(?: \w+){0,5}? (?:do|does|did|is|are|was|were|have|has|can|could)(?:{sources}|{any}|{first})\b",
        r" no (?:\w+ ){1,5}?(?:is|are|was|were|has been|have been){adv}{given}{in}(?:{sources}| (?:the|these|this|my|our|those){any})\b",
        r"^(?: (?:none|not|nothing|nobody))(?: one)? (?:that|which|as far as)(?: (?:i|we|the (?:passages|documents|sources|text|texts|context)|these (?:passages|documents|sources)))\b",
        r"{first} can neither{serve}\b",
        r"{first} (?:have|had|has) not{adv} been (?:given|provided|told|shown|supplied|informed|able)\b",
        r"^(?: (?:sorry|unfortunately))? can not{adv} be{adv} (?:answered|determined|said|known|established|told|confirmed|inferred)\b",
        r" (?:is|are|was|were) (?:simply |far |way |well )?beyond me\b",
        r"{be}{given}(?: \w+){0,2} nowhere\b| nowhere{be}?{given}\b",
        r"{be}{adv} not (?:\w+ ){0,2}(?:something|anything|a (?:topic|question|subject|matter|point|detail|fact)|among|what|part of|one){some}(?:{sources}|{any}| i| we| me| us|{given})\b",
        r" not (?:among|part of) (?:the )?(?:\w+ )?(?:facts|things|topics|details|points|questions)\b",
        r" (?:absent|missing|omitted|left out|excluded|lacking) (?:from|in|out of)(?:{sources}| (?:the|these|this|my|our|those){any}| what (?:i|we|was))",
        r" (?:beyond|outside|exceeds|not within|out of)(?: of)?(?: the)?(?: scope| range| reach| remit| bounds| coverage)? (?:of )?(?:(?:my|our) (?:\w+ )?(?:scope|knowledge|reach|range|remit|area|field|expertise|abilities|capabilities|competence|information|data|sources?|documents?|materials?|training|power|depth)|what (?:i|we|is|was|the|these|my)\b|the (?:scope|range|reach|remit) of (?:my|our|this|what|these))\b",
        r" (?:beyond|outside|exceeds)(?: of)?(?: the)?(?: scope| range| reach| coverage)?(?: of)?{sources}\b",
        r"(?:^| is| falls) (?:out of|outside(?: of)?|beyond) (?:the )?(?:my )?scope\b",
        // There is no information.
        r" (?:there|here){be} (?:no|not (?:any|enough|much|sufficient|a single|adequate)|never any|insufficient|too little|very little|little|hardly any|limited|nothing){adv}(?: (?:explicit|\w+(?:ed|ant|ic|al|ive|ful|ent|ing|ct|ar|ble|er|te|se|ch|rect|ise|ther|nal|and|or)))*(?: (?:information|info|details?|data|answers?|knowledge|passages?|documents?|sources?|materials?|context|mention|references?|clues?|specifics|anything|statements?|explanations?|descriptions?|entry|entries|guidance|insights?|word|words|hints?))(?:$| (?:about|on|regarding|concerning|in|for|of|to|that|here|available|given|provided|as|which|how|what|whether|who|why|when|where|i|we|from|with|related|relating|covering|answering|specific|at|found|is|are|was|were|present|within|or|and|about)\b)",
        r" there{be} (?:nothing|not anything|no mention|no word|no reference|no answer)(?: \w+){0,3}? (?:in|about|on|regarding|concerning|here|that|to|of)\b",
        r" there{be} no (?:way|telling|knowing|saying)\b(?: \w+){0,2}?(?: (?:tell|know|knowing|telling|say|saying|determin\w*|confirm|be sure|from|how))",
        r"^(?: (?:and|sorry|so|but|sadly|unfortunately|regrettably))* (?:no|not enough|insufficient|zero|not sufficient)(?: (?:relevant|specific|such|further|additional|detailed|explicit|definite|direct|precise|clear|exact|useful|reliable|related|matching|suitable|definitive))*(?: (?:information|info|details?|answers?|mention|passages?|documents?|sources?|record|reference|results?|context|idea|clue|match|matches|explanation|figures?|indication|data))(?:$| ,|{be}{given}| (?:about|on|regarding|concerning|could be|can be|for|given|found|available|provided|returned|retrieved|in|of|to|at|here|made|that|as|how|why|what|which|who|when|where|whether|from)\b)",
        r"^(?: (?:and|sorry|so|sadly|unfortunately|regrettably))* not enough{some} (?:was|is|were|has been)\b",
        r" (?:not (?:enough|sufficient|adequate)|insufficient|too little|inadequate)(?: (?:\w+)){0,3}?(?:{thing}| to go on| to go by)\b",
        r"(?:{sources}|{any}| information| context){be} (?:not (?:enough|sufficient|adequate)|insufficient|inadequate)\b",
        r" (?:not (?:enough|sufficient)|insufficient) to (?:answer|say|tell|determine|conclude|establish)\b",
        // A fact is not given.
        r"^(?: (?:\w+|,)){0,10}? (?:information|info|details?|answers?|data|specifics|explanation|question|topic|subject|request|query|matter|point)(?: \w+){0,8}?(?:{be}){0,1}{adv} not{adv}{given}{adv}(?:$| (?:to|for) (?:me|us)| here| yet| in| by| from| at)",
        r"^(?: (?:and|or|because|since|as|but|sorry|unfortunately|sadly|,))* (?:it|this|that|which|these|those){be}{adv} not{adv} (?:specified|mentioned|stated|covered|documented|discussed|addressed|answered|described|explained|disclosed|given|said|indicated|reported|listed)(?: (?:\w+ly|here|anywhere|at all|to me))*$",
        r"^(?: (?!|)[\w,-]+){1,12}? (?:is|are|was|were|has been|have been) not{adv} (?:specified|mentioned|stated|disclosed|documented|indicated)(?: (?:\w+ly|here|anywhere|at all))*$",
        r"^(?: (?:\w+ly))* not(?: \w+ly)* (?:specified|mentioned|stated|given|known|found|covered|addressed|disclosed|discussed|said|answered|answerable|documented)(?: here| at all| to me)?$",
        r"^(?: the answer is)? (?:unknown|unanswerable|idk|unspecified|no idea|no clue|n/a|dunno|not known|no comment)(?: to me| here)?$",
        r" (?:unknown|unclear|not clear|not known|uncertain|a mystery) to (?:me|us)\b",
        r" (?:unclear|not clear|unknown|not known|uncertain|undetermined|unspecified|not evident|not obvious|not apparent|impossible|not possible|hard|difficult|unanswered|no telling)(?: (?:to|for) (?:me|us|say|tell|determine|know|answer|judge|establish|conclude|give))*(?: \w+){0,4}?(?: (?:from|in|by|based on|given|according to|with|using|on the basis of))(?:{sources}| (?:the|these|this|my|our|what|those){any}| what (?:i|we|was|is))\b",
        r" (?:impossible|not possible|hard|difficult) for (?:me|us) to (?:say|tell|answer|know|judge|determine|give|provide|help|confirm|verify|find)\b",
        r" (?:impossible|not possible) to (?:say|tell|determine|know|answer|give|provide)\b(?: \w+){0,12}(?: (?:from|in|by|based on|given|according to|with|using|without))(?:{sources}|{any}| what| more| further| additional)",
        r" (?:can|could|may) not{adv} be{adv} (?:determined|said|told|answered|established|inferred|derived|concluded|deduced|confirmed|verified|known|found|ascertained|worked out|gathered|seen|gleaned|understood|taken|discerned|identified|judged|drawn|learned|extracted|read)(?: \w+){0,8}?{in}(?:{sources}| (?:the|these|this|my|our|what|those){any}| what (?:i|we|was|is))\b",
        r"(?: (?:the|your|this|that) (?:question|answer|query|request)(?: \w+){0,6}?|^ (?:it|this|that)) (?:can|could) not{adv} be{adv} (?:answered|determined|found|given|established|inferred|derived|told|resolved|provided|fulfilled|ascertained|addressed|processed)\b",
        r" (?:it|that|this){be}? (?:impossible|not possible) to (?:answer|say|tell)$",
        r" (?:question|it|that|this)(?: \w+){0,3}{be} unanswer(?:ed|able)\b",
        r" (?:information|details?|data|specifics|answer|facts?)(?: \w+){0,8}?{be}(?: \w+ly)* (?:missing|unavailable|absent|lacking|inaccessible|insufficient|unclear|unknown|incomplete)\b",
        r"^(?: (?:sorry|unfortunately))? (?:such |relevant |the |this |that )?(?:information|answer|details|data) (?:not|un)\s?(?:available|found|known|provided)$",
        r" (?:documents|sources|passages|information|material)(?: \w+){0,4} (?:does|do) not (?:extend|reach|go)(?: \w+){0,2} (?:far|back|beyond|to|into)\b",
    ]
    .iter()
    .map(|text| build(&text.replace("(?!|)", "")))
    .collect()
});
/// Conditions: what follows them is not said to be so.
static CONDITION: LazyLock<Regex> =
    LazyLock::new(|| pattern(r" (?:if|unless|in case|provided that|assuming|whenever|as long as|in the event)\b"));
/// Times and reasons, which are conditions where a main clause follows.
static WHEN: LazyLock<Regex> = LazyLock::new(|| pattern(r" (?:when|where|once|until|wherever)\b"));
/// What somebody else says or thinks.
static REPORTED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r" (?:said|says|stated|claimed|claims|replied|told|testified|wrote|writes|argued|admitted|believed|believes|thought|ruled|held|decided|knew|felt|responded|denied|insisted|complained|warned|asked)\b",
    )
});
/// Phrases of certainty that have the words of a refusal.
static CERTAIN: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r" i (?:do|did|can|could|would) not (?:know (?:anyone|anybody|of a better|a better)|see (?:why not|any reason|a reason|a problem))| (?:i|we) (?:have|had|see|found|find) no (?:doubt|objection|problem|reason to|preference|choice)| not (?:only|just|merely) | i (?:can|could) not (?:recommend \w+ (?:enough|highly)|say no|find fault)| no (?:evidence|indication) (?:that|of)",
    )
});

/// After a clause about the sources, they are *they*.
static THEY: LazyLock<Regex> = LazyLock::new(|| {
    build(
        r"{lead}(?: (?:it|they|neither|none))?{not}{adv}(?:{tell}|{hold})\b|^ not (?:the|their|its|his|her|a|an|any|what|who|when|how|why|which|whether|where|to)\b",
    )
});
/// Names of the sources.
static SOURCES: LazyLock<Regex> = LazyLock::new(|| build(r"(?:{sources}|{any})\b"));

/// Whether a clause names the sources.
pub(super) fn names_sources(clause: &str) -> bool {
    SOURCES.is_match(clause)
}

/// Whether a clause says of the sources, which the clause before has named, that they lack something.
pub(super) fn they_lack(clause: &Clause<'_>) -> bool {
    THEY.find(clause.text).is_some_and(|found| holds(clause, found.start(), found.end()))
}

/// Whether a clause declines: its speaker or its sources lack what is asked.
pub(super) fn declines(clause: &Clause<'_>) -> bool {
    let text = clause.text;
    if CERTAIN.is_match(text) {
        return false;
    }
    REFUSALS.iter().any(|refusal| refusal.find(text).is_some_and(|found| holds(clause, found.start(), found.end())))
}

/// Whether what is matched is said to be so: neither under a condition nor by somebody else.
fn holds(clause: &Clause<'_>, start: usize, end: usize) -> bool {
    let (before, after) = (&clause.text[..start], &clause.text[end..]);
    let goes_on = clause.goes_on || after.split(" ,").skip(1).any(|part| part.split(' ').count() > 3);
    !(CONDITION.is_match(&clause.text[..end])
        || REPORTED.is_match(before)
        || goes_on && WHEN.is_match(&clause.text[..end]))
}
