#: {"decode": "mbox"}
# Mails of a mailbox: a thread is a conversation. The agent's address is desk@fernhill.example: copy it, and change it.
select((.auto_submitted // "no") == "no")
| {id: .message_id, conversation: (.references[0] // .in_reply_to[0] // .message_id), time: .date, order: .date,
   speaker: (if (.from // "" | ascii_downcase) == "desk@fernhill.example" then "agent" else "user" end), text: (.text | mail_text)}
