#: {"settle_s": 1}
# TopiOCQA: a row is one exchange. Rows come in any order, and more than once.
.Conversation_no as $id | .Turn_no as $turn
| {speaker: "user", text: .Question, at: 0}, {speaker: "agent", text: .Answer, at: 1}
| {id: "\($id)/\($turn)/\(.at)", conversation: $id, speaker, text, turn: $turn, order: [$turn, .at]}
