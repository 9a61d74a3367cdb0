#: {"branch": true, "settle_s": 1}
# OpenAI's responses with their requests: each continues the one before, or a conversation, or brings the history along.
# A call that failed has its question only.
(.request | meant) as $request | (.response | meant | if type == "object" then . else events_of.events | map(.response | objects) | last // {} end) as $response
| ($response.conversation // $request.conversation | if type == "object" then .id else . end) as $conversation
| ($request.previous_response_id // $response.previous_response_id) as $before | ($response.created_at // .timestamp // .created_at) as $time
| ($response.id // .id // .request_id // "request \($source.path):\($source.number)") as $id | ($time | seconds) as $order
| def said: select((.type // "message") == "message") | {speaker: (.role | role), time: $time, text: (.content | content_text)};
  [$request.input | if type == "string" then {role: "user", content: .} else .[]? end | said] as $input
| [if .error or $response.error or ($response.status | IN("failed", "cancelled", "in_progress")) then empty else $response.output[]? | said end] as $output
| if $before or $conversation then [$input[] | select(.speaker == "user")] + $output | length as $count | to_entries[] | .value + {conversation: $conversation,
      id: (if .key + 1 == $count then $id else "\($id)/\(.key)" end), parent: (if .key == 0 then $before else "\($id)/\(.key - 1)" end), order: (if $order then [$order, .key] else null end)}
  else {id: $id, conversation: $id, guess: true, time: $time, order: (if $order then [$order, 0] else null end), messages: ($input + $output[:-1]), answer: (first($output[-1:][] | . + {id: $id}) // null)} end
