"""Messages that cannot be raised here (a GPU, several machines, other versions): as their issues
quote them. The issue, the code, the message."""

from __future__ import annotations

CITED: tuple[tuple[str, str, str], ...] = (
    (
        "huggingface/lighteval#301",
        "SF607",
        "TypeError: TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, "
        "InputSequence]]",
    ),
    (
        "bamos/densenet.pytorch#19",
        "SF610",
        "RuntimeError: size mismatch, m1: [2394 x 7], m2: [16758 x 2] at THTensorMath.cpp:2070",
    ),
    ("seed 003", "SF611", "Expected 3D tensor, got 2D"),
    (
        "shaofengzeng/SuperPoint-Pytorch#2",
        "SF611",
        "RuntimeError: Expected 4-dimensional input for 4-dimensional weight [64, 1, 3, 3], but "
        "got 3-dimensional input of size [16, 120, 160] instead",
    ),
    (
        "xiaojunxu/SQLNet#41",
        "SF621",
        "RuntimeError: Assertion `cur_target >= 0 && cur_target < n_classes' failed.",
    ),
    ("huggingface/trl#2996", "SF622", "RuntimeError: CUDA error: device-side assert triggered"),
    (
        "modelscope/ms-swift#3267",
        "SF622",
        "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: "
        "[0,0,0], thread: [0,0,0] Assertion `t >= 0 && t < n_classes` failed.",
    ),
    (
        "jfzhang95/pytorch-video-recognition#71",
        "SF623",
        "RuntimeError: expected scalar type Long but found Int",
    ),
    (
        "milesial/Pytorch-UNet#93",
        "SF623",
        "RuntimeError: Expected object of scalar type Long but got scalar type Float for argument "
        "#2 'target'",
    ),
    (
        "ThilinaRajapakse/simpletransformers#1553",
        "SF623",
        "RuntimeError: \"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
    ),
    ("chengtan9907/mc-cot#2", "SF626", "{'loss': 0.0, 'grad_norm': nan}"),
    ("huggingface/trl#6668", "SF626", "{'loss': 0.0, 'learning_rate': 1e-05, 'epoch': 0.1}"),
    (
        "unslothai/unsloth#2095",
        "SF626",
        "ZeroDivisionError: Unsloth: All labels in your dataset are -100. Training losses will be "
        "all 0.",
    ),
    ("tatsu-lab/stanford_alpaca#298", "SF628", "{'loss': 1.1938}\n{'loss': 0.0, 'epoch': 0.53}"),
    (
        "huggingface/transformers#34172",
        "SF627",
        "return_assistant_tokens_mask==True but chat template does not contain `{% generation %}` "
        "keyword.",
    ),
    (
        "huggingface/trl#1820",
        "SF627",
        "UserWarning: Could not find response key [22559, 25, 220] in the following instance",
    ),
    ("huggingface/transformers#9160", "SF637", "loss: nan"),
    ("bigscience-workshop/Megatron-DeepSpeed#396", "SF637", "loss scale: 1.0 | grad norm: nan |"),
    (
        "huggingface/trl#2486",
        "SF639",
        "UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
    ),
    (
        "hiyouga/LlamaFactory#1233",
        "SF640",
        "RuntimeError: expected scalar type Float but found Half",
    ),
    (
        "zjukg/KoPA#11",
        "SF640",
        "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
    ),
    (
        "huggingface/sentence-transformers#770",
        "SF640",
        "RuntimeError: Found dtype Double but expected Float",
    ),
    (
        "rish-16/tokenlearner-pytorch#4",
        "SF641",
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) "
        "should be the same",
    ),
    (
        "kijai/ComfyUI-FluxTrainer#116",
        "SF642",
        "Expected all tensors to be on the same device, but found at least two devices, cpu and "
        "cuda:0! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)",
    ),
    (
        "yangjianxin1/GPT2-chitchat#8",
        "SF642",
        "Expected object of device type cuda but got device type cpu for argument #3 'index' in "
        "call to _th_index_select",
    ),
    ("thuml/Anomaly-Transformer#74", "SF644", "RuntimeError: No CUDA GPUs are available"),
    (
        "princeton-nlp/SimCSE#244",
        "SF644",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA "
        "GPU",
    ),
    (
        "vllm-project/vllm#18835",
        "SF645",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    (
        "pytorch/pytorch#45028",
        "SF645",
        "GeForce RTX 3080 with CUDA capability sm_86 is not compatible with the current PyTorch "
        "installation.",
    ),
    (
        "princeton-nlp/SimCSE#273",
        "SF646",
        "ValueError: Mixed precision training with AMP or APEX (`--fp16`) can only be used on CUDA "
        "devices.",
    ),
    (
        "huggingface/accelerate#3064",
        "SF646",
        "ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device",
    ),
    (
        "X-PLUG/mPLUG-Owl#81",
        "SF646",
        "RuntimeError: \"erfinv_vml_cpu\" not implemented for 'Half'",
    ),
    (
        "Dao-AILab/flash-attention#762",
        "SF647",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
    ),
    (
        "unslothai/unsloth#827",
        "SF647",
        "RuntimeError: FlashAttention only support fp16 and bf16 data type",
    ),
    ("lm-sys/FastChat#1664", "SF647", "ModuleNotFoundError: No module named 'flash_attn'"),
    (
        "pytorch/pytorch#16417",
        "SF650",
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total "
        "capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)",
    ),
    ("murong-xu/CADS#4", "SF650", "torch.OutOfMemoryError: CUDA out of memory."),
    (
        "QwenLM/Qwen3#873",
        "SF650",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    (
        "Comfy-Org/ComfyUI#7372",
        "SF650",
        "MPS backend out of memory (MPS allocated: 17.68 GB, other allocations: 3.95 MB, max "
        "allowed: 18.13 GB).",
    ),
    ("pytorch/pytorch#138002", "SF650", "torch.OutOfMemoryError: HIP out of memory"),
    ("fidelity/stoke#31", "SF652", "traceback : Signal 9 (SIGKILL) received by PID 10398"),
    (
        "hpcaitech/ColossalAI#3514",
        "SF652",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 "
        "(pid: 812917) of binary",
    ),
    ("hiyouga/LlamaFactory#1138", "SF652", "killed"),
    ("DagnyT/hardnet#19", "SF652", "killed by OOM killer"),
    (
        "pytorch/pytorch#8976",
        "SF652",
        "RuntimeError: DataLoader worker (pid 1817) is killed by signal: Killed.",
    ),
    ("Linaqruf/kohya-trainer#148", "SF652", "died with <Signals.SIGKILL: 9>"),
    ("open-mmlab/mmpretrain#1939", "SF652", "Process finished with exit code 137"),
    (
        "pytorch/pytorch#5040",
        "SF653",
        "RuntimeError: DataLoader worker (pid 13) is killed by signal: Bus error.",
    ),
    (
        "facebookresearch/mmf#441",
        "SF653",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
        "shared memory (shm).",
    ),
    (
        "pytorch/pytorch#73644",
        "SF653",
        "RuntimeError: unable to open shared memory object </torch_5566_0> in read-write mode",
    ),
    (
        "facebookresearch/SlowFast#443",
        "SF653",
        "RuntimeError: DataLoader worker (pid 26471) is killed by signal: Segmentation fault.",
    ),
    (
        "zai-org/ChatGLM-6B#1166",
        "SF654",
        "RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed "
        "writing file data/3: file write failed",
    ),
    (
        "hiyouga/LlamaFactory#5155",
        "SF654",
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: "
        'StorageFull, message: "No space left on device" })',
    ),
    ("NVIDIA/Megatron-LM#878", "SF654", "OSError: [Errno 28] No space left on device"),
    ("kuleshov-group/caduceus#58", "SF656", "OSError: [Errno 24] Too many open files"),
    ("pytorch/pytorch#973", "SF656", "RuntimeError: received 0 items of ancdata"),
    (
        "pytorch/pytorch#34768",
        "SF656",
        "RuntimeError: Too many open files. Communication with the workers is no longer possible.",
    ),
    (
        "Project-MONAI/MONAI#755",
        "SF658",
        "RuntimeError: \n        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.",
    ),
    (
        "pytorch/pytorch#40403",
        "SF659",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method",
    ),
    (
        "pytorch/pytorch#43259",
        "SF660",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one.",
    ),
    (
        "huggingface/accelerate#389",
        "SF661",
        "RuntimeError: Expected to mark a variable ready only once.",
    ),
    (
        "pytorch/pytorch#118369",
        "SF662",
        "[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=96120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25624887 "
        "milliseconds before timing out.",
    ),
    (
        "OpenRLHF/OpenRLHF#1040",
        "SF662",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 "
        "clients joined.",
    ),
    (
        "NVIDIA/nccl#1016",
        "SF663",
        "NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.18.1 ncclSystemError: System call failed",
    ),
    ("NVIDIA/nccl#1016", "SF663", "ncclSystemError: System call (e.g. socket, malloc) failed"),
    (
        "meta-pytorch/torchtune#1025",
        "SF664",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address.",
    ),
    (
        "om-ai-lab/VLM-R1#289",
        "SF664",
        "port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use.",
    ),
    ("facebookresearch/av_hubert#19", "SF901", '"message": "RendezvousTimeoutError: ",'),
    (
        "pytorch/pytorch#79388",
        "SF902",
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to "
        "connect to (IP1, 2222).",
    ),
    (
        "pytorch/pytorch#107021",
        "SF902",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
        "C10d store has failed. See inner exception for details.",
    ),
    (
        "vllm-project/vllm#5094",
        "SF903",
        "RuntimeError: Gloo connectFullMesh failed with "
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    (
        "deepspeedai/DeepSpeed#6914",
        "SF665",
        "AssertionError: Check batch related parameters. train_batch_size is not equal to "
        "micro_batch_per_gpu * gradient_acc_step * world_size 8 != 2 * 1 * 1",
    ),
    (
        "huggingface/transformers#31557",
        "SF666",
        "ValueError: You can't train a model that has been loaded with `device_map='auto'` in any "
        "distributed mode.",
    ),
    (
        "yangjianxin1/Firefly#270",
        "SF666",
        "ValueError: You can't train a model that has been loaded in 8-bit precision on a "
        "different device than the one you're training on.",
    ),
    (
        "huggingface/text-generation-inference#1035",
        "SF667",
        "huggingface/tokenizers: The current process just got forked, after parallelism has "
        "already been used. Disabling parallelism to avoid deadlocks...",
    ),
    (
        "hiyouga/LlamaFactory#8379",
        "SF673",
        "ValueError: Due to a serious vulnerability issue in `torch.load`, even with "
        "`weights_only=True`, we now require users to upgrade torch to at least v2.6",
    ),
    (
        "huggingface/transformers#10450",
        "SF674",
        "OSError: Unable to load weights from pytorch checkpoint file for 'x' at 'x'",
    ),
    (
        "2U1/Phi3-Vision-Finetune#11",
        "SF675",
        "RuntimeError: The weights trying to be saved contained shared tensors "
        "[{'model.embed_tokens.weight', 'model.vision_embed_tokens.wte.weight'}]",
    ),
    (
        "MiniMax-AI/MiniMax-M2#48",
        "SF676",
        "ValueError: The model you are trying to fine-tune is quantized with fp8 but that "
        "quantization method do not support training.",
    ),
    (
        "bitsandbytes-foundation/bitsandbytes#1530",
        "SF676",
        "ImportError: Using `bitsandbytes` 8-bit quantization requires the latest version of "
        "bitsandbytes",
    ),
    (
        "city96/ComfyUI_ExtraModels#99",
        "SF678",
        "Cannot access gated repo for url https://huggingface.co/google/gemma-2-2b-it",
    ),
    (
        "ToTheBeginning/PuLID#97",
        "SF678",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-66f4b037)",
    ),
    (
        "huchenlei/sd-forge-ic-light#13",
        "SF678",
        "Access to model briaai/RMBG-1.4 is restricted. You must be authenticated to access it.",
    ),
    (
        "tloen/alpaca-lora#625",
        "SF679",
        "decapoda-research/llama-7b-hf is not a local folder and is not a valid model identifier "
        "listed on 'https://huggingface.co/models'",
    ),
    (
        "ZHO-ZHO-ZHO/ComfyUI-InstantID#104",
        "SF679",
        "401 Client Error. (Request ID: Root=1-66d24a7c) Repository Not Found for url: "
        "https://huggingface.co/api/models/x",
    ),
    (
        "unslothai/unsloth#1521",
        "SF679",
        "OSError: user/model does not appear to have a file named pytorch_model.bin, "
        "model.safetensors, tf_model.h5, model.ckpt or flax_model.msgpack.",
    ),
    (
        "huggingface/transformers#24687",
        "SF679",
        "OSError: Error no file named pytorch_model.bin, tf_model.h5, model.ckpt.index or "
        "flax_model.msgpack found in directory lawyer-llama-13b-beta1.0.",
    ),
    (
        "LAION-AI/CLAP#134",
        "SF679",
        "OSError: Can't load tokenizer for 'bert-base-uncased'. If you were trying to load it from",
    ),
    (
        "huggingface/kernels#553",
        "SF680",
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/x: "
        "offline mode is enabled.",
    ),
    (
        "h2oai/h2o-llmstudio#560",
        "SF681",
        "ValueError: Loading pansophic/rocket-3B requires you to execute the configuration file in "
        "that repo on your local machine.",
    ),
    (
        "huggingface/transformers#20799",
        "SF682",
        "ImportError: cannot import name 'AutoModelForMaskedLM' from 'transformers' (unknown "
        "location)",
    ),
    (
        "YiyangZhou/POVID#13",
        "SF690",
        "Loading adapter weights from checkpoint/output/POVID_stage_one_LoRa_bs2 led to unexpected "
        "keys not found in the model:",
    ),
    (
        "modelscope/ms-swift#2590",
        "SF692",
        "`use_cache=True` is incompatible with gradient checkpointing. Setting "
        "`use_cache=False`...",
    ),
    (
        "huggingface/datasets#7322",
        "SF693",
        "ArrowInvalid: JSON parse error: Column() changed from object to array in row 0",
    ),
    (
        "allenai/OLMoE#21",
        "SF693",
        "DatasetGenerationCastError: An error occurred while generating the dataset\n\nAll the "
        "data files must have the same columns, but at some point there are 3 new columns",
    ),
    (
        "huggingface/datasets#6315",
        "SF694",
        "pyarrow.lib.ArrowInvalid: JSON parse error: Invalid value. in row 0",
    ),
    (
        "huggingface/transformers#3626",
        "SF698",
        "ValueError: You have to specify either input_ids or inputs_embeds!",
    ),
)
