"""Tensors whose dtypes do not go together, or that an operation does not accept."""

from __future__ import annotations

from dataclasses import replace

from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.causes.label_errors import LOSS_FUNCTION, MATRIX_PRODUCT
from surefit.explainer.message_values import (
    SPELLED,
    Dtype,
    read_dtype,
)

DTYPE_GROUPS = ("first", "second", "third", "found", "expected", "labels", "predictions")

DIFFERENT_DTYPES = (
    Message(
        rf"mat2 must have the same dtype(?:, but got (?P<first>{SPELLED}) and "
        rf"(?P<second>{SPELLED}))?"
    ),
    Message(
        rf"expected scalar type (?P<expected>{SPELLED}) but found (?P<found>{SPELLED})",
        seen="hiyouga/LlamaFactory#1233",
    ),
    Message(
        rf"to have the same dtype, but got: (?P<first>{SPELLED}) ?!= (?P<second>{SPELLED})",
        seen="zjukg/KoPA#11",
    ),
    Message(
        rf"Found dtype (?P<labels>{SPELLED}) but expected (?P<predictions>{SPELLED})",
        seen="huggingface/sentence-transformers#770",
        needs_library=True,
    ),
    Message(
        r"Expected query, key, and value to have the same dtype, but got query\.dtype: "
        rf"(?P<first>{SPELLED}) key\.dtype: (?P<second>{SPELLED})"
    ),
    Message(
        rf"addmv input tensors must have the same dtype, but got (?P<first>{SPELLED}), "
        rf"(?P<second>{SPELLED}), and (?P<third>{SPELLED})"
    ),
    Message(
        r"dot : expected both vectors to have same dtype, but found "
        rf"(?P<first>{SPELLED}) and (?P<second>{SPELLED})"
    ),
    Message(
        rf"Input dtypes must be the same, got: input (?P<first>{SPELLED}), batch1: "
        rf"(?P<second>{SPELLED}), batch2: (?P<third>{SPELLED})"
    ),
    Message(
        rf"Input type \((?P<first>{SPELLED})\) and (?:weight|bias) type "
        rf"\((?P<second>{SPELLED})\) should be the same"
    ),
    Message(
        rf"RNN input dtype \((?P<first>{SPELLED})\) does not match weight dtype "
        rf"\((?P<second>{SPELLED})\)"
    ),
    Message(
        r"Index put requires the source and destination dtypes match, got "
        rf"(?P<expected>{SPELLED}) for the destination and (?P<found>{SPELLED}) for the source"
    ),
    Message(
        rf"\(\): self \((?P<expected>{SPELLED})\) and source \((?P<found>{SPELLED})\) must have "
        r"the same scalar type"
    ),
    Message(
        rf"expected dtype (?P<expected>{SPELLED}) for `(?:end|weight)` but got dtype "
        rf"(?P<found>{SPELLED})"
    ),
    Message(
        r"masked_scatter: expected self and source to have same dtypes but got ?"
        rf"(?P<expected>{SPELLED}) and (?P<found>{SPELLED})"
    ),
)
"""Wordings that name two dtypes. The dtypes decide between SF640 and SF648."""
INTEGER_WORDINGS = tuple(replace(message, seen="") for message in DIFFERENT_DTYPES)
"""The same wordings for SF648, without the issues, which quote floating-point dtypes."""


def dtypes_of(context: Context) -> list[Dtype]:
    """Return the dtypes that a message names."""
    found = (read_dtype(context.word(name)) for name in DTYPE_GROUPS)
    return [dtype for dtype in found if dtype is not None]


def devices_differ(context: Context) -> bool:
    """Return whether a message names tensors on two devices."""
    return len({dtype.device for dtype in dtypes_of(context)} - {""}) > 1


def _needs_floating(context: Context) -> bool:
    """Return whether an integer or boolean tensor met an operation on floating point."""
    if devices_differ(context):
        return False
    if context.word("cast"):
        return LOSS_FUNCTION.search(context.text) is None  # else the labels: SF623
    expected = read_dtype(context.word("expected"))
    if expected is not None and expected.name == "torch.int64":
        return MATRIX_PRODUCT.search(context.text) is not None  # else the labels: SF623
    dtypes = dtypes_of(context)
    return not dtypes or any(dtype.kind in ("integer", "boolean") for dtype in dtypes)


