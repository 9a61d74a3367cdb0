#: {"settle_s": 2}
# Spans of OpenLLMetry in OTLP/JSON, with attributes such as gen_ai.prompt.0.content: a span is a call of a model.
spans | attributes as $is | ($is | indexed("gen_ai.prompt")) as $said | select($said | length > 0)
| ($is | indexed("gen_ai.completion") | first) as $answer
| {id: .spanId, guess: true, order: (.startTimeUnixNano | tonumber), time: .startTimeUnixNano,
   conversation: ($is["gen_ai.conversation.id"] // $is["traceloop.association.properties.session_id"]
     // $is["traceloop.association.properties.conversation_id"] // null),
   messages: [$said[] | {speaker: (.role | role), text: (.content // "" | tostring)}],
   answer: (if $answer.content and (.status.code | IN(2, "STATUS_CODE_ERROR") | not)
            then {speaker: "agent", text: $answer.content, time: .endTimeUnixNano} else null end)}
