"""Rules that several kinds of models share."""

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
    "the model fails on the data",
    why="One real batch was sent through the model and it raised.",
    fix="Make the named layer fit the named shape.",
)

NEW_HEAD = rule(
    "SF306",
    "info",
    "new head",
    why="The task's output layer is not in the weights; it starts untrained.",
    fix="Nothing to do.",
)

NO_LORA_TARGET = rule(
    "SF321",
    "error",
    "no layer for LoRA",
    why="An adapter on a layer that is not there, or that cannot have one, would train nothing.",
    fix="Name layers of the model in lora.targets, or leave it out.",
)

MODEL_READS_NO_FEATURES = rule(
    "SF326",
    "error",
    "the model reads no features",
    why="Features enter a model as inputs_embeds, in place of its token embeddings.",
    fix="Choose an encoder or decoder of text, such as tiny:bert, or your own module.",
)
