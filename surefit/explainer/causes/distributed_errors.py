"""Several processes: DataLoader workers, DDP, NCCL and launchers."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.message_values import factor


def _batch_size_product(context: Context) -> list[str]:
    total, micro = context.number("total"), context.number("micro_batch")
    accumulation, processes = context.number("accumulation"), context.number("processes")
    if total is None or micro is None or accumulation is None or processes is None:
        return []
    product = micro * accumulation * processes
    lines = [f"{micro} × {accumulation} × {processes} = {product}, not {total}."]
    needed = factor(total, micro * accumulation)
    if processes == 1 and needed is not None:
        lines.append(
            f"{total} would fit {needed} processes: the launcher started only one, or DeepSpeed "
            "read the world size before it was set."
        )
    return lines


CAUSES = (
    Cause(
        "SF656",
        "too many files are open",
        messages=(
            Message(
                r"\[Errno 24\] Too many open files",
                needs_library=True,
                seen="kuleshov-group/caduceus#58",
            ),
            Message(r"received 0 items of ancdata", seen="pytorch/pytorch#973"),
            Message(
                r"Too many open files\. Communication with the workers is no longer possible",
                seen="pytorch/pytorch#34768",
            ),
        ),
        why="Workers pass every tensor as an open file, and the limit (often 1024) is reached. "
        "There are many tensors per batch, or the main process keeps batches, for example in a "
        "list of outputs.",
        fix="Call torch.multiprocessing.set_sharing_strategy('file_system'), or run ulimit -n "
        "65536. Do not keep tensors of earlier batches: use .clone() or .cpu().numpy().copy().",
        in_surefit="A thread creates the batches, so no tensor is passed as a file.",
    ),
    Cause(
        "SF657",
        "an object cannot be sent to a worker process",
        messages=(
            Message(
                r"Can't (?:pickle|get) local (?:object|attribute) '?(?P<name>[\w.<>]{1,120})",
                needs_library=True,
            ),
            Message(r"Can't pickle <(?P<name>function [\w.<> ]{1,120})", needs_library=True),
            Message(r"[Cc]annot pickle '(?P<name>[\w.]{1,120})' object", needs_library=True),
        ),
        why="Spawned workers (macOS, Windows, or by choice) receive the dataset and collate_fn by "
        "pickle. A lambda, a function inside a function, and an open file or lock cannot be "
        "pickled.",
        fix="Define collate_fn and transforms at the top level of a module, use functools.partial "
        "instead of a lambda, and open files inside __getitem__. Or set num_workers=0.",
        in_surefit="A thread creates the batches, so nothing is pickled.",
    ),
    Cause(
        "SF658",
        "the script starts training when a worker imports it",
        messages=(
            Message(
                r"An attempt has been made to start a new process before the current process has "
                r"finished its bootstrapping phase",
                seen="Project-MONAI/MONAI#755",
            ),
        ),
        why="Spawned workers import the script again. A script that trains at its top level starts "
        "training again in every worker.",
        fix="Put the calls under if __name__ == '__main__':, or set num_workers=0.",
        in_surefit="`surefit train` is a command, so no script is imported again.",
    ),
    Cause(
        "SF659",
        "CUDA is used in a forked worker",
        messages=(
            Message(
                r"Cannot re-initialize CUDA in forked subprocess", seen="pytorch/pytorch#40403"
            ),
        ),
        why="A worker that was forked after CUDA was initialised cannot use CUDA. The dataset or "
        "collate_fn moves tensors to the GPU, or map(num_proc=…) runs a model.",
        fix="Keep the data on the CPU in workers and move the batch in the training loop. For "
        "models in map(), call multiprocess.set_start_method('spawn').",
        in_surefit="surefit encodes rows on the CPU, and the training loop moves each batch.",
        does_not_help=("pin_memory: it does not change where the worker computes.",),
    ),
    Cause(
        "SF660",
        "DDP waits for parameters without a gradient",
        messages=(
            Message(
                r"Expected to have finished reduction in the prior iteration before starting a "
                r"new one",
                seen="pytorch/pytorch#43259",
            ),
        ),
        why="Some parameters took no part in the loss of this step (a branch that was not taken, "
        "an unused head or pooler), and DDP waits for their gradients.",
        fix="Freeze or remove unused parameters, or set find_unused_parameters=True "
        "(TrainingArguments: ddp_find_unused_parameters=True). TORCH_DISTRIBUTED_DEBUG=DETAIL "
        "names the parameters.",
        in_surefit="surefit runs DDP with find_unused_parameters=True.",
    ),
    Cause(
        "SF661",
        "DDP sees a parameter twice in one backward pass",
        messages=(
            Message(
                r"Expected to mark a variable ready only once", seen="huggingface/accelerate#389"
            ),
        ),
        why="Reentrant gradient checkpointing runs backward inside backward, so DDP sees a "
        "parameter twice. find_unused_parameters=True and shared layers have the same effect.",
        fix="Set gradient_checkpointing_kwargs={'use_reentrant': False}, and "
        "ddp_find_unused_parameters=False if no parameter is unused.",
    ),
    Cause(
        "SF662",
        "one process did not reach a collective operation",
        messages=(
            Message(r"Watchdog caught collective operation timeout", seen="pytorch/pytorch#118369"),
            Message(
                r"Timed out after \d+ (?:ms|seconds) waiting for clients\. \d+/\d+ clients joined",
                seen="OpenRLHF/OpenRLHF#1040",
            ),
        ),
        why="All processes must take part in a collective operation, and one did not. The network "
        "is rarely the cause: one rank failed (look for its traceback above), has fewer batches, "
        "evaluates or saves alone, or tokenises for longer than the timeout.",
        fix="Find the first error of any rank. Give every rank the same number of batches, and "
        "call evaluate, save and gather on all ranks. Preprocess before launching, or set "
        "ddp_timeout=7200.",
        in_surefit="Every process takes an equal share of every step.",
        does_not_help=("A longer timeout, if a rank has failed: the others only wait longer.",),
    ),
    Cause(
        "SF663",
        "NCCL cannot connect the GPUs",
        messages=(
            Message(
                r"NCCL [Ee]rror.{0,200}?(?:unhandled (?:system|cuda) error|internal error|invalid "
                r"usage|remote process exited)",
                seen="NVIDIA/nccl#1016",
            ),
            Message(
                r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage",
                seen="NVIDIA/nccl#1016",
            ),
        ),
        why="The communication between the GPUs could not be set up, or broke. Common causes: two "
        "ranks on one GPU, the wrong network interface, too little /dev/shm in a container, or a "
        "rank that failed first.",
        fix="Set NCCL_DEBUG=INFO to see the reason. Use one GPU per rank "
        "(torch.cuda.set_device(local_rank)), docker with --shm-size or --ipc=host, and "
        "NCCL_SOCKET_IFNAME=…. Set NCCL_P2P_DISABLE=1 as a test.",
    ),
    Cause(
        "SF664",
        "the port of the launcher is in use",
        messages=(
            Message(
                r"The server socket has failed to (?:listen on any local network address|bind)",
                seen="meta-pytorch/torchtune#1025",
            ),
            Message(
                r"name: EADDRINUSE, message: address already in use",
                seen="om-ai-lab/VLM-R1#289",
            ),
        ),
        why="Another run on this machine uses the same port (29500 by default), or a crashed run "
        "still holds it.",
        fix="Use torchrun --master_port 29501 or accelerate launch --main_process_port 0, or end "
        "the old process.",
    ),
    Cause(
        "SF665",
        "the batch size does not fit the number of processes",
        messages=(
            Message(
                r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* "
                r"world_size ?(?P<total>\d+) != (?P<micro_batch>\d+) \* (?P<accumulation>\d+) \* "
                r"(?P<processes>\d+)",
                seen="deepspeedai/DeepSpeed#6914",
            ),
            Message(
                r"in `split_batches` mode, the batch size \((?P<batch_size>\d+)\) needs to be a "
                r"round multiple of the number of processes \((?P<processes>\d+)\)"
            ),
        ),
        why="The batch size in the config contradicts the number of processes.",
        fix="In DeepSpeed, leave train_batch_size at 'auto'. In accelerate with split_batches, use "
        "a batch size that is a multiple of the number of processes.",
        in_surefit="--batch-size is per process. The effective batch size is batch size × "
        "grad-accum × processes.",
        derive=_batch_size_product,
    ),
    Cause(
        "SF666",
        "device_map spreads the model in a run with several processes",
        messages=(
            Message(
                r"You can't train a model that has been loaded with `device_map='auto'` in any "
                r"distributed mode",
                seen="huggingface/transformers#31557",
            ),
            Message(
                r"You can't train a model that has been loaded in 8-bit (?:or 4-bit )?(?:precision "
                r")?on a different device than the one you're training on",
                seen="yangjianxin1/Firefly#270",
            ),
        ),
        why="device_map='auto' spreads one model over all GPUs, but DDP needs a whole model on "
        "each.",
        fix="With several processes, use device_map={'': PartialState().process_index} or no "
        "device_map. With one process, start python script.py instead of torchrun.",
    ),
    Cause(
        "SF667",
        "the tokenizer was used before a fork",
        messages=(
            Message(
                r"huggingface/tokenizers: The current process just got forked, after parallelism "
                r"has already been used",
                seen="huggingface/text-generation-inference#1035",
            ),
        ),
        why="This is a warning, not a failure. The threads of the tokenizer do not survive a fork, "
        "so it disables them in the workers. A run can hang only if a worker is forked while the "
        "tokenizer runs.",
        fix="Set TOKENIZERS_PARALLELISM=false before the start, or tokenise before creating the "
        "DataLoader.",
        in_surefit="surefit tokenises rows once, before the first batch.",
        is_warning=True,
    ),
    Cause(
        "SF901",
        "a host did not come to the rendezvous",
        messages=(Message(r"RendezvousTimeoutError", seen="facebookresearch/av_hubert#19"),),
        why="torchrun waits until --nnodes hosts have come to --rdzv-endpoint with the same "
        "--rdzv-id, and gave up. The command does not run on all hosts, hosts have another "
        "--rdzv-id or --nnodes, or they meet at different endpoints.",
        fix="Start the same command on every host, with the same --nnodes, --rdzv-id and "
        "--rdzv-endpoint. Hosts that start late: --rdzv-conf timeout=1800.",
        in_surefit="Once torchrun has started its processes, missing ones are named by number and "
        "host (docs/guides.md).",
    ),
    Cause(
        "SF902",
        "the rendezvous cannot be reached",
        messages=(
            Message(
                r"client socket has timed out after [\d.]+ ?m?s while trying to connect to",
                seen="pytorch/pytorch#79388",
            ),
            Message(
                r"RendezvousConnectionError: The connection to the C10d store has failed",
                seen="pytorch/pytorch#107021",
            ),
        ),
        why="Nobody listens at the address and port, or a firewall drops the packets. The first "
        "host has not started or has ended, its name resolves to another address, or "
        "--rdzv-endpoint is not an address of one of the hosts.",
        fix="From the other host, try the port: nc -vz HOST PORT. Use an address that all hosts "
        "reach, open the port, and start the host of the endpoint first. If its own name does "
        "not resolve to that address: --rdzv-conf is_host=1 there.",
        in_surefit="Its processes name the address, the port and torch's reason, after ten "
        "minutes.",
    ),
    Cause(
        "SF903",
        "Gloo uses the wrong network interface",
        messages=(
            Message(
                r"Gloo connectFullMesh failed",
                seen="vllm-project/vllm#5094",
            ),
            Message(r"ifa != nullptr\. Unable to find (?:address|interface) for: (?P<name>\S+)"),
        ),
        why="Gloo listens at the address that the name of the host resolves to, often 127.0.0.1 "
        "or an address that the other hosts do not reach; or GLOO_SOCKET_IFNAME names an interface "
        "that is not there. It takes one name, and no list or pattern such as NCCL_SOCKET_IFNAME.",
        fix="Set GLOO_SOCKET_IFNAME, and NCCL_SOCKET_IFNAME with NCCL, to the interface that "
        "reaches the other hosts: ip route get ADDRESS-OF-THE-FIRST-HOST shows it after dev.",
        in_surefit="With several hosts, the interface that reaches the first host is chosen where "
        "none is set.",
    ),
)
