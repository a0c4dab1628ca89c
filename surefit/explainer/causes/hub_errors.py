"""Getting models and tokenizers: the hub, local folders, classes and versions."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Form

CAUSES = (
    Cause(
        "SF678",
        "the model or data set needs permission",
        (
            Form(
                r"(?:Cannot access gated repo|You are trying to access a gated repo)",
                seen="city96/ComfyUI_ExtraModels#99",
            ),
            Form(r"GatedRepoError", seen="ToTheBeginning/PuLID#97"),
            Form(
                r"Access to (?:model|dataset) \S+ is restricted",
                seen="huchenlei/sd-forge-ic-light#13",
            ),
        ),
        "The repository is gated: its licence must be accepted once on its page, and the request "
        "must carry a token of that account.",
        "Accept the terms on the model's page, then `hf auth login` or HF_TOKEN=…; in containers "
        "and CI the token must be passed on.",
        "The same token is used; a local folder as --model needs none.",
    ),
    Cause(
        "SF679",
        "there is no such repository, or it is private",
        (
            Form(
                r"is not a local folder and is not a valid model identifier",
                seen="tloen/alpaca-lora#625",
            ),
            Form(r"Repository Not Found for url", seen="ZHO-ZHO-ZHO/ComfyUI-InstantID#104"),
            Form(
                r"Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
                r"'(?P<name>[^']*)'"
            ),
            Form(
                r"(?P<name>\S+) does not appear to have a file named", seen="unslothai/unsloth#1521"
            ),
            Form(
                r"Error no file named .{3,120}? found in directory (?P<name>\S+)",
                seen="huggingface/transformers#24687",
            ),
            Form(r"Unrecognized model in (?P<name>\S+)\. Should have a `model_type` key"),
            Form(
                r"Can't load (?:tokenizer|the configuration|config|feature extractor) (?:for|of) "
                r"'(?P<name>[^']*)'",
                seen="LAION-AI/CLAP#134",
            ),
        ),
        "The name is neither a folder here with config.json and weights, nor a repository that "
        "this account can see. A path with a typing error is taken for a hub id; a private "
        "repository answers as if it did not exist; a checkpoint folder may hold an adapter only.",
        "Check the path with ls (config.json, model.safetensors, tokenizer.json must be in it); "
        "for an adapter load its base model first; for a private repository log in.",
        "A path that does not exist is refused with exit code 2 before anything else.",
        ("force_download=True: the name stays wrong.",),
    ),
    Cause(
        "SF680",
        "the hub cannot be reached, and the files are not in the cache",
        (
            Form(r"We couldn't connect to '?https://\S+ to load (?:the|this) files?"),
            Form(r"outgoing traffic has been disabled"),
            Form(r"Cannot find the requested files in the (?:disk|local) cache"),
            Form(
                r"OfflineModeIsEnabled|Cannot reach https://huggingface\.co\S*: offline mode is "
                r"enabled",
                seen="huggingface/kernels#553",
            ),
        ),
        "There is no connection (or HF_HUB_OFFLINE is set), and the cache has no copy of this "
        "model or data set at this revision.",
        "Download once where there is a connection (hf download NAME --local-dir DIR), copy the "
        "folder, and give its path; set HF_HUB_OFFLINE=1 only when the cache is complete.",
        "--model and --data take local folders; `surefit demo` needs no network.",
    ),
    Cause(
        "SF681",
        "the repository brings code of its own",
        (
            Form(r"contains custom code which must be executed to correctly load"),
            Form(
                r"requires you to execute the (?:configuration|modeling|tokenizer|dataset) "
                r"(?:file|script) in",
                seen="h2oai/h2o-llmstudio#560",
            ),
            Form(r"Please pass the argument `trust_remote_code=True`"),
        ),
        "The model's class is a Python file in its repository; loading it runs that file on your "
        "machine, so transformers asks first.",
        "Read the file; then trust_remote_code=True, with revision='<commit>' so that it cannot "
        "change. Many such models have a class in a newer transformers, which needs no code.",
        "--set trust_remote_code=true; the plan names the code that is run.",
    ),
    Cause(
        "SF682",
        "this transformers does not know the architecture",
        (
            Form(
                r"has model type `?(?P<type>[\w-]+)`? but Transformers does not recognize this "
                r"architecture"
            ),
            Form(
                r"cannot import name '(?P<name>\w+)' from 'transformers",
                seen="huggingface/transformers#20799",
            ),
            Form(
                r"got an unexpected keyword argument "
                r"'(?P<name>evaluation_strategy|tokenizer|no_cuda|torch_dtype|use_auth_token)'"
            ),
        ),
        "The model or the script and the installed transformers are of different ages: the "
        "architecture is newer, or an argument was renamed (evaluation_strategy is eval_strategy, "
        "Trainer's tokenizer is processing_class, no_cuda is use_cpu).",
        "pip install -U transformers for a newer model; for a renamed argument use its new name, "
        "or pin the version the script was written for.",
        "Config keys that do not exist are refused with a suggestion.",
    ),
    Cause(
        "SF683",
        "the wrong class for this architecture",
        (
            Form(
                r"Unrecognized configuration class <class '[\w.]*?(?P<config>\w+)'> for this kind "
                r"of AutoModel: (?P<auto>\w+)"
            ),
        ),
        "The task's class and the architecture do not go together: an encoder (BERT) has no "
        "AutoModelForSeq2SeqLM, an encoder-decoder (T5) no AutoModelForCausalLM.",
        "Causal (GPT, Llama): AutoModelForCausalLM. T5, BART: AutoModelForSeq2SeqLM. BERT: "
        "ForMaskedLM, ForSequenceClassification, ForTokenClassification. For pictures and text: "
        "AutoModelForImageTextToText.",
        "The task chooses the class, and a model that cannot do it is an error of `surefit check`.",
        derive=lambda context: (
            [f"{context.values['config']} has no {context.values['auto']}."]
            if "config" in context.values
            else []
        ),
    ),
    Cause(
        "SF684",
        "sizes in a config that do not go together",
        (
            Form(
                r"[Tt]he hidden size \((?P<hidden>\d+)\) is not a multiple of the number of "
                r"attention heads \((?P<heads>\d+)\)"
            ),
            Form(r"(?:embed_dim|hidden_size) must be divisible by num_(?:attention_)?heads"),
        ),
        "The hidden size is shared out evenly among the attention heads.",
        "Choose a hidden size that is a multiple of the number of heads.",
        "tiny:ARCH builds a small model whose settings go together.",
        derive=lambda context: (
            [f"{context.values['hidden']} / {context.values['heads']} is no whole number."]
            if "hidden" in context.values
            else []
        ),
    ),
    Cause(
        "SF685",
        "the tokenizer has no chat template",
        (
            Form(r"Cannot use chat template functions because tokenizer\.chat_template is not set"),
            Form(r"Conversation roles must alternate user/assistant"),
        ),
        "A base model has no chat template, and some templates insist on alternating turns "
        "without a system turn.",
        "Use the instruct model's tokenizer, or set tokenizer.chat_template; merge or drop turns "
        "that do not alternate.",
        "Without a template rows are laid out as plain prompt and answer.",
    ),
    Cause(
        "SF686",
        "the tokenizer has no mask token",
        (
            Form(
                r"This tokenizer does not have a mask token which is necessary for masked language "
                r"modeling"
            ),
        ),
        "Masked language modelling replaces tokens by a mask token; tokenizers of causal models "
        "have none.",
        "DataCollatorForLanguageModeling(tokenizer, mlm=False) for a causal model; a BERT-like "
        "model for masking.",
        "--task causal-lm for such models.",
    ),
)
