#: {"decode": "lines", "start": "^\\p{Cf}*\\[?(?<date>\\p{Cf}*\\d{1,4}\\p{Cf}*[-./]\\p{Cf}* ?\\d{1,2}\\p{Cf}*[-./]\\p{Cf}* ?\\d{1,4}\\.?)\\p{Cf}*[,\u060c]?\\s+\\p{Cf}*(?<clock>(?:\\p{L}{1,5}\\s?)?\\d{1,2}[:.]\\d{2}(?:[:.]\\d{2})?(?:\\s?\\p{L}[\\p{L}\\p{M}.\\s]{0,9}?)?)\\p{Cf}*(?:\\]|\\s[-\u2013]|:)\\s\\p{Cf}*(?:(?:~\\s*)?(?<author>[^:]+?):\\s)?(?<text>.*)$", "dates": true}
# A chat that WhatsApp exports, in any language: a file is a conversation. The agent is `Fernhill Desk`: copy it, and change
# the name. Whether 3/4/26 is in March or in April is told by the whole file.
($source | if .file == "_chat.txt" then .folder else .name end
 | sub("^(WhatsApp[- ]Chat( -| with| mit)|Chat (de )?WhatsApp con|Conversa do WhatsApp com|Discussion WhatsApp avec) "; "")) as $id
| select(.author) | select(.text | startswith("\u200e") or . == "null" or test("^<([^<>/=]*\\s[^<>/=]*|[^\\x00-\\x7f]+)>$")
    or test("^(This message was deleted|You deleted this message|Diese Nachricht wurde gelöscht|Du hast diese Nachricht gelöscht|Se eliminó este mensaje|Eliminaste este mensaje)\\.?$") | not)
| {conversation: $id, speaker: (if .author == "Fernhill Desk" then "agent" else "user" end),
   text: (.text | sub("\\s*(\u200e<[^<>]*>|<This message was edited>)$"; "")), time: (.time | seconds)}
