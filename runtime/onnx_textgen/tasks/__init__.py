"""What a program asks of an open model: to encode, to continue a text, to answer a chat, to score, to embed, to rerank."""
