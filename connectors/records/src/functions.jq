# Definitions that every mapping has, beside those of jq.

# Whether a value is one of these.
def IN(values): . as $value | any(values; . == $value);

# Regular expressions.
def test($re): if $re | type == "array" then test($re[0]; $re[1]) else test($re; "") end;
def match($re; $flags): matches($re; $flags)[];
def match($re): if $re | type == "array" then match($re[0]; $re[1]) else match($re; "") end;
def capture($re; $flags): captures($re; $flags)[];
def capture($re): if $re | type == "array" then capture($re[0]; $re[1]) else capture($re; "") end;
def scan($re; $flags): scanned($re; "g" + $flags)[];
def scan($re): if $re | type == "array" then scan($re[0]; $re[1]) else scan($re; "") end;
def split($re; $flags): between($re; "g" + $flags);
def splits($re; $flags): split($re; $flags)[];
def splits($re): splits($re; "");
def gsub($re; f; $flags): sub($re; f; $flags + "g");
def gsub($re; f): sub($re; f; "g");
def sub($re; f): sub($re; f; "");

# Lists, and parts of values.
def flatten: flatten(1e9);
def at_most($n; f): limit($n; f);
def limit($n; f):
  if $n | type != "number" then error("\($n | tojson) is no number for a limit")
  elif $n < 0 then error("limit takes no negative number") else at_most($n; f) end;
def nth($n; f): if $n < 0 then error("there is no place \($n)") else first(skip($n; f)) end;
def del(f): delpaths([path(f)]);
def setpath(path; value): value as $value | path as $path | getpath($path) = $value;
def pick(f): . as $whole | reduce path(f) as $path (null; setpath($path; $whole | getpath($path)));
def from_entries:
  reduce .[] as $one ({}; . + {($one | if .key == null then .k // .name // .Name // .K // .Key else .key end):
    ($one | if has("value") then .value elif has("v") then .v elif has("Value") then .Value else .V end)});

# Numbers and times.
def gamma: lgamma;
def nearbyint: rint;
def strftime($form):
  if $form | type != "string" then error("\($form | tojson) is no form of a time, because it is no text")
  elif ($form | length) > 200 then error("the form of a time has more than 200 letters")
  elif $form | contains("%c") or contains("%x") then
    time_by_form([$form | split("%%")[]
      | split("%c") | join("%a %b %e %H:%M:%S %Y") | split("%x") | join("%m/%d/%y")] | join("%%"))
  else time_by_form($form) end;
def todateiso8601: time_by_form("%Y-%m-%dT%H:%M:%SZ");
def todate: todateiso8601;
def seconds_of_parts: mktime;
def mktime: seconds_of_parts | floor;

# What jq has beside these, and the library does not.
def IN(values; of): any(values; IN(of));
def INDEX(values; f): reduce values as $value ({}; .[$value | f | tostring] |= $value);
def INDEX(f): INDEX(.[]; f);
def JOIN($index; f): [.[] | [., $index[f]]];
def JOIN($index; values; f): values | [., $index[f]];
def JOIN($index; values; f; g): values | [., $index[f]] | g;
def have_literal_numbers: true;
def have_decnum: true;
def toarray: if type == "array" then . else [.] end;
def ascii: [.] | implode;
def trimstr($part): ltrimstr($part) | rtrimstr($part);
def leaf_paths: paths(scalars);
def date: todate;
def dateadd($unit; $n): . + $n;
def datesub($unit; $n): . - $n;
def tostream:
  path(def r: (.[]? | r), .; r) as $path | getpath($path) | reduce path(.[]?) as $last ([$path, .]; [$path + $last]);
def fromstream(events):
  {value: null, ends: false} as $none
  | foreach events as $event ($none;
      if .ends then $none end
      | if $event | length == 2 then .ends = ($event[0] | length == 0) | setpath(["value"] + $event[0]; $event[1])
        else .ends = ($event[0] | length == 1) end;
      if .ends then .value else empty end);
def truncate_stream(events): . as $depth | null | events | select(.[0] | length > $depth) | .[0] |= .[$depth:];

# The messages of a list as chat models take them.
def chat_messages:
  [.[] | objects
   | {speaker: ((.role // .type // .from // .sender) | strings // null | role),
      text: ((.content // .parts // .text // .message // .value) | parts_text)}];

# The text of a message of Slack, or what is only in its blocks or attachments.
def slack_text:
  def piece: .text // .url // (if .user_id then "<@\(.user_id)>" else "" end) | strings;
  def section: [.elements[]? | if .elements then [.elements[]? | piece] | join("") else piece end] | join("");
  def in_blocks: [(.blocks[]? | .text.text?, .fields[]?.text?, ([.elements[]? | select((.type // "") | startswith("rich_text")) | section] | join("\n"))),
    (.attachments[]? | .text // .fallback)] | map(strings | select(. != "")) | join("\n");
  if (.text // "") != "" then .text else in_blocks end;

# Slack's markup as text: without mentions of a bot, and with the labels of links.
def slack_markup($bot): gsub("<@" + $bot + ">\\s*"; "") | gsub("<[^<>|]+\\|(?<label>[^<>]+)>"; .label)
  | gsub("<(?<url>https?:[^<>|]+)>"; .url) | gsub("&lt;"; "<") | gsub("&gt;"; ">") | gsub("&amp;"; "&") | trim;

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

# The events of a stream: a list of them, the text of server-sent events, or what the decoder `sse` gives. Whether it has its end.
def events_of:
  if type == "array" then {events: map(objects), ended: false}
  elif type == "string" then
    [split("\n")[] | select(startswith("data:")) | .[5:] | trim] as $data
    | {events: [$data[] | fromjson? | objects], ended: any($data[]; . == "[DONE]")}
  elif type == "object" and (.events | type) == "array" then {events: .events | map(objects), ended: (.ended == true)}
  else {events: [], ended: false} end;

# What a model answered, as OpenAI's and Anthropic's servers send it, whole or as a stream: a message, or nothing if it failed
# or the stream broke off.
def reply:
  def response: {id, time: .created_at, text: ([.output[]? | select(.type == "message") | .content | content_text] | join("\n"))};
  def joined: map(select(.text)) | group_by(.index) | map(map(.text) | join("")) | join("\n");
  meant
  | if type != "object" or .events then
      events_of as $of | $of.events as $all
      | (first($all[] | select(.type | IN("response.completed", "response.incomplete")) | .response | objects) // null) as $whole
      | {id: $whole.id, time: ($whole.created_at // (first($all[] | .created // .created_at // .response.created_at? | numbers | select(. > 0)) // null)),
         text: (first(
           ($whole | select(.output) | response.text),
           ([$all[].choices[]? | select((.index // 0) == 0) | .delta.content? // .text | strings] | join("")),
           ([$all[] | select(.type == "response.output_text.delta") | {index: [.output_index, .content_index], text: .delta}] | joined),
           ([$all[] | select(.type == "content_block_delta") | {index, text: .delta.text?}] | joined)
           | select(. != "")) // "")}
      | select($of.ended or $whole or any($all[]; .type == "message_stop" or .delta.stop_reason? or any(.choices[]?; .finish_reason)))
    elif .error then empty
    elif .choices then {id: null, time: .created, text: (.choices[0]?.message | .content // .refusal? | content_text)}
    elif .output then select(.status | IN("failed", "cancelled") | not) | response
    elif .role == "assistant" or .type == "message" then {id: null, time: .created_at, text: (.content | content_text)}
    else empty end
  | . + {speaker: "agent"} | select(.text != "");
