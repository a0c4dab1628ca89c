"""Loading models and tokenizers: the hub, local folders, classes and versions."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Message


def _heads(context: Context) -> list[str]:
    hidden, heads = context.word("hidden"), context.word("heads")
    return [f"{hidden} cannot be divided by {heads}."] if hidden and heads else []


CAUSES = (
    Cause(
        "SF678",
        "the model or dataset needs permission",
        messages=(
            Message(
                r"Cannot access gated repo|You are trying to access a gated repo",
                seen="city96/ComfyUI_ExtraModels#99",
            ),
            Message(r"GatedRepoError", seen="ToTheBeginning/PuLID#97"),
            Message(
                r"Access to (?:model|dataset) \S{1,200} is restricted",
                seen="huchenlei/sd-forge-ic-light#13",
            ),
        ),
        why="The repository is gated: you must accept its licence on its page, and the request "
        "must carry a token of that account.",
        fix="Accept the terms on the page of the repository, then run `hf auth login` or set "
        "HF_TOKEN=…. Pass the token on to containers and CI.",
        in_surefit="surefit uses the same token. A local folder as --model needs none.",
    ),
    Cause(
        "SF679",
        "the repository or folder does not exist, is private or is incomplete",
        messages=(
            Message(
                r"is not a local folder and is not a valid model identifier",
                seen="tloen/alpaca-lora#625",
            ),
            Message(r"Repository Not Found for url", seen="ZHO-ZHO-ZHO/ComfyUI-InstantID#104"),
            Message(
                r"Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
                r"'(?P<name>[^']{0,200})'"
            ),
            Message(
                r"(?:(?<!\S)(?P<name>\S{1,200}))? does not appear to have a file named",
                seen="unslothai/unsloth#1521",
            ),
            Message(
                r"Error no file named .{3,120}? found in directory (?P<name>\S{1,200})",
                seen="huggingface/transformers#24687",
            ),
            Message(r"Unrecognized model in (?P<name>\S{1,200})\. Should have a `model_type` key"),
            Message(
                r"Can't load (?:tokenizer|the configuration|config|feature extractor) (?:for|of) "
                r"'(?P<name>[^']{0,200})'",
                seen="LAION-AI/CLAP#134",
                needs_library=True,
            ),
        ),
        why="The name is neither a local folder with config.json and weights nor a repository that "
        "this account can read. A path with a typing error is taken for a repository name. A "
        "private repository looks as if it did not exist. A checkpoint folder may hold only an "
        "adapter.",
        fix="List the folder: it must have config.json, model.safetensors and tokenizer.json. Load "
        "the base model of an adapter first. Log in for a private repository.",
        in_surefit="surefit refuses a path that does not exist with exit code 2, before anything "
        "else.",
        does_not_help=("force_download=True: the name stays wrong.",),
    ),
    Cause(
        "SF680",
        "the hub cannot be reached, and the files are not in the cache",
        messages=(
            Message(r"We couldn't connect to '?https://\S{1,200} to load (?:the|this) files?"),
            Message(r"[Cc]annot find the requested files in the (?:disk|local) cache"),
            Message(
                r"OfflineModeIsEnabled|Cannot reach https://huggingface\.co\S{0,200}: offline mode "
                r"is enabled",
                seen="huggingface/kernels#553",
            ),
        ),
        why="There is no connection, or HF_HUB_OFFLINE is set, and the cache has no copy of this "
        "model or dataset at this revision.",
        fix="Download it once on a machine with a connection (hf download NAME --local-dir DIR), "
        "copy the folder, and use its path. Set HF_HUB_OFFLINE=1 only when the cache is complete.",
        in_surefit="--model and --data accept local folders. `surefit demo` needs no network.",
    ),
    Cause(
        "SF681",
        "the repository contains its own code",
        messages=(
            Message(r"contains custom code which must be executed to correctly load"),
            Message(
                r"requires you to execute the (?:configuration|modeling|tokenizer|dataset) "
                r"(?:file|script) in",
                seen="h2oai/h2o-llmstudio#560",
            ),
            Message(r"Please pass the argument `trust_remote_code=True`"),
        ),
        why="The class of the model is a Python file in its repository. Loading the model runs "
        "that file on your machine, so transformers asks first.",
        fix="Read the file. Then pass trust_remote_code=True with revision='<commit>', so that the "
        "code cannot change. A newer transformers often has the class built in.",
        in_surefit="--set trust_remote_code=true; the plan names the code that runs.",
    ),
    Cause(
        "SF682",
        "the installed transformers is older or newer than the model or script",
        messages=(
            Message(
                r"has model type `?(?P<type>[\w-]{1,60})`? but Transformers does not recognize "
                r"this architecture"
            ),
            Message(
                r"cannot import name '(?P<name>\w{1,120})' from 'transformers",
                seen="huggingface/transformers#20799",
            ),
            Message(
                r"got an unexpected keyword argument "
                r"'(?P<name>evaluation_strategy|no_cuda|torch_dtype|use_auth_token)'"
            ),
            Message(
                r"Trainer\.__init__\(\) got an unexpected keyword argument '(?P<name>tokenizer)'"
            ),
        ),
        why="The architecture is newer than the installed transformers, or an argument was "
        "renamed: evaluation_strategy is now eval_strategy, the tokenizer argument of Trainer is "
        "processing_class, and no_cuda is use_cpu.",
        fix="Run pip install -U transformers for a newer model. Use the new name of a renamed "
        "argument, or install the version that the script was written for.",
        in_surefit="surefit refuses unknown config keys and suggests the nearest one.",
    ),
    Cause(
        "SF683",
        "the Auto class does not support this architecture",
        messages=(
            Message(
                r"Unrecognized configuration class <class '[\w.]{0,200}?(?P<config>\w{1,60})'> for "
                r"this kind of AutoModel: (?P<auto_class>\w{1,60})"
            ),
        ),
        why="The architecture has no model for the task of this class. An encoder (BERT) has no "
        "AutoModelForSeq2SeqLM, an encoder-decoder (T5) no AutoModelForCausalLM.",
        fix="GPT, Llama: AutoModelForCausalLM. T5, BART: AutoModelForSeq2SeqLM. BERT: "
        "AutoModelForMaskedLM, AutoModelForSequenceClassification or "
        "AutoModelForTokenClassification. Images with text: AutoModelForImageTextToText.",
        in_surefit="The task chooses the class, and `surefit check` refuses a model without it.",
        derive=lambda context: [f"{context.word('config')} has no {context.word('auto_class')}."],
    ),
    Cause(
        "SF684",
        "the hidden size is not a multiple of the number of attention heads",
        messages=(
            Message(
                r"[Tt]he hidden size \((?P<hidden>\d+)\) is not a multiple of the number of "
                r"attention heads \((?P<heads>\d+)\)"
            ),
            Message(r"(?:embed_dim|hidden_size) must be divisible by num_(?:attention_)?heads"),
        ),
        why="Attention divides the hidden size evenly among the heads.",
        fix="Choose a hidden size that is a multiple of the number of heads.",
        in_surefit="tiny:ARCH builds a small model with valid sizes.",
        derive=_heads,
    ),
    Cause(
        "SF685",
        "the chat template is missing or refuses the turns",
        messages=(
            Message(
                r"Cannot use chat template functions because tokenizer\.chat_template is not set"
            ),
            Message(r"Conversation roles must alternate user/assistant"),
        ),
        why="A base model has no chat template. Some templates accept only alternating user and "
        "assistant turns, without a system turn.",
        fix="Use the tokenizer of the instruct model, or set tokenizer.chat_template. Merge or "
        "drop turns that do not alternate.",
        in_surefit="Without a template, surefit formats rows as plain prompt and answer.",
    ),
    Cause(
        "SF686",
        "the tokenizer has no mask token",
        messages=(
            Message(
                r"This tokenizer does not have a mask token which is necessary for masked language "
                r"modeling"
            ),
        ),
        why="Masked language modelling replaces tokens with a mask token. Tokenizers of causal "
        "models have none.",
        fix="Use DataCollatorForLanguageModeling(tokenizer, mlm=False) for a causal model, or a "
        "BERT-like model for masking.",
        in_surefit="Use --task causal-lm for such models.",
    ),
)
