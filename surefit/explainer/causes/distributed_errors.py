"""Several processes: workers of a DataLoader, DDP, NCCL, launchers."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Form


def _product(context: Context) -> list[str]:
    values = [context.values.get(name) for name in ("total", "micro", "accumulation", "world")]
    if any(value is None for value in values):
        return []
    total, micro, accumulation, world = (int(value) for value in values if value is not None)
    lines = [f"{micro} × {accumulation} × {world} = {micro * accumulation * world}, not {total}."]
    wanted = total // (micro * accumulation) if total % (micro * accumulation) == 0 else None
    if world == 1 and wanted and wanted > 1:
        lines.append(
            f"{total} would fit {wanted} processes: the launcher started only one, or "
            "DeepSpeed read the world size before it was set up."
        )
    return lines


CAUSES = (
    Cause(
        "SF656",
        "too many open files",
        (
            Form(
                r"\[Errno 24\] Too many open files",
                libraries_only=True,
                seen="kuleshov-group/caduceus#58",
            ),
            Form(r"received 0 items of ancdata", seen="pytorch/pytorch#973"),
            Form(
                r"Too many open files\. Communication with the workers is no longer possible",
                seen="pytorch/pytorch#34768",
            ),
        ),
        "Workers pass each tensor as an open file, and the limit (often 1024) is reached: many "
        "tensors per batch, or batches kept by the main process (a list of outputs).",
        "torch.multiprocessing.set_sharing_strategy('file_system'), ulimit -n 65536; do not keep "
        "the tensors of earlier batches: .clone() or .cpu().numpy().copy().",
        "Batches are made by a thread; no tensor is passed as a file.",
    ),
    Cause(
        "SF657",
        "something that cannot be sent to a worker",
        (
            Form(
                r"Can't (?:pickle|get) local (?:object|attribute) '?(?P<name>[\w.<>]+)",
                libraries_only=True,
            ),
            Form(
                r"Can't pickle <(?P<name>function [\w.<> ]+)",
                libraries_only=True,
            ),
            Form(r"[Cc]annot pickle '(?P<name>[\w.]+)' object", libraries_only=True),
        ),
        "Workers that are spawned (macOS, Windows, or by choice) get dataset and collate_fn by "
        "pickle, and a lambda, a function inside a function, or an open handle cannot be pickled.",
        "Define collate_fn and transforms at the top of a module; use functools.partial instead "
        "of a lambda; open files and locks inside __getitem__; or num_workers=0.",
        "Batches are made by a thread, so nothing is pickled.",
    ),
    Cause(
        "SF658",
        "the main module starts processes when it is imported",
        (
            Form(
                r"An attempt has been made to start a new process before the current process has "
                r"finished its bootstrapping phase",
                seen="Project-MONAI/MONAI#755",
            ),
        ),
        "Spawned workers import the script again; a script that trains at its top level starts "
        "training again in each of them.",
        "Put the calls under if __name__ == '__main__':, or num_workers=0.",
        "`surefit train` is a command: no script is imported again.",
    ),
    Cause(
        "SF659",
        "CUDA in a forked worker",
        (Form(r"Cannot re-initialize CUDA in forked subprocess", seen="pytorch/pytorch#40403"),),
        "A worker that was forked after CUDA was in use cannot use it: the dataset or collate_fn "
        "moves tensors to the GPU, or map(num_proc=…) runs a model.",
        "Keep the data on the CPU in workers and move the batch in the loop; for models in map() "
        "use multiprocess.set_start_method('spawn').",
        "Rows are encoded on the CPU, and each batch is moved by the loop.",
        ("pin_memory: it does not change where the worker computes.",),
    ),
    Cause(
        "SF660",
        "DDP waits for parameters that got no gradient",
        (
            Form(
                r"Expected to have finished reduction in the prior iteration before starting a "
                r"new one",
                seen="pytorch/pytorch#43259",
            ),
        ),
        "Parameters of the model took no part in this step's loss (a branch not taken, a frozen or "
        "unused head, a pooler), and DDP waits for their gradients.",
        "Freeze or remove what is unused, or find_unused_parameters=True (TrainingArguments: "
        "ddp_find_unused_parameters=True). TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters.",
        "DDP is told to look for unused ones.",
    ),
    Cause(
        "SF661",
        "DDP and reentrant checkpointing",
        (Form(r"Expected to mark a variable ready only once", seen="huggingface/accelerate#389"),),
        "Reentrant gradient checkpointing runs backward inside backward, so that DDP sees a "
        "parameter twice; find_unused_parameters=True or shared layers do the same.",
        "gradient_checkpointing_kwargs={'use_reentrant': False}, and "
        "ddp_find_unused_parameters=False if nothing is unused.",
    ),
    Cause(
        "SF662",
        "the processes do not wait for each other",
        (
            Form(r"Watchdog caught collective operation timeout", seen="pytorch/pytorch#118369"),
            Form(
                r"Timed out after \d+ (?:ms|seconds) waiting for clients",
                seen="OpenRLHF/OpenRLHF#1040",
            ),
        ),
        "One process did not arrive at an operation that all must do together. Seldom the "
        "network: one rank failed (look for its traceback above), has fewer batches, evaluates or "
        "saves alone, or tokenises for longer than the timeout.",
        "Find the first error of any rank. Equal numbers of batches per rank; call evaluate, save "
        "and gather on all ranks; preprocess before launching, or ddp_timeout=7200.",
        "Each process takes an equal share of every step.",
        ("A longer timeout, if a rank has died: it only waits longer.",),
    ),
    Cause(
        "SF663",
        "NCCL cannot connect the GPUs",
        (
            Form(
                r"NCCL [Ee]rror.{0,200}?(?:unhandled (?:system|cuda) error|internal error|invalid "
                r"usage|remote process exited)",
                seen="NVIDIA/nccl#1016",
            ),
            Form(
                r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage",
                seen="NVIDIA/nccl#1016",
            ),
        ),
        "The GPUs' communication failed to set up or broke: two ranks on one GPU, a wrong network "
        "interface, too little /dev/shm in a container, or a rank that died first.",
        "NCCL_DEBUG=INFO names the reason. One GPU per rank (torch.cuda.set_device(local_rank)); "
        "--shm-size or --ipc=host; NCCL_SOCKET_IFNAME=…; NCCL_P2P_DISABLE=1 to test.",
    ),
    Cause(
        "SF664",
        "the launcher's port is taken",
        (
            Form(
                r"The server socket has failed to (?:listen on any local network address|bind)",
                seen="meta-pytorch/torchtune#1025",
            ),
            Form(
                r"EADDRINUSE.{0,40}address already in use",
                libraries_only=True,
                seen="om-ai-lab/VLM-R1#289",
            ),
        ),
        "Another run on this machine uses the same port (29500 by default), or one that crashed "
        "still holds it.",
        "torchrun --master_port 29501, accelerate launch --main_process_port 0, or end the old "
        "process.",
    ),
    Cause(
        "SF665",
        "batch sizes that do not multiply",
        (
            Form(
                r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* "
                r"world_size ?(?P<total>\d+) != (?P<micro>\d+) \* (?P<accumulation>\d+) \* "
                r"(?P<world>\d+)",
                seen="deepspeedai/DeepSpeed#6914",
            ),
            Form(
                r"To use .{1,40} in `split_batches` mode, the batch size \((?P<batch>\d+)\) "
                r"needs to be a round multiple of the number of processes \((?P<processes>\d+)\)"
            ),
        ),
        "The batch size of the config and what the processes make of it contradict each other.",
        "DeepSpeed: leave train_batch_size at 'auto'. accelerate with split_batches: a batch size "
        "that the number of processes divides.",
        "--batch-size is per process; the effective batch is that × grad-accum × processes.",
        derive=_product,
    ),
    Cause(
        "SF666",
        "a model spread by device_map in several processes",
        (
            Form(
                r"You can't train a model that has been loaded with `device_map='auto'` in any "
                r"distributed mode",
                seen="huggingface/transformers#31557",
            ),
            Form(
                r"You can't train a model that has been loaded in 8-bit (?:or 4-bit "
                r")?(?:precision )?on a different device than the one you're training on",
                seen="yangjianxin1/Firefly#270",
            ),
        ),
        "device_map='auto' spreads one model over all GPUs; DDP wants a whole model on each.",
        "Several processes: device_map={'': PartialState().process_index} or none. One process: "
        "python script.py instead of torchrun.",
    ),
    Cause(
        "SF667",
        "the tokenizer was used before a fork",
        (
            Form(
                r"huggingface/tokenizers: The current process just got forked, after parallelism "
                r"has already been used",
                seen="huggingface/text-generation-inference#1035",
            ),
        ),
        "A warning, not a failure: the tokenizer's threads do not survive a fork, so it switches "
        "them off in the workers. It becomes a hang only if a worker was forked in the midst of "
        "tokenising.",
        "TOKENIZERS_PARALLELISM=false before starting, or tokenise before the DataLoader.",
        "Rows are tokenised once, before the first batch.",
        notice=True,
    ),
)
