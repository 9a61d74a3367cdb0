#: {"settle_s": 2}
# OpenInference's spans in OTLP/JSON: messages are spread over attributes whose names hold the index.
def said($is; $name): $is | indexed($name) | map({speaker: (.["message.role"] | role),
  text: (.["message.content"] // ([indexed("message.contents")[] | .["message_content.text"] | strings] | join("\n")))});
spans | attributes as $is | select($is["openinference.span.kind"] == "LLM")
| (said($is; "llm.output_messages") | first) as $answer
| {id: .spanId, conversation: ($is["session.id"] // .traceId), order: (.startTimeUnixNano | tonumber),
   time: .startTimeUnixNano, messages: said($is; "llm.input_messages"),
   answer: (if $answer and .status.code != 2 then $answer + {time: .endTimeUnixNano} else null end)}
