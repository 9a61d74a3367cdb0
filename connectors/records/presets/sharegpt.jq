# ShareGPT and the training tools that took over its shape. Some values are HTML. Without an id, each record is a conversation.
def speaker: {gpt: "agent", chatgpt: "agent", bard: "agent", bing: "agent", claude: "agent"} as $speakers
  | strings | ascii_downcase | $speakers[.] // role;
(.id // "\($source.path):\($source.number)") as $id | (.conversations // .conversation // .items)[]
| (.value // .content // .text | strings) as $text
| {conversation: $id, speaker: (.from // .role | speaker), text: ($text | if startswith("<div") then html_text else . end)}
