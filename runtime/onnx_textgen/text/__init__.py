"""Between text and token ids: tokenizer, chat template, stop strings."""
