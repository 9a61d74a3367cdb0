# Definitions that every mapping has, beside those of jq.

# Whether a value is one of these.
def IN(values): . as $value | any(values; . == $value);

# The text of a content: a text, or its parts that are texts, each on a line of its own. What a model thinks is none.
def parts_text:
  if type == "string" then .
  elif type == "array" then
    map(if type == "string" then .
        elif type == "object" and .thought != true
          and ((.type // "text") | IN("text", "input_text", "output_text", "summary_text", "input_audio", "output_audio", "audio"))
        then (.text // .content // .transcript // empty) | parts_text
        else empty end | strings | select(. != ""))
    | join("\n")
  elif type == "object" then (.parts // .text // .content // "") | parts_text
  else "" end;

# The messages of a list as chat models take them.
def chat_messages:
  [.[] | objects
   | {speaker: ((.role // .type // .from // .sender) | strings // null | role),
      text: ((.content // .parts // .text // .message // .value) | parts_text)}];

# The value of an attribute in OTLP/JSON.
def otlp_value:
  if type != "object" then .
  elif has("stringValue") then .stringValue
  elif has("intValue") then .intValue | tonumber? // .
  elif has("doubleValue") then .doubleValue
  elif has("boolValue") then .boolValue
  elif has("arrayValue") then [(.arrayValue.values // [])[] | otlp_value]
  elif has("kvlistValue") then (.kvlistValue.values // []) | map({(.key): (.value | otlp_value)}) | add // {}
  else null end;

# The attributes of a span or a resource in OTLP/JSON, by name.
def attributes: (.attributes // []) | map({(.key): (.value | otlp_value)}) | add // {};

# The spans of a batch in OTLP/JSON.
def spans: (.resourceSpans // [])[] | (.scopeSpans // .instrumentationLibrarySpans // [])[] | (.spans // [])[];

# The log records of a batch in OTLP/JSON.
def logs: (.resourceLogs // [])[] | (.scopeLogs // [])[] | (.logRecords // [])[];

# Fields whose names hold the index of a list, such as prefix.0.content, as a list of objects in the order of the numbers.
def indexed($prefix):
  [to_entries[] | select(.key | startswith($prefix + "."))
   | (.key | ltrimstr($prefix + ".") | split(".")) as $path
   | select($path[0] | test("^[0-9]+$"))
   | {index: ($path[0] | tonumber), name: ($path[1:] | join(".")), value}]
  | group_by(.index) | map(map({(.name): .value}) | add);
