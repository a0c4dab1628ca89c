"""Text: tokenizers, texts and token ids as the input of a row."""