def _needs_one_dtype(context: Context) -> bool:
    """Return whether tensors of different dtypes met and none of them is an integer tensor."""
    dtypes = dtypes_of(context)
    kinds = {dtype.kind for dtype in dtypes}
    return not devices_differ(context) and not kinds & {"integer", "boolean"}


def _different_dtypes(context: Context) -> list[str]:
    dtypes = dtypes_of(context)
    names = list(dict.fromkeys(dtype.name for dtype in dtypes))
    lines = _two_names(context) if len(names) > 1 else []
    halves = {dtype.name for dtype in dtypes if dtype.is_half}
    if context.word("labels"):
        lines.append("Convert the labels to the dtype of the predictions: labels.to(logits.dtype).")
    if "torch.float64" in names:
        lines.append(
            "float64 is the default of NumPy, and torch.from_numpy keeps it. Use .float() or "
            "astype(np.float32)."
        )
    elif len(halves) == 2:
        lines.append("Both are half precision but in two formats. Use one of them everywhere.")
    elif halves and not context.word("labels"):
        lines.append(
            f"{halves.pop()} is half precision, the other is not. The model, an added head or a "
            "LoRA adapter was loaded in another dtype than its input. Use torch.autocast, or one "
            "dtype for all."
        )
    return lines


def _two_names(context: Context) -> list[str]:
    labels, predictions = (read_dtype(context.word(name)) for name in ("labels", "predictions"))
    if labels is not None and predictions is not None:
        return [
            f"In a loss, the labels are {labels.name} ({labels.kind}) and the predictions are "
            f"{predictions.name} ({predictions.kind})."
        ]
    found, expected = (read_dtype(context.word(name)) for name in ("found", "expected"))
    if found is not None and expected is not None:
        return [
            f"The operation found {found.name} ({found.kind}) and expected {expected.name} "
            f"({expected.kind})."
        ]
    named = {dtype.name: f"{dtype.name} ({dtype.kind})" for dtype in dtypes_of(context)}
    return [f"The tensors are {' and '.join(named.values())}."]


def _integer_operand(context: Context) -> list[str]:
    dtypes = dtypes_of(context)
    lines = _two_names(context) if len({dtype.name for dtype in dtypes}) > 1 else []
    found = read_dtype(context.word("cast") or context.word("found"))
    if not lines and found is not None:
        lines.append(f"The tensor is {found.name} ({found.kind}).")
    if context.word("labels"):
        lines.append("Use labels.float() for mse_loss, huber_loss and binary_cross_entropy.")
    elif context.word("operation"):
        lines.append(f"{context.word('operation')} has no implementation for this dtype.")
    return lines


def _is_mask(context: Context) -> bool:
    """Return whether a tensor is a mask; in a loss, `-` meets boolean labels instead (SF623)."""
    return not context.word("minus") or LOSS_FUNCTION.search(context.text) is None


def _mask_dtype(context: Context) -> list[str]:
    found, query = (read_dtype(context.word(name)) for name in ("found", "query"))
    if found is not None and query is not None:
        return [f"The mask is {found.name} ({found.kind}), the query is {query.name}."]
    if found is not None:
        return [f"The mask is {found.name} ({found.kind})."]
    if context.word("minus"):
        return ["The tensor is boolean, so `-` is not defined. Use ~mask instead of 1 - mask."]
    return []


