# MT-Bench: questions in one file, answers of a model in another. The first choice counts.
.question_id as $id | .tstamp as $time
| if .choices then .choices[] | select(.index == 0) | .turns | to_entries[] | select(.value != "ERROR")
    | {conversation: $id, speaker: "agent", text: .value, time: $time, order: [.key, 1]}
  else .turns | to_entries[] | {conversation: $id, speaker: "user", text: .value, order: [.key, 0]} end
