#: {"settle_s": 6}
# OpenTelemetry's spans and log records of calls of models, in OTLP/JSON, by the names of those who write them: the
# GenAI conventions of all ages, OpenInference, OpenLLMetry, the AI SDK, Langfuse, LangSmith, MLflow, Logfire. A span is
# a call of a model; what was said may be in its attributes, in its events, or in log records that name the span.

def nested($prefix; $of): [indexed($prefix)[] | with_entries(.key |= ltrimstr($of))
  | {speaker: (.role | strings // null | role),
     text: ((.content | content_text) | select(. != ""))
       // ([indexed("contents")[] | .["message_content.text"] | strings] | join("\n"))}];
# The first of these that has something.
def first_of(lists): first(lists | select(length > 0)) // [];
def reply($answers; $time): first($answers[] | select(.text != "")) // null
  | if . then {speaker: "agent", text, time: $time} else null end;
def events: [(.events // [])[] | {name, is: attributes} | .said = ((.is["gen_ai.event.content"] // .is) | meant)];
def began: .startTimeUnixNano // "0" | if tostring == "0" then error("a span without startTimeUnixNano") else . end;
def failed: .status.code | IN(2, "STATUS_CODE_ERROR");
def conversation($is): first(($is["gen_ai.conversation.id", "session.id", "gen_ai.thread.id", "langfuse.session.id",
    "langsmith.trace.session_id", "mlflow.trace.session", "thread_id"],
    ($is | to_entries[] | select(.key | begins(["ai.telemetry.metadata.", "traceloop.association.properties.",
      "langsmith.", "metadata."])) | select(.key | test("\\.(session|conversation|thread|chat)_?[iI]d$")) | .value),
    ($is.metadata | meant | objects | .session_id, .conversation_id, .thread_id))
  | select(. != null and . != "") | tostring) // null;
# Whether a span may say something about a model.
def is_of_models: ["gen_ai", "llm.", "ai.", "openinference.", "langfuse.", "mlflow.", "request_data"] as $names
  | any((.attributes // [])[].key, (.events // [])[].name; begins($names));
# Whether a span is a call of a model, and not what is around it, such as an agent, or beside it, such as a tool.
def is_call($is): $is["gen_ai.operation.name"] as $does
  | ($is["openinference.span.kind"] // $is["langfuse.observation.type"] // ($is["mlflow.spanType"] | meant)) as $kind
  | if $kind then $kind | ascii_upcase | IN("LLM", "GENERATION", "CHAT_MODEL")
    elif $is["ai.operationId"] then $is["ai.operationId"] | test("\\.do(Generate|Stream)$")
    elif $does then $does | IN("chat", "text_completion", "generate_content", "completion", "message", "responses")
    else true end;
# Of several programs with tokens, each has conversations of its own, and its questions are asked for it.
def asked_by($who): if $who == null then . else
    (.id, .group, .conversation) |= (if . then "\($who.name):\(.)" else . end)
    | .messages[].fields = {principal: $who} | if .answer then .answer.fields = {principal: $who} else . end end;

.principal as $who | (
(spans | attributes as $is | select($is["gen_ai.operation.name"] or is_of_models) | select(is_call($is)) | events as $events
 | first_of(
     ($is["gen_ai.input.messages"] | messages_of("user")), ($is | nested("gen_ai.prompt"; "")),
     ($is | nested("llm.input_messages"; "message.")), ($is["ai.prompt.messages"] | messages_of("user")),
     [$events[] | select(.name | test("^gen_ai\\.(user|assistant|system|tool)\\.message$"))
       | {speaker: ((.said.role? // (.name | split(".")[1])) | role), text: (.said.content? | content_text)}],
     ($events[] | .is["gen_ai.input.messages", "gen_ai.prompt"] | messages_of("user")),
     ($is["gen_ai.prompt", "langfuse.observation.input", "mlflow.spanInputs", "request_data"] | messages_of("user"))) as $said
 | first_of(
     ($is["gen_ai.output.messages"] | messages_of("agent")), ($is | nested("gen_ai.completion"; "")),
     ($is | nested("llm.output_messages"; "message.")),
     ([$is["ai.response.text", "ai.result.text", "ai.response.object", "ai.result.object"] | strings | select(. != "") | {text: .}]),
     [$events[] | select(.name == "gen_ai.choice") | .said | ((.message? // .) | meant) | {text: (.content? | content_text)}],
     ($events[] | .is["gen_ai.output.messages", "gen_ai.completion"] | messages_of("agent")),
     ($is["gen_ai.completion", "langfuse.observation.output", "mlflow.spanOutputs", "response_data"]
       | messages_of("agent"))) as $answers
 # What a chat program asks on its own, such as for a title.
 | select(any($said[]; (.text | begins(["### Task:"])) and .speaker == "user") | not)
 | conversation($is) as $conversation
 | {id: .spanId, conversation: $conversation, guess: ($conversation == null), group: .traceId,
    order: (began | tonumber), time: began, messages: $said,
    answer: (if failed then null else reply($answers; .endTimeUnixNano) end)}
 | select($is["gen_ai.operation.name"] != null or .answer != null or ($said | length) > 0)),
(logs | select((.spanId // "") != "") | attributes as $is | (.eventName // $is["event.name"] // "") as $event
 | ([.timeUnixNano, .observedTimeUnixNano] | map(select(. != null and tostring != "0")) | first // "0") as $time
 | ((.body // {} | otlp_value | meant) as $body | ($is["gen_ai.event.content"] // $body) | meant) as $said
 | {id: .spanId, guess: true, group: .traceId, order: ($time | tonumber), time: $time}
 + if $event == "gen_ai.client.inference.operation.details" then
     {messages: (first_of(($is, $said)["gen_ai.input.messages"]? | messages_of("user"))),
      answer: reply(first_of(($is, $said)["gen_ai.output.messages"]? | messages_of("agent")); $time)}
   elif $event == "gen_ai.choice" then
     select(($said.index? // 0) == 0) | {messages: [], answer: {speaker: "agent", time: $time,
       text: (($said.message? // $said) | meant | (.content? // strings) | content_text)}}
   elif $event | test("^gen_ai\\.(user|assistant|system|tool)\\.message$") then
     {messages: [{id: ([$event, ($time | tostring), ($said | tojson)] | join(" ")), order: ($time | tonumber),
       speaker: (($said.role? // ($event | split(".")[1])) | role),
       text: (($said.content? // ($said | strings)) | content_text)}]}
   else empty end)
) | asked_by($who)
