# Definitions that every mapping has, beside those of jq.

# Whether a value is one of these.
def IN(values): . as $value | any(values; . == $value);

# The messages of a list as chat models take them.
def chat_messages:
  [.[] | objects
   | {speaker: ((.role // .type // .from // .sender) | strings // null | role),
      text: ((.content // .parts // .text // .message // .value) | parts_text)}];

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
