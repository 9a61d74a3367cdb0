#: {"decode": "sqlite", "query": "SELECT id, created_at, chat FROM chat ORDER BY created_at, id"}
# Open WebUI's database: a row is a whole chat, whose messages are a tree. What the model thought is markup in its answer.
.id as $id | .chat | fromjson | .history | .messages as $all
| [.currentId | select(. != null) | recurse($all[.].parentId; . != null)] | reverse[] | $all[.]
| select((.error // false) == false)
| {conversation: $id, speaker: (.role | role), time: .timestamp,
   text: (.content | parts_text | sub("^\\s*<details type=\"reasoning\".*?</details>\\s*"; ""; "s"))}
