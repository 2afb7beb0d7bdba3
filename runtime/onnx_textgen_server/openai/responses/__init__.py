"""OpenAI's newer wire format for chats, `/v1/responses`, in which the server may keep the conversation."""
