"""Chat: messages, templates, dialogues to labelled tokens."""
