#: {"settle_s": 2}
# The history of conversations that Dialogflow CX writes to BigQuery: a row has a question and its answer.
(.conversation_name | split("/sessions/")[1]) as $id | (.turn_position | tonumber) as $at | .request_time as $time
| {speaker: "user", text: (.request.queryInput.text.text // .response.queryResult.transcript), part: 0},
  {speaker: "agent", text: ([.response.queryResult.responseMessages[]? | .text.text[]?] | join("\n")), part: 1,
    hand_over: (if any(.response.queryResult.responseMessages[]?; .liveAgentHandoff) then true else null end)}
| {conversation: $id, speaker, text, time: $time, order: [$at, .part], hand_over}
