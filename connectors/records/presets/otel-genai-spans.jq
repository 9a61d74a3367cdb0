#: {"settle_s": 2}
# OpenTelemetry's spans of GenAI in OTLP/JSON: a span is a call of a model.
spans | attributes as $is | select($is["gen_ai.operation.name"] == "chat")
| ($is["gen_ai.output.messages"] // "[]" | messages_of("agent") | first) as $answer
| {id: .spanId, conversation: ($is["gen_ai.conversation.id"] // .traceId), order: (.startTimeUnixNano | tonumber),
   time: .startTimeUnixNano, messages: ($is["gen_ai.input.messages"] // "[]" | messages_of("user")),
   answer: (if $answer and (.status.code | IN(2, "STATUS_CODE_ERROR") | not) then $answer + {time: .endTimeUnixNano}
            else null end)}
