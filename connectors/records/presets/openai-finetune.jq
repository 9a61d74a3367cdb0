# OpenAI's format for fine-tuning: a line is a whole conversation, without id and times. The id is the number of the line.
.messages | chat_messages[] | . + {conversation: $source.number}
