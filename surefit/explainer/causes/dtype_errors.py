"""Tensors of different dtypes or on different devices that meet."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Form


def _dtypes(context: Context) -> list[str]:
    found, expected = str(context.values.get("found", "")), str(context.values.get("expected", ""))
    if "Double" in (found, expected):
        return [
            "Double is NumPy's default: torch.from_numpy keeps float64. Use .float() or np.float32."
        ]
    if "Long" in (found, expected) or "Int" in (found, expected):
        return [
            "Whole numbers went where floating point is wanted: features or regression targets "
            "were stored as integers. Use .float()."
        ]
    if {"Half", "BFloat16"} & {found, expected}:
        return [
            "One side is half precision and the other is not: the model (or a head added later, "
            "or a LoRA adapter) was loaded in another dtype than the batch is computed in. Use "
            "autocast, or one dtype for all."
        ]
    return []


def _sides(context: Context) -> list[str]:
    inputs, weights = str(context.values["inputs"]), str(context.values["weights"])
    input_gpu, weight_gpu = "cuda" in inputs, "cuda" in weights
    if input_gpu != weight_gpu:
        left, right = ("the GPU", "the CPU") if input_gpu else ("the CPU", "the GPU")
        return [f"The batch is on {left}, the layer on {right}."]
    return [f"Both are on one device, but the input is {inputs} and the weight {weights}."]


CAUSES = (
    Cause(
        "SF640",
        "two floating dtypes meet",
        (
            Form(
                r"mat1 and mat2 must have the same dtype(?:, but got (?P<found>\w+) and "
                r"(?P<expected>\w+))?"
            ),
            Form(
                r"expected scalar type (?P<expected>Float|Half|BFloat16|Double) but found "
                r"(?P<found>\w+)",
                seen="hiyouga/LlamaFactory#1233",
            ),
            Form(
                r"expected (?:m1 and m2|mat1 and mat2) to have the same dtype, but got: "
                r"(?:struct )?(?:c10::)?(?P<found>\w+) ?!= (?:struct )?(?:c10::)?(?P<expected>\w+)",
                seen="zjukg/KoPA#11",
            ),
            Form(
                r"Found dtype (?P<found>\w+) but expected (?P<expected>\w+)",
                seen="huggingface/sentence-transformers#770",
            ),
            Form(
                r"Expected query, key, and value to have the same dtype, but got query\.dtype: "
                r"(?P<found>[\w.:]+) key\.dtype: (?P<expected>[\w.:]+)"
            ),
        ),
        "An operation got two dtypes: features as float64 from NumPy, labels as integers, or a "
        "model in half precision whose inputs or added layers are float32.",
        "Cast the data once: features.float(), labels.float() for regression. Keep trainable "
        "weights in float32 and compute under torch.autocast, or cast added heads with "
        ".to(model.dtype).",
        "Fields have one dtype, features are float32; precision is set for the whole run.",
        ("model.double(): twice the memory for the same data.",),
        _dtypes,
    ),
    Cause(
        "SF641",
        "the batch and the model are on different devices",
        (
            Form(
                r"Input type \((?P<inputs>[\w.]*(?:cuda|mps)?[\w.]*)\) and (?:weight|bias) type "
                r"\((?P<weights>[\w.]+)\) should be the same"
            ),
        ),
        "The layer's weight and its input differ in device or dtype: the model was moved to the "
        "GPU and the batch was not (or the reverse), or a layer stands in a plain list, which "
        "model.to(device) does not see.",
        "model.to(device) once, and {k: v.to(device) for k, v in batch.items()} for every batch; "
        "layers in nn.ModuleList; .float() if only the dtype differs.",
        "Every batch is made on the device of the model.",
        ("Installing another CUDA version: the tensors stay where they are.",),
        _sides,
    ),
    Cause(
        "SF642",
        "tensors on two devices",
        (
            Form(
                r"Expected all tensors to be on the same device, but (?:found at least two "
                r"devices, (?P<one>[\w:]+)(?: and|,) (?P<other>[\w:]+)|got "
                r".{0,40}(?P<argument>\w+))",
                seen="kijai/ComfyUI-FluxTrainer#116",
            ),
            Form(
                r"Tensor on device (?P<one>[\w:]+) is not on the expected device (?P<other>[\w:]+)"
            ),
            Form(
                r"Expected object of (?:device type|backend) (?P<one>\w+) but got (?:device "
                r"type|backend) (?P<other>\w+)",
                seen="yangjianxin1/GPT2-chitchat#8",
            ),
        ),
        "Two tensors of one operation live on different devices: a batch that was not moved, a "
        "tensor made inside forward() without a device, or a model spread by device_map whose "
        "labels or loss weights are elsewhere.",
        "Move the batch; make tensors with device=x.device; register constants with "
        "register_buffer; with device_map='auto' leave the moving to accelerate.",
        "Every batch is made on the device of the model.",
        derive=lambda context: (
            ["'meta' tensors have no data: weights were never loaded, or device_map left them out."]
            if "meta" in (context.values.get("one"), context.values.get("other"))
            else []
        ),
    ),
    Cause(
        "SF643",
        "weights without data",
        (Form(r"Cannot copy out of meta tensor; no data!"),),
        "The module is on the meta device: its weights were never filled (an offloaded or partly "
        "loaded model, low_cpu_mem_usage with missing keys).",
        "Load again without device_map or offloading, see that no key is reported missing; "
        "model.to_empty(device) only if the weights are loaded afterwards.",
        "Models are loaded whole, and missing weights are reported.",
    ),
    Cause(
        "SF644",
        "no CUDA here",
        (
            Form(r"Torch not compiled with CUDA enabled"),
            Form(
                r"Attempting to deserialize object on a CUDA device but "
                r"torch\.cuda\.is_available\(\) is False"
            ),
            Form(r"No CUDA GPUs are available", seen="thuml/Anomaly-Transformer#74"),
            Form(r"Found no NVIDIA driver on your system", seen="princeton-nlp/SimCSE#244"),
        ),
        "The code asks for a GPU that this torch or this machine does not have: a CPU build of "
        "torch, no driver, a container without --gpus, or a checkpoint saved on a GPU.",
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'; torch.load(…, "
        "map_location='cpu'); docker run --gpus all; a CUDA build of torch.",
        "The device is chosen by what is there; checkpoints are safetensors, which name none.",
    ),
    Cause(
        "SF645",
        "torch was not built for this GPU",
        (
            Form(
                r"no kernel image is available for execution on the device",
                seen="vllm-project/vllm#18835",
            ),
            Form(
                r"with CUDA capability sm_\d+ is not compatible with the current PyTorch "
                r"installation",
                seen="pytorch/pytorch#45028",
            ),
        ),
        "The installed torch, or an extension of it, has no kernels for this GPU's architecture: "
        "the GPU is newer or older than the build.",
        "Install the torch build of a CUDA version that knows the GPU (torch.cuda.get_arch_list() "
        "lists the architectures); rebuild extensions such as flash-attn.",
    ),
    Cause(
        "SF646",
        "bf16 or fp16 that this device cannot do",
        (
            Form(r"Your setup doesn't support bf16(?:/gpu)?"),
            Form(
                r"(?:FP16 )?Mixed precision training with AMP or APEX \(`--fp16`\).{0,80} can "
                r"only be used on CUDA devices",
                seen="princeton-nlp/SimCSE#273",
            ),
            Form(
                r"bf16 mixed precision requires PyTorch >= 1\.10 and a supported device",
                seen="huggingface/accelerate#3064",
            ),
            Form(r"\"(?P<operation>\w+)\" not implemented for 'Half'", seen="X-PLUG/mPLUG-Owl#81"),
        ),
        "Half precision was asked for on a device without it: bf16 needs an Ampere GPU or newer "
        "(or use_cpu), fp16 training needs CUDA, and several operations have no fp16 on the CPU.",
        "fp16=True on GPUs before Ampere (V100, T4), neither on a CPU (bf16=True, use_cpu=True "
        "works there); load models in float32 on the CPU.",
        "precision=auto takes bf16 where CUDA has it, else fp32, and refuses what is not there.",
    ),
    Cause(
        "SF647",
        "FlashAttention is not installed or does not fit",
        (
            Form(
                r"FlashAttention\d? has been toggled on, but it cannot be used due to the "
                r"following error"
            ),
            Form(
                r"FlashAttention only supports? Ampere GPUs or newer",
                seen="Dao-AILab/flash-attention#762",
            ),
            Form(
                r"(?:Flash ?Attention|FlashAttention).{0,20} only supports? (?:fp16 and "
                r"bf16|torch\.float16)",
                seen="unslothai/unsloth#827",
            ),
            Form(r"No module named 'flash_attn'", seen="lm-sys/FastChat#1664"),
        ),
        "The config or the call asks for attn_implementation='flash_attention_2', which needs the "
        "flash-attn package, an Ampere GPU or newer, and half precision.",
        "attn_implementation='sdpa', which is nearly as fast; else pip install flash-attn "
        "--no-build-isolation on a fitting GPU, and bf16.",
    ),
)
