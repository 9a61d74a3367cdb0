#: {"decode": "lines", "start": "^\\p{Cf}*\\[?(?<date>\\p{Cf}*\\d{1,4}\\p{Cf}*[-./年년]\\p{Cf}* ?\\d{1,2}\\p{Cf}*[-./月월]\\p{Cf}* ?\\d{1,4}[.日일]?(?: г\\.?)?)\\p{Cf}*[,\u060c]?\\p{Cf}*\\s+\\p{Cf}*(?<clock>(?:\\p{L}[\\p{L}\\p{M}.\u05f4'’]{0,9}\\s?)?\\d{1,2}(?:[:.]\\d{2}(?:[:.]\\d{2})?|\\s?h\\s?\\d{2}(?:\\s?min \\d{2} s)?|[時时點点시]\\s?\\d{1,2}[分분])(?:\\s?\\p{L}[\\p{L}\\p{M}.\\s\u05f4'’]{0,15}?)?)\\p{Cf}*(?:\\]|\\s[-\u2013]|[:,])\\s\\p{Cf}*(?:(?:~\\s*)?(?<author>[^:]+?):\\s)?(?<text>.*)$", "dates": true}
# A chat that WhatsApp exports, in any language: a file is a conversation. The agent is `Fernhill Desk`: copy it, and change
# the name. Whether 3/4/26 is in March or in April is told by the whole file.
($source | if .file == "_chat.txt" then .folder else .name end
 | sub("^(WhatsApp[- ]Chat( -| with| mit)|Chat (de )?WhatsApp con|Conversa do WhatsApp com|Discussion WhatsApp avec) "; "")) as $id
| select(.author) | select(.text | startswith("\u200e") or . == "null" or test("^<([^<>/=]*\\s[^<>/=]*|[^\\x00-\\x7f]+)>$")
    or test("^(This message was deleted|You deleted this message|Diese Nachricht wurde gelöscht|Du hast diese Nachricht gelöscht|Se eliminó este mensaje|Eliminaste este mensaje)\\.?$") | not)
| {conversation: $id, speaker: (if .author == "Fernhill Desk" then "agent" else "user" end),
   text: (.text | sub("\\s*(\u200e<[^<>]*>|<This message was edited>)$"; "")), time: (.time | seconds)}
