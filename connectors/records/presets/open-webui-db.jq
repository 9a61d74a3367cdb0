#: {"branch": true, "decode": "sqlite", "query": "SELECT id, created_at, updated_at, chat FROM chat ORDER BY created_at, id", "cursor": "updated_at"}
# Open WebUI's database: a row is a whole chat, whose messages are a tree, and is written anew with each message. What the
# model thought is markup in its answer, and an answer that is still written is not done.
.id as $id | .chat | fromjson | .history | .messages as $all
| [.currentId | select(. != null) | recurse($all[.].parentId; . != null)] | reverse
| [.[] | $all[.] | select((.error // false) == false) | select(.role == "user" or .done != false)] | length as $count | to_entries[]
| .key as $at | .value
| {id: "\($id)/\(.id)", parent: "\($id)/\(.parentId // "")", conversation: $id, speaker: (.role | role), time: .timestamp, last: ($at + 1 == $count),
   text: (.content | parts_text | sub("^\\s*<details type=\"reasoning\".*?</details>\\s*"; ""; "p"))}
