"""The wire format of OpenAI: what a request says, the texts it asks for, and the answers."""
