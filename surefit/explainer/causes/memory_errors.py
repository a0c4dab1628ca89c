"""Memory: of the GPU, of the machine, of /dev/shm, and room on disk."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Form

LESS = (
    "--batch-size with more --grad-accum keeps the effective batch, --max-tokens bounds a "
    "micro-batch by its padded positions, and an evaluation begins with its longest batch."
)


def _gpu(context: Context) -> list[str]:
    text = context.text
    lines = []
    tried, free = _bytes(text, r"Tried to allocate"), _bytes(text, r"of which", r"is free")
    total = _bytes(text, r"total capaci?ty of") or _before(text, r"total capacity")
    free = free or _before(text, r"free;")
    reserved = _before(text, r"is reserved by PyTorch but unallocated")
    if tried and free is not None and total:
        lines.append(f"{_gb(tried)} were asked for, {_gb(free)} of {_gb(total)} were free.")
    if tried and free is not None and free > tried:
        lines.append(
            "More was free than was asked for, but in no single piece: the memory is fragmented. "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps."
        )
    if tried and total and tried > total:
        lines.append(
            "The single request is larger than the whole GPU: the logits "
            "(rows × length × vocabulary × 4 bytes) or attention over one very long row; a "
            "smaller batch alone may not do."
        )
    if reserved and tried and reserved > tried:
        lines.append(
            f"{_gb(reserved)} are reserved but unused, more than was asked for: the memory "
            "is fragmented; rows of very different lengths do that. "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps."
        )
    if re.search(r"(?i)evaluat|prediction_step|evaluation_loop|nested_concat", text):
        lines.append(
            "It happened in evaluation: Trainer gathers all logits on the GPU. Use "
            "eval_accumulation_steps, or preprocess_logits_for_metrics=argmax."
        )
    if re.search(r"optimizer\.step|_init_group|exp_avg|adamw\.py", text):
        lines.append(
            "It happened in the first optimizer step, where AdamW adds 8 bytes per "
            "trained parameter."
        )
    steps = re.findall(r"(\d+)/\d+ \[", text)
    if steps and int(steps[-1]) > 10:
        lines.append(
            f"The run had done {steps[-1]} steps: a longer batch came later. The longest "
            "batch decides, not the first."
        )
    return lines


def _bytes(text: str, before: str, after: str = "") -> float | None:
    found = re.search(
        before + r"\s+([\d.]+)\s*(bytes|[KMGT]i?B)\b" + (r"\s+" + after if after else ""), text
    )
    return _number(found) if found else None


def _before(text: str, after: str) -> float | None:
    found = re.search(r"([\d.]+)\s*(bytes|[KMGT]i?B)\s+" + after, text)
    return _number(found) if found else None


def _number(found: re.Match[str]) -> float:
    powers = {"b": 0, "K": 1, "M": 2, "G": 3, "T": 4}
    return float(found[1]) * 1024.0 ** powers[found[2][0]]


def _gb(size_bytes: float) -> str:
    return (
        f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**28 else f"{size_bytes / 2**20:.0f} MiB"
    )


def _request(context: Context) -> list[str]:
    size = context.values.get("bytes")
    if size is None:
        return []
    lines = [f"One tensor of {int(size) / 1e9:.1f} GB was asked for."]
    if int(size) > 10**11:
        lines.append(
            "That is no batch: a size was computed wrongly, or a whole data set became one tensor."
        )
    return lines


CAUSES = (
    Cause(
        "SF650",
        "the GPU's memory is full",
        (
            Form(r"CUDA (?:error: )?out of memory", seen="pytorch/pytorch#16417"),
            Form(r"(?:torch\.|torch\.cuda\.)OutOfMemoryError", seen="murong-xu/CADS#4"),
            Form(r"CUBLAS_STATUS_ALLOC_FAILED", seen="QwenLM/Qwen3#873"),
            Form(r"MPS backend out of memory", seen="Comfy-Org/ComfyUI#7372"),
            Form(r"HIP out of memory", seen="pytorch/pytorch#138002"),
        ),
        "Weights, gradients, optimizer state and the activations of this batch do not fit "
        "together. Activations grow with rows × length (attention without a fused kernel with "
        "length²), the logits with rows × length × vocabulary.",
        "In this order: a smaller per_device_train_batch_size with more "
        "gradient_accumulation_steps; shorter rows (truncation, grouping by length); "
        "gradient_checkpointing=True; bf16; LoRA, which drops gradients and optimizer state of the "
        "body. End other processes on the GPU (nvidia-smi).",
        LESS,
        (
            "torch.cuda.empty_cache(): torch frees its own cache before it gives up.",
            "del and gc.collect() in the loop, unless you keep tensors of earlier steps yourself.",
            "Loading the data in smaller parts: the data set is not on the GPU, one batch is.",
        ),
        _gpu,
    ),
    Cause(
        "SF651",
        "the machine's memory is full",
        (
            Form(
                r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to "
                r"allocate (?P<bytes>\d+) bytes"
            ),
            Form(
                r"Unable to allocate (?P<size>[\d.]+) (?P<unit>[KMGT]iB) for an array with shape "
                r"\((?P<shape>[\d, ]+)\)",
                libraries_only=True,
            ),
            Form(r"\[enforce fail at \w*alloc_cpu\.cpp"),
        ),
        "One request was larger than what the machine or container has left: the whole data set "
        "was loaded or converted at once (float64 doubles it), or the batch is too large.",
        "Keep the data on disk (datasets, np.load(…, mmap_mode='r')), convert batch by batch, "
        "float32 instead of float64, a smaller batch.",
        "Columns stay on disk; memory does not grow with the rows. " + LESS,
        ("More swap: training would wait for the disk.",),
        _request,
    ),
    Cause(
        "SF652",
        "killed by the system for lack of memory",
        (
            Form(r"Signal 9 \(SIGKILL\) received by PID", seen="fidelity/stoke#31"),
            Form(r"\(exitcode: -9\)", seen="hpcaitech/ColossalAI#3514"),
            Form(r"(?i)^\S{0,40}\s?\bkilled\s*$", seen="hiyouga/LlamaFactory#1138"),
            Form(
                r"(?i)(?:out of memory: killed process|oom[- ]kill(?:er)?\b|OOMKilled)",
                seen="DagnyT/hardnet#19",
            ),
            Form(
                r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed",
                seen="pytorch/pytorch#8976",
            ),
            Form(r"died with <Signals\.SIGKILL: 9>", seen="Linaqruf/kohya-trainer#148"),
            Form(
                r"(?i)exit(?:ed)? (?:with )?(?:code|status)[ :=]*137\b",
                seen="open-mmlab/mmpretrain#1939",
            ),
        ),
        "Linux (or the container's limit) killed the process because memory ran out; no Python "
        "message is possible then. Usual sources: the data set as Python lists, copied by every "
        "DataLoader worker; a model loaded in every process; evaluation keeping all logits.",
        "dmesg | grep -i kill shows it. Fewer workers, data memory-mapped (datasets, numpy mmap) "
        "instead of lists, low_cpu_mem_usage, eval_accumulation_steps; a larger container limit.",
        "Columns stay on disk, and metrics take constant memory.",
        ("A smaller learning rate or fewer epochs.",),
    ),
    Cause(
        "SF653",
        "shared memory is full, or a worker of the DataLoader died",
        (
            Form(
                r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: Bus "
                r"error|exited unexpectedly)",
                seen="pytorch/pytorch#5040",
            ),
            Form(
                r"(?i)unexpected bus error encountered in worker", seen="facebookresearch/mmf#441"
            ),
            Form(
                r"unable to (?:open|write|mmap|resize).{0,40} shared memory (?:object|file)",
                seen="pytorch/pytorch#73644",
            ),
            Form(
                r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: "
                r"(?P<signal>\w[\w ]+)",
                seen="facebookresearch/SlowFast#443",
            ),
        ),
        "Workers hand batches over in /dev/shm, which is 64 MB in a container by default; a "
        "worker that cannot write there dies of a bus error. One that 'exited unexpectedly' died "
        "for another reason, which num_workers=0 shows.",
        "docker run --shm-size=8g (or --ipc=host); fewer workers or smaller batches; "
        "num_workers=0 to see the real error; "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
        "Batches are made by a thread, not by processes: nothing passes through /dev/shm.",
        ("More GPU memory: this is memory of the machine.",),
    ),
    Cause(
        "SF654",
        "the disk is full",
        (
            Form(r"PytorchStreamWriter failed writing file", seen="zai-org/ChatGLM-6B#1166"),
            Form(
                r"SafetensorError.{0,120}No space left on device", seen="hiyouga/LlamaFactory#5155"
            ),
            Form(
                r"\[Errno 28\] No space left on device",
                seen="NVIDIA/Megatron-LM#878",
                libraries_only=True,
            ),
        ),
        "A checkpoint, a cache or /tmp has no room left. A checkpoint with AdamW is three times "
        "the size of the weights, and Trainer keeps every one of them unless told otherwise.",
        "save_total_limit=2; free or move the caches (HF_HOME, HF_DATASETS_CACHE); df -h for the "
        "disk and for /dev/shm.",
        "`keep` bounds the checkpoints; a file is written whole or not at all, so the last one is "
        "good.",
    ),
    Cause(
        "SF655",
        "no batch size is small enough",
        (Form(r"No executable batch size found, reached zero"),),
        "find_executable_batch_size halved the batch after each lack of memory until nothing was "
        "left: even one row does not fit. It also retries after other errors that look like one.",
        "Shorter rows, gradient checkpointing, LoRA, a smaller model; look at the first error of "
        "the log, before the retries.",
        LESS,
        ("Smaller batches: one row is already too much.",),
    ),
)