CAUSES = (
    Cause(
        "SF640",
        "tensors of different dtypes meet in one operation",
        messages=(
            *DIFFERENT_DTYPES,
            Message(
                r"mixed dtype \(CPU\): (?:all inputs must share same datatype|expect parameter to "
                r"have scalar type of Float)"
            ),
            Message(r"scatter\(\): Expected self\.dtype to be equal to src\.dtype"),
        ),
        why="Torch does not convert dtypes in this operation. Common causes: features are float64 "
        "because NumPy's default is float64, or the model is in half precision and its inputs or "
        "added layers are float32.",
        fix="Convert the data once, with features.float(). Keep trainable weights in float32 and "
        "compute under torch.autocast, or convert added layers with .to(model.dtype).",
        in_surefit="Every field has one dtype and features are float32. `precision` applies to the "
        "whole run.",
        does_not_help=("model.double(): it doubles the memory and changes nothing in the data.",),
        derive=_different_dtypes,
        only_if=_needs_one_dtype,
    ),
    Cause(
        "SF648",
        "an integer or boolean tensor is used where floating point is required",
        messages=(
            *INTEGER_WORDINGS,
            Message(
                r"\"(?P<operation>(?!nll_loss\w{0,60}_index)\w{1,60})\" not implemented for "
                r"'(?P<found>Long|Int|Short|Char|Byte|Bool)'"
            ),
            Message(
                r"result type \w{1,20} can't be cast to the desired output type "
                r"(?P<cast>Long|Int|Short|Char|Byte|Bool)"
            ),
            Message(
                r"Input dtype must be either a floating point or complex dtype\. Got: "
                rf"(?P<found>{SPELLED})"
            ),
            Message(r"std and var only support floating point and complex dtypes"),
            Message(
                rf"Expected a floating point or complex tensor as input\. Got (?P<found>{SPELLED})"
            ),
            Message(
                r"(?i)only Tensors of floating point (?:and complex )?dtype can require gradients"
            ),
        ),
        why="Layers, losses and means compute in floating point, and Torch does not convert "
        "integers for them. The features or the labels of a regression were stored as integers, or "
        "a mask is used as a factor.",
        fix="Convert the tensor: features.float() before a layer, labels.float() for a regression "
        "or several labels per row, mask.float() before a product, counts.float().mean() for a "
        "mean. Only token ids and class indices stay int64.",
        in_surefit="Features are float32, and the task sets the dtype of the labels.",
        does_not_help=("model.long(): weights cannot be trained as integers.",),
        derive=_integer_operand,
        only_if=_needs_floating,
    ),
    Cause(
        "SF649",
        "a mask has the wrong dtype",
        messages=(
            Message(
                r"only supports boolean masks, but got (?:mask with )?dtype "
                rf"(?P<found>{SPELLED})"
            ),
            Message(
                r"where expected condition to be a boolean tensor, but got a tensor with dtype "
                rf"(?P<found>{SPELLED})"
            ),
            Message(
                r"Expected attn_mask dtype to be bool or .{0,30}match query dtype, but got "
                rf"attn_mask\.dtype: (?P<found>{SPELLED}) and query\.dtype: (?P<query>{SPELLED})"
            ),
            Message(r"only bool and floating types of (?P<mask>\w{1,60}) are supported"),
            Message(
                r"(?P<minus>Subtraction|Negation), the `-` operator, (?:with|on) (?:a|two) bool "
                r"tensors? is not supported"
            ),
            Message(r"~ \(operator\.invert\) is only implemented on integer and Boolean-type"),
        ),
        why="masked_fill, torch.where and ~ expect a boolean mask. Attention accepts a boolean "
        "mask, or a floating-point mask in the dtype of the query. Tokenizers return "
        "attention_mask as int64. The reverse fails as well: arithmetic such as 1 - mask is not "
        "defined for a boolean mask.",
        fix="Use mask.bool(), and ~mask instead of 1 - mask. Check what True means: a position to "
        "overwrite in masked_fill, to attend to in scaled_dot_product_attention, and to ignore in "
        "key_padding_mask.",
        in_surefit="The collator creates attention masks from the lengths of the rows.",
        does_not_help=(
            "mask.float() for attention: a floating-point mask is added to the scores, so 0 and 1 "
            "hide nothing.",
        ),
        derive=_mask_dtype,
        only_if=_is_mask,
    ),
    Cause(
        "SF668",
        "a constant is too large for the dtype",
        messages=(
            Message(
                rf"value cannot be converted to type (?P<dtype>{SPELLED}) without overflow",
            ),
        ),
        why="A constant was written into a tensor whose dtype cannot hold it. float16 ends at "
        "65504, so -1e9 does not fit; integers have no infinity.",
        fix="In masked_fill, use torch.finfo(scores.dtype).min instead of a constant such as -1e9. "
        "Convert integer tensors with .float() first.",
        derive=lambda context: [
            f"The tensor is {dtype.name} ({dtype.kind})."
            for dtype in [read_dtype(context.word("dtype"))]
            if dtype is not None
        ],
    ),
)
