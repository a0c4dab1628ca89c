"""feature-pretraining: steps of features are hidden, and reconstructed from those around them."""

from __future__ import annotations

from dataclasses import replace

from surefit.inputs.features.feature_sequences import FEATURES, fit_features, holds_features
from surefit.targets import masked_steps
from surefit.targets.task_spec import Head, Reads, TaskSpec

SPEC = TaskSpec(
    name="feature-pretraining",
    summary="masked time steps of feature sequences, reconstructed",
    needs=(("features",),),
    optional=("mask",),
    reads=Reads(
        holds_features,
        inputs=(replace(FEATURES, section=None),),
        inferred=masked_steps.check_inferred,
    ),
    targets=(),
    fields=masked_steps.FIELDS,
    encode=masked_steps.encode,
    fit=fit_features,
    count_targets=masked_steps.count_targets,
    loss=masked_steps.loss,
    metrics={"accuracy": masked_steps.ACCURACY},
    decode=masked_steps.decode,
    head=Head(size=lambda encoder: encoder.input.width or 0, body="steps"),
)
