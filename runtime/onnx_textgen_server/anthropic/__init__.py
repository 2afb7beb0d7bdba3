"""The wire format of Anthropic: `/v1/messages`."""
