"""The wire format of Ollama: `/api/chat`, `/api/generate` and what lists models."""
