"""Text: tokenizers, chat templates, dialogues."""
