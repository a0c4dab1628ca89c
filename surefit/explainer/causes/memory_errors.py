"""Memory of the GPU, of the machine and of /dev/shm, space on the disk; and devices."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.causes.dtype_errors import devices_differ, dtypes_of
from surefit.explainer.message_values import SPELLED, read_decimal, read_whole, remarks

LESS_MEMORY = (
    "A smaller --batch-size with a larger --grad-accum keeps the effective batch size. "
    "--max-tokens limits the padded positions of a micro-batch. An evaluation starts with its "
    "longest batch."
)
SIZE = r"(?<![\d.])([\d.]{1,20}) ?(bytes|[KMGT]i?B)\b"
POWERS = {"b": 0, "K": 1, "M": 2, "G": 3, "T": 4}
FRAGMENTED = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."


def _gpu_memory(context: Context) -> list[str]:
    text = " ".join(context.text.split())
    requested = _size(rf"Tried to allocate {SIZE}", text)
    free = _size(rf"of which {SIZE} is free", text) or _size(rf"{SIZE} free;", text)
    total = _size(rf"total capaci?ty of {SIZE}", text) or _size(rf"{SIZE} total capacity", text)
    unused = _size(rf"{SIZE} is reserved by PyTorch but unallocated", text)
    lines = []
    if requested and free is not None and total:
        lines.append(
            f"The request was {_shown(requested)}; {_shown(free)} of {_shown(total)} were free."
        )
    if requested and total and requested > total:
        lines.append(
            "The single request is larger than the GPU: the logits (rows × length × vocabulary × 4 "
            "bytes), or attention over one very long row. A smaller batch may not be enough."
        )
    elif requested and free and free > requested:
        lines.append(
            "More memory was free than requested, but not in one piece: the memory is fragmented. "
            + FRAGMENTED
        )
    elif requested and unused and unused > requested:
        lines.append(
            f"{_shown(unused)} are reserved but unused, more than requested: the memory is "
            f"fragmented, as it gets with rows of very different lengths. {FRAGMENTED}"
        )
    return [*lines, *_when(text)]


MOMENTS = {
    r"\bin (?:evaluate|evaluation_loop|prediction_step|nested_concat)\b": (
        "It happened during evaluation, where Trainer gathers all logits on the GPU. Set "
        "eval_accumulation_steps, or return argmax from preprocess_logits_for_metrics."
    ),
    r"optimizer\.step|_init_group|exp_avg|adamw\.py": (
        "It happened in the optimizer step. In the first one, AdamW allocates 8 bytes per trained "
        "parameter."
    ),
}


def _when(text: str) -> list[str]:
    """Return at which point of a run the memory ran out, as far as the text shows it."""
    lines = remarks(text, MOMENTS)
    steps = re.findall(r"(?<!\d)(\d{1,9})/\d{1,9} \[", text)
    last = read_whole(steps[-1]) if steps else None
    if last is not None and last > 10:
        lines.append(
            f"The run had finished {last} steps: a longer batch came later. The longest batch "
            "decides, not the first."
        )
    return lines


def _size(pattern: str, text: str) -> float | None:
    """Return the bytes that a pattern names; None if the text has none, or no number."""
    found = re.search(pattern, text)
    number = read_decimal(found[1]) if found else None
    return None if found is None or number is None else number * 1024.0 ** POWERS[found[2][0]]


def _shown(size_bytes: float) -> str:
    if size_bytes >= 2**28:
        return f"{size_bytes / 2**30:.2f} GiB"
    return f"{size_bytes / 2**20:.0f} MiB"


def _one_tensor(context: Context) -> list[str]:
    size_bytes = context.number("bytes")
    if size_bytes is None:
        return []
    lines = [f"One tensor of {size_bytes / 1e9:.1f} GB was requested."]
    if size_bytes > 10**11:
        lines.append(
            "A batch is never that large: a size was computed wrongly, or a whole dataset became "
            "one tensor."
        )
    return lines


CAUSES = (
    Cause(
        "SF650",
        "the GPU is out of memory",
        messages=(
            Message(r"CUDA (?:error: )?out of memory", seen="pytorch/pytorch#16417"),
            Message(r"torch\.(?:cuda\.)?OutOfMemoryError", seen="murong-xu/CADS#4"),
            Message(r"CUBLAS_STATUS_ALLOC_FAILED", seen="QwenLM/Qwen3#873"),
            Message(r"MPS backend out of memory", seen="Comfy-Org/ComfyUI#7372"),
            Message(r"HIP out of memory", seen="pytorch/pytorch#138002"),
        ),
        why="Weights, gradients, optimizer state and the activations of this batch do not fit "
        "together. Activations grow with rows × length (attention without a fused kernel with "
        "length²), and logits with rows × length × vocabulary.",
        fix="Try in this order: a smaller per_device_train_batch_size with more "
        "gradient_accumulation_steps; shorter rows (truncation, grouping by length); "
        "gradient_checkpointing=True; bf16; LoRA, which needs no gradients and optimizer state for "
        "the base model. End other processes on the GPU (nvidia-smi).",
        in_surefit=LESS_MEMORY,
        does_not_help=(
            "torch.cuda.empty_cache(): torch empties its cache before it raises this error.",
            "del and gc.collect() in the loop, unless your code keeps tensors of earlier steps.",
            "Loading the data in smaller parts: the GPU holds one batch, not the dataset.",
        ),
        derive=_gpu_memory,
    ),
    Cause(
        "SF651",
        "the machine is out of memory",
        messages=(
            Message(
                r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to "
                r"allocate (?P<bytes>\d+) bytes"
            ),
            Message(
                r"Unable to allocate (?P<size>[\d.]{1,20}) (?P<unit>[KMGT]iB) for an array with "
                r"shape \((?P<shape>[\d, ]{1,60})\)",
                needs_library=True,
            ),
            Message(r"\[enforce fail at \w{0,40}alloc_cpu\.cpp"),
        ),
        why="One request was larger than the free memory of the machine or container. The whole "
        "dataset was loaded or converted at once (float64 doubles it), or the batch is too large.",
        fix="Keep the data on disk (datasets, np.load(…, mmap_mode='r')), convert it batch by "
        "batch, use float32 instead of float64, or use a smaller batch.",
        in_surefit="Columns stay on disk, so memory does not grow with the number of rows. "
        + LESS_MEMORY,
        does_not_help=("More swap: training would wait for the disk.",),
        derive=_one_tensor,
    ),
    Cause(
        "SF652",
        "the system killed the process because memory ran out",
        messages=(
            Message(r"Signal 9 \(SIGKILL\) received by PID", seen="fidelity/stoke#31"),
            Message(r"\(exitcode: -9\)", seen="hpcaitech/ColossalAI#3514"),
            Message(
                r"(?i)^(?:\[\d{1,4}\][+-]? ?)?(?:\d{3,9} )?killed$|: line \d+: \d{3,9} killed\b",
                seen="hiyouga/LlamaFactory#1138",
            ),
            Message(
                r"(?i)out of memory: killed process|oom[- ]kill(?:er)?\b|OOMKilled",
                seen="DagnyT/hardnet#19",
            ),
            Message(
                r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,60}\) is killed by signal: Killed",
                seen="pytorch/pytorch#8976",
            ),
            Message(r"died with <Signals\.SIGKILL: 9>", seen="Linaqruf/kohya-trainer#148"),
            Message(
                r"(?i)exit(?:ed)? (?:with )?(?:code|status)[ :=]{0,4}137\b",
                seen="open-mmlab/mmpretrain#1939",
            ),
        ),
        why="Linux, or the limit of the container, killed the process. Python cannot print a "
        "message then. Common causes: a dataset as Python lists, copied by every DataLoader "
        "worker; a model loaded in every process; an evaluation that keeps all logits.",
        fix="Confirm it with dmesg | grep -i kill. Use fewer workers, memory-mapped data "
        "(datasets, numpy mmap) instead of lists, low_cpu_mem_usage and eval_accumulation_steps, "
        "or raise the limit of the container.",
        in_surefit="Columns stay on disk, and metrics take constant memory.",
        does_not_help=("A smaller learning rate or fewer epochs.",),
    ),
    Cause(
        "SF653",
        "shared memory is full, or a DataLoader worker died",
        messages=(
            Message(
                r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,60}\) (?:is killed by signal: Bus "
                r"error|exited unexpectedly)",
                seen="pytorch/pytorch#5040",
            ),
            Message(
                r"(?i)unexpected bus error encountered in worker", seen="facebookresearch/mmf#441"
            ),
            Message(
                r"unable to (?:open|write|mmap|resize).{0,40} shared memory (?:object|file)",
                seen="pytorch/pytorch#73644",
            ),
            Message(
                r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,60}\) is killed by signal: "
                r"(?P<signal>\w[\w ]{1,40})",
                seen="facebookresearch/SlowFast#443",
            ),
        ),
        why="Workers pass batches through /dev/shm, which has 64 MB in a container by default. A "
        "worker that cannot write there dies with a bus error. A worker that 'exited unexpectedly' "
        "died for another reason, which num_workers=0 shows.",
        fix="Run docker with --shm-size=8g or --ipc=host, use fewer workers or smaller batches, or "
        "call torch.multiprocessing.set_sharing_strategy('file_system'). Set num_workers=0 to see "
        "the original error.",
        in_surefit="A thread creates the batches, so nothing passes through /dev/shm.",
        does_not_help=("More GPU memory: this is memory of the machine.",),
    ),
    Cause(
        "SF654",
        "the disk is full",
        messages=(
            Message(r"PytorchStreamWriter failed writing file", seen="zai-org/ChatGLM-6B#1166"),
            Message(
                r"SafetensorError.{0,120}No space left on device", seen="hiyouga/LlamaFactory#5155"
            ),
            Message(
                r"\[Errno 28\] No space left on device",
                seen="NVIDIA/Megatron-LM#878",
                needs_library=True,
            ),
        ),
        why="There is no space left for a checkpoint, a cache or /tmp. A checkpoint with AdamW has "
        "three times the size of the weights, and Trainer keeps every checkpoint by default.",
        fix="Set save_total_limit=2. Free or move the caches (HF_HOME, HF_DATASETS_CACHE). df -h "
        "shows the disks and /dev/shm.",
        in_surefit="`keep` limits the number of checkpoints. surefit writes a file completely or "
        "not at all, so the last checkpoint is intact.",
    ),
    Cause(
        "SF655",
        "even a batch of one row does not fit into memory",
        messages=(Message(r"No executable batch size found, reached zero"),),
        why="find_executable_batch_size halved the batch size after every out-of-memory error "
        "until it reached zero. It also retries after other errors that look similar.",
        fix="Use shorter rows, gradient checkpointing, LoRA or a smaller model. Look at the first "
        "error in the log, before the retries.",
        in_surefit=LESS_MEMORY,
        does_not_help=("Smaller batches: one row is already too large.",),
    ),
)


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


DEVICES = (
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
