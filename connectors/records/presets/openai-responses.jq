#: {"branch": true, "settle_s": 1}
# OpenAI's responses with their requests: each continues the one before, or a conversation.
.request as $request | .response as $response | ($response.conversation.id // null) as $conversation
| ([$request.input | if type == "string" then {role: "user", content: .} else .[] end | select((.type // "message") == "message") | select(.role == "user")]
   + [$response.output[] | select(.type == "message")]) as $messages
| ($request.previous_response_id // $response.previous_response_id) as $before
| $messages | to_entries[]
| {id: (if .key == ($messages | length) - 1 then $response.id else "\($response.id)/\(.key)" end),
   parent: (if .key == 0 then $before else "\($response.id)/\(.key - 1)" end),
   conversation: ($conversation // if $before then null else $response.id end), speaker: (.value.role | role), time: $response.created_at, order: [$response.created_at, .key],
   text: (.value.content | if type == "string" then . else [.[] | .text // .refusal | strings] | join("\n") end)}
