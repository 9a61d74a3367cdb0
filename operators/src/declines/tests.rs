//! Tests of refusals, answers and questions back, each in wordings of several kinds.

use super::*;

fn expect(want: Stance, texts: &[&str]) {
    let wrong: Vec<_> = texts.iter().filter(|text| stance(text) != want).map(|text| (text, acts(text))).collect();
    assert!(wrong.is_empty(), "{want:?}: {wrong:#?}");
}

#[test]
fn speakers_and_sources_that_lack_something_decline() {
    expect(
        Stance::Declines,
        &[
            // The assistant.
            "I don't have that information.",
            "We hold no data on the harbour.",
            "I was unable to find the timetable.",
            "I've come across no mention of a fee.",
            "Who the owner is, I cannot tell.",
            "I cannot explain how to get there.",
            // The sources.
            "The passages do not say when the ferry leaves.",
            "None of the excerpts deals with the winter.",
            "Nothing I was given mentions the price.",
            "The text is silent on the crew.",
            "The search returned no results.",
            "The sources name the captain, but not his ship.",
            // The fact.
            "The exact price is not stated.",
            "It cannot be determined from the context.",
            "That is not covered by the documents.",
            "There is no information about the northern route.",
            "When it closes is not mentioned in the text.",
            "Not enough information.",
            "Unanswerable.",
            // With what belongs to it.
            "I'm sorry, but I don't know. Please ask the harbour office.",
            "To book a cabin, unfortunately, I am unable to help you. Sorry.",
            "The documents only cover the southern route, so I can't answer that.",
            "I do not know [1]. Is there anything else I can help you with?",
            "[1]",
            "",
        ],
    );
}

#[test]
fn answers_may_have_negations() {
    expect(
        Stance::Answers,
        &[
            "The ferry does not run on Sundays.",
            "There is no charge for children.",
            "The documents do not have to be signed.",
            "If the date is not specified in the document, the contract runs for a year.",
            "When the server cannot find the information, it returns an error.",
            "He said that he did not know the answer.",
            "The message \"I do not have that information.\" is shown on the screen.",
            "No information is passed to third parties.",
            "The witness could not identify the man.",
            "It is not known who built the temple, but its stones come from Egypt.",
            "Sorry, but the offer has expired.",
            "I don't recommend it for beginners.",
            "Unknown callers can be blocked.",
            "Paris.",
            "42",
            "∞",
            "Mittags, und nicht am Sonntag.",
        ],
    );
}

#[test]
fn a_refusal_beside_an_answer_is_partial() {
    expect(
        Stance::Partly,
        &[
            "I do not have the price. However, the trip takes two hours.",
            "The ferry leaves at noon. The passages do not mention the price.",
            "Although the context gives no price, it says that the tour lasts two hours.",
            "The ferry leaves at noon; its price is not specified in the text.",
            "I don't know the price, but the trip takes two hours.",
        ],
    );
}

#[test]
fn questions_back_are_told_from_offers_and_from_questions_within_answers() {
    expect(
        Stance::Asks,
        &[
            "Which ferry do you mean?",
            "Could you specify the year?",
            "There are two ferries, one to the north and one to the south. Which one are you referring to?",
            "Please tell me the name of the island.",
            "Is this about the northern or the southern ferry?",
            "I am not sure which ferry you mean. Could you give its name?",
            "どちらのフェリーですか？",
        ],
    );
    expect(
        Stance::Answers,
        &[
            "You're welcome! Is there anything else I can help you with?",
            "Why do ferries float? They displace as much water as they weigh, and salt water helps.",
            "See https://example.com/docs?topic=ferries for the timetable.",
        ],
    );
    // A refusal that asks for more of anything remains a refusal.
    expect(Stance::Declines, &["I don't have that information. Could you provide more context?"]);
}

#[test]
fn further_wordings_of_refusals() {
    expect(
        Stance::Declines,
        &[
            "Frankly, I do not know.",
            "No clue, sorry.",
            "It's not in there.",
            "Whether it was granted cannot be seen from the context.",
            "In the documents I can access, the role of the treasurer is never defined.",
            "None of what I have read tells me which key opens the gate.",
            "The retrieved text is about something else entirely.",
            "I do not have that information. However, you may want to contact the office.",
            "According to the provided documents, there is no explicit information about the fare.",
        ],
    );
    expect(
        Stance::Answers,
        &["Your documents are not returned after the interview.", "The results were not confirmed by later studies."],
    );
}

#[test]
fn the_sources_may_be_they() {
    expect(
        Stance::Declines,
        &[
            "The passages discuss vaccines in general. They do not address the one you name.",
            "I searched for the recipe but couldn't find it.",
            "The excerpts focus on the architecture, and the cost of the building is not discussed.",
            "I'd like to help, but I have no information about bus connections.",
        ],
    );
    expect(Stance::Answers, &["There was no answer when the rescuers called.", "The tomb was not found."]);
}
