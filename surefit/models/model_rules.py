"""Rules that several modules of this folder raise."""

from __future__ import annotations

from surefit.findings import rule

UNSUITABLE_MODEL = rule(
    "SF301",
    "error",
    "model does not suit the task",
    why="The architecture has no head, or no causal attention, for this task.",
    fix="Choose a model of another architecture or another task.",
)

MODEL_FAILED = rule(
    "SF305",
    "error",
    "model fails on the data",
    why="The model raised an error on one real batch.",
    fix="Change the named layer so that it accepts the named shape.",
)

NEW_HEAD = rule(
    "SF306",
    "info",
    "new head",
    why="The weights have no output layer for this task; it starts untrained.",
    fix="Nothing to do.",
)

NO_LORA_TARGET = rule(
    "SF321",
    "error",
    "no layer for LoRA",
    why="LoRA has no layer to adapt, so nothing would be trained.",
    fix="Set lora.targets to layers of the model, or leave it out.",
)

MODEL_READS_NO_FEATURES = rule(
    "SF326",
    "error",
    "model reads no features",
    why="Features are passed to a model as inputs_embeds, in place of its token embeddings.",
    fix="Choose a text encoder or decoder, such as tiny:bert, or a custom module.",
)
