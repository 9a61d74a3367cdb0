# CoQA: questions and answers are lists that belong together by `turn_id`.
.data[] | . as $story
| (.questions[] | {speaker: "user", text: .input_text, turn: .turn_id, order: [.turn_id, 0]}),
  (.answers[] | {speaker: "agent", text: .input_text, turn: .turn_id, order: [.turn_id, 1]})
| . + {conversation: $story.id}
