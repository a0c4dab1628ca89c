"""Tensors on different devices, and devices that cannot do what is asked."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.causes.dtype_errors import devices_differ, dtypes_of
from surefit.explainer.message_values import SPELLED


def _batch_and_layer(context: Context) -> list[str]:
    if not devices_differ(context):
        return []
    batch, layer = dtypes_of(context)[:2]
    lines = [f"The batch is on the {batch.device}, the layer is on the {layer.device}."]
    if batch.name != layer.name:
        lines.append(f"The dtypes differ as well: {batch.name} and {layer.name}.")
    return lines


def _meta_device(context: Context) -> list[str]:
    if "meta" not in (context.word("one"), context.word("other")):
        return []
    return [
        "Tensors on the 'meta' device have no data: the weights were not loaded, or device_map "
        "left them out."
    ]


CAUSES = (
    Cause(
        "SF641",
        "the batch and the model are on different devices",
        messages=(
            Message(
                rf"Input type \((?P<first>{SPELLED})\) and (?:weight|bias) type "
                rf"\((?P<second>{SPELLED})\) should be the same",
                seen="rish-16/tokenlearner-pytorch#4",
            ),
        ),
        why="The model was moved to the GPU and the batch was not, or the reverse. A layer in a "
        "plain Python list is not moved either, because model.to(device) does not see it.",
        fix="Call model.to(device) once, and {k: v.to(device) for k, v in batch.items()} for every "
        "batch. Keep layers in nn.ModuleList.",
        in_surefit="surefit creates every batch on the device of the model.",
        does_not_help=("Another CUDA version: the tensors stay on their devices.",),
        derive=_batch_and_layer,
        only_if=devices_differ,
    ),
    Cause(
        "SF642",
        "tensors of one operation are on different devices",
        messages=(
            Message(
                r"Expected all tensors to be on the same device(?:, but found at least two "
                r"devices, (?P<one>[\w:]{1,20})(?: and|,) (?P<other>[\w:]{1,20})|, but got "
                r"(?P<argument>\w{1,40}) is on (?P<device>[\w:]{1,20}))?",
                seen="kijai/ComfyUI-FluxTrainer#116",
            ),
            Message(
                r"Tensor on device (?P<one>[\w:]{1,20}) is not on the expected device "
                r"(?P<other>[\w:]{1,20})"
            ),
            Message(
                r"Expected object of (?:device type|backend) (?P<one>\w{1,20}) but got (?:device "
                r"type|backend) (?P<other>\w{1,20})",
                seen="yangjianxin1/GPT2-chitchat#8",
            ),
        ),
        why="Common causes: the batch was not moved, forward() creates a tensor without a device, "
        "or device_map spread the model and the labels or loss weights are on another device.",
        fix="Move the batch. Create tensors with device=x.device and register constants with "
        "register_buffer. With device_map='auto', let accelerate move the tensors.",
        in_surefit="surefit creates every batch on the device of the model.",
        derive=_meta_device,
    ),
    Cause(
        "SF643",
        "the weights have no data",
        messages=(Message(r"Cannot copy out of meta tensor; no data!"),),
        why="The module is on the meta device: its weights were never loaded. The model is "
        "offloaded or only partly loaded, or low_cpu_mem_usage met missing keys.",
        fix="Load the model without device_map and offloading, and check that no key is reported "
        "missing. Call model.to_empty(device) only if you load the weights afterwards.",
        in_surefit="surefit loads whole models and reports missing weights.",
    ),
    Cause(
        "SF644",
        "CUDA is not available",
        messages=(
            Message(r"Torch not compiled with CUDA enabled"),
            Message(
                r"Attempting to deserialize object on a CUDA device but "
                r"torch\.cuda\.is_available\(\) is False"
            ),
            Message(r"No CUDA GPUs are available", seen="thuml/Anomaly-Transformer#74"),
            Message(r"Found no NVIDIA driver on your system", seen="princeton-nlp/SimCSE#244"),
        ),
        why="The code asks for a GPU that torch does not find: torch is a CPU build, the driver is "
        "missing, the container runs without --gpus, or the checkpoint was saved on a GPU.",
        fix="Use device = 'cuda' if torch.cuda.is_available() else 'cpu', and torch.load(…, "
        "map_location='cpu'). For a GPU, install a CUDA build of torch and start the container "
        "with docker run --gpus all.",
        in_surefit="surefit chooses an available device. Its checkpoints are safetensors, which "
        "name no device.",
    ),
    Cause(
        "SF645",
        "torch was not built for this GPU",
        messages=(
            Message(
                r"no kernel image is available for execution on the device",
                seen="vllm-project/vllm#18835",
            ),
            Message(
                r"with CUDA capability sm_\d+ is not compatible with the current PyTorch "
                r"installation",
                seen="pytorch/pytorch#45028",
            ),
        ),
        why="The installed torch, or an extension of it, has no kernels for the architecture of "
        "this GPU. The GPU is newer or older than the build.",
        fix="Install a torch build whose CUDA version supports the GPU; torch.cuda.get_arch_list() "
        "lists the architectures. Rebuild extensions such as flash-attn.",
    ),
    Cause(
        "SF646",
        "the device does not support bf16 or fp16",
        messages=(
            Message(r"Your setup doesn't support bf16"),
            Message(
                r"Mixed precision training with AMP or APEX \(`--fp16`\).{0,80} can only be used "
                r"on CUDA devices",
                seen="princeton-nlp/SimCSE#273",
            ),
            Message(
                r"bf16 mixed precision requires PyTorch >= 1\.10 and a supported device",
                seen="huggingface/accelerate#3064",
            ),
            Message(
                r"\"(?P<operation>(?!nll_loss\w{0,60}_index)\w{1,60})\" not implemented for "
                r"'(?P<dtype>Half|BFloat16)'",
                seen="X-PLUG/mPLUG-Owl#81",
            ),
        ),
        why="bf16 needs an Ampere GPU or newer, or a CPU with use_cpu=True. fp16 training needs "
        "CUDA. Several operations have no half-precision implementation on the CPU.",
        fix="Use fp16=True on GPUs older than Ampere (V100, T4). On a CPU, use bf16=True with "
        "use_cpu=True, or load the model in float32.",
        in_surefit="precision=auto uses bf16 where CUDA supports it, otherwise fp32. surefit "
        "refuses a precision that the device does not support.",
    ),
    Cause(
        "SF647",
        "FlashAttention is not installed or not supported",
        messages=(
            Message(
                r"FlashAttention\d? has been toggled on, but it cannot be used due to the "
                r"following error"
            ),
            Message(
                r"FlashAttention only supports? Ampere GPUs or newer",
                seen="Dao-AILab/flash-attention#762",
            ),
            Message(
                r"Flash ?Attention.{0,20} only supports? (?:fp16 and bf16|torch\.float16)",
                seen="unslothai/unsloth#827",
            ),
            Message(r"No module named 'flash_attn'", seen="lm-sys/FastChat#1664"),
        ),
        why="The config or the call sets attn_implementation='flash_attention_2'. It needs the "
        "flash-attn package, an Ampere GPU or newer, and half precision.",
        fix="Use attn_implementation='sdpa', which is nearly as fast. Otherwise run pip install "
        "flash-attn --no-build-isolation on a supported GPU, and use bf16.",
    ),
)
