"""Tokenizers: loaded from a folder or hub id, or trained on the training text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from surefit.core.files import refuse_special_inside
from surefit.core.foreign import library_reads
from surefit.data.cache import fingerprint, scratch_in_cache
from surefit.data.cache_entry import file_fingerprint, open_json
from surefit.data.hub import model_place
from surefit.inputs.batch_tokenizing import UNUSABLE_TOKENIZER, plain_backend
from surefit.inputs.tokenizer_trial import try_tokenizer
from surefit.user_code.named_code import guard_remote


@contextmanager
def header_parsed_once() -> Iterator[None]:
    """Let transformers parse a header for the config and for the tokenizer at once.

    It has no setting for that, and parses the header whenever it is asked for either.
    """
    from transformers import modeling_gguf_pytorch_utils as reader

    plain = reader.load_gguf_checkpoint

    def load(path: Any, return_tensors: bool = False, **more: Any) -> Any:
        if return_tensors or more:
            return plain(path, return_tensors=return_tensors, **more)
        known = Path(path).stat()
        parsed = _parse(plain, str(path), known.st_mtime_ns, known.st_size)
        return {name: dict(part) for name, part in parsed.items()}  # callers change them

    reader.load_gguf_checkpoint = load
    try:
        yield
    finally:
        reader.load_gguf_checkpoint = plain


@lru_cache(maxsize=1)
def _parse(plain: Any, path: str, changed: int, size: int) -> Any:
    """Parse the header of a GGUF file; the result is kept in the cache if JSON can hold it."""
    parsed = None

    def parse() -> Any:
        nonlocal parsed
        parsed = plain(path, return_tensors=False)
        if json.loads(json.dumps(parsed)) != parsed:
            raise ValueError("JSON holds other values")
        return parsed

    key = fingerprint(file_fingerprint(Path(path)), version("transformers"), version("gguf"))
    try:
        return open_json("gguf-headers", key, parse)
    except (TypeError, ValueError):
        if parsed is None:  # the parser's own error
            raise
        return parsed


EOS = "<|end|>"


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a model folder or hub id; a missing pad token becomes eos.

    Files that were not tried on this machine are tried first (`tokenizer_trial`).
    """
    if not name.endswith(".gguf"):
        for path in _backend_files(model_place(name)):
            reason = try_tokenizer(path)
            if reason is not None:
                raise UNUSABLE_TOKENIZER.error(f"{path} cannot be used: {reason}.", file=str(path))
    return _load(name, trust_remote_code)


def _backend_files(place: str) -> list[Path]:
    """Return the files that the library of tokenizers reads; of a hub id, what is downloaded."""
    from transformers.utils import cached_file

    folder = Path(place)
    if folder.is_dir():
        refuse_special_inside(folder)
        named = (path for path in folder.glob("tokenizer*.json") if path.is_file())
        return sorted(path for path in named if path.name != "tokenizer_config.json")
    with suppress(Exception):  # what is not there is reported where the tokenizer is loaded
        found = cached_file(place, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
        return [Path(found)] if found else []
    return []


def _load(name: str, trust_remote_code: bool = False) -> Any:
    from transformers import AutoTokenizer

    is_gguf = name.endswith(".gguf")
    path = Path(name).absolute()
    name = name if is_gguf else model_place(name)
    folder, more = (str(path.parent), {"gguf_file": str(path)}) if is_gguf else (name, {})
    refuse_special_inside(folder)
    once = header_parsed_once() if is_gguf else nullcontext()
    what, fix = f"No tokenizer could be loaded from {name!r}", "Pass one with --tokenizer."
    with library_reads(what, fix), guard_remote(folder, trust_remote_code), once:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, **more
        )
        tokenizer("")  # its config may have values that it cannot work with
    return use_eos_as_pad(_add_bos(tokenizer, path) if is_gguf else tokenizer)


def _add_bos(tokenizer: Any, path: Path) -> Any:
    """Add bos to texts if the GGUF file asks for it; transformers does not always do so."""
    from transformers.integrations.gguf import read_gguf_metadata

    metadata, _ = read_gguf_metadata(str(path))
    # The default of llama.cpp if the file does not say: SentencePiece adds bos.
    default = metadata.get("tokenizer.ggml.model") == "llama"
    wanted = bool(metadata.get("tokenizer.ggml.add_bos_token", default))
    if wanted != adds_bos(tokenizer) and tokenizer.bos_token_id is not None:
        tokenizer.add_bos_token = wanted
        tokenizer.update_post_processor()
    return tokenizer


def use_eos_as_pad(tokenizer: Any) -> Any:
    """Use eos for padding if there is no pad token; no token is added, so no embedding grows."""
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ()
) -> Any:
    """Return a byte-level BPE tokenizer learned from `texts`; it can encode any text.

    It has eos, which is also the pad token, and the `special_tokens` (such as `mask_token`). If
    `eos_token` is among them, the tokenizer ends every text with it.
    """
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Words include their leading space, so special tokens do, too.
    more = {
        name: f"[{name.removesuffix('_token').upper()}]"  # `[MASK]` for `mask_token`
        for name in special_tokens
        if name != "eos_token"
    }
    added = [AddedToken(text, lstrip=True, special=True) for text in more.values()]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS, *added],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if "eos_token" in special_tokens:
        ending = [(EOS, tokenizer.token_to_id(EOS))]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=ending
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=EOS,
        clean_up_tokenization_spaces=False,
        **dict(zip(more, added, strict=True)),
    )


def adds_bos(tokenizer: Any) -> bool:
    """Return whether the tokenizer adds its bos token to a text."""
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id


def has_tokenizer(folder: str) -> bool:
    """Return whether a local folder contains a tokenizer."""
    return any(Path(folder, n).is_file() for n in ("tokenizer.json", "tokenizer_config.json"))


Reload = Callable[[Any], Any]
"""A tokenizer to the one that is loaded again from its files, beside those of the model."""

PROBE_WORDS = ("Paris", "don't", "U.S.", "3,500", "naïve", "cat")
GENERIC_SETTINGS = (
    *("model_max_length", "padding_side", "truncation_side", "model_input_names"),
    *("clean_up_tokenization_spaces", "chat_template"),
)


def load_again(tokenizer: Any, model_type: str | None) -> Any:
    """Return what AutoTokenizer gives for the saved tokenizer beside a model of this type.

    A tokenizer that is defined by code of its own is returned as it is.
    """
    if not type(tokenizer).__module__.startswith("transformers."):
        return tokenizer
    plain_backend(tokenizer)  # the files are to hold no truncation of an earlier call
    with scratch_in_cache() as folder:
        if model_type is not None:
            text = json.dumps({"model_type": model_type})
            (folder / "config.json").write_text(text, encoding="utf-8")
        tokenizer.save_pretrained(str(folder))
        loaded = _load(str(folder))
    loaded.name_or_path = tokenizer.name_or_path
    return loaded


def read_words_as_text(tokenizer: Any, reload: Reload) -> Any:
    """Return the tokenizer in the form that reads a list of words most like running text.

    Byte-level tokenizers distinguish ' word' from 'word', and read a list as the latter unless
    their files say otherwise.
    """
    if plain_backend(tokenizer) is None:
        return tokenizer
    before = len(_tokens(tokenizer, "a"))
    expected = [_tokens(tokenizer, f"a {word}")[before:] for word in PROBE_WORDS]

    def score(form: Any) -> int:
        first = len(_tokens(form, ["a"], is_split_into_words=True))
        pairs = zip(PROBE_WORDS, expected, strict=True)
        return sum(
            _tokens(form, ["a", word], is_split_into_words=True)[first:] == wanted
            for word, wanted in pairs
        )

    best, most = tokenizer, score(tokenizer)
    for change in (_add_prefix_space, _prepend_space):
        if most == len(PROBE_WORDS):
            break
        form = reload(change(tokenizer))
        if score(form) > most:
            best, most = form, score(form)
    return best


def _tokens(tokenizer: Any, text: str | list[str], **options: Any) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"])


def _add_prefix_space(tokenizer: Any) -> Any:
    """Return a copy whose byte-level step puts a space before each text."""
    form = deepcopy(tokenizer)
    form.add_prefix_space = form.init_kwargs["add_prefix_space"] = True
    backend = form.backend_tokenizer
    state = json.loads(backend.to_str())
    step = state["pre_tokenizer"] or {}
    for part in [step, *step.get("pretokenizers", ())]:
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    form._tokenizer = type(backend).from_str(json.dumps(state))
    return form


def _prepend_space(tokenizer: Any) -> Any:
    """A copy, of the class that leaves its files as they are, with a space before each text."""
    from tokenizers import normalizers

    form = _generic(tokenizer)
    backend, space = form.backend_tokenizer, normalizers.Prepend(" ")
    after = backend.normalizer
    backend.normalizer = space if after is None else normalizers.Sequence([space, after])
    return form


def separate_pairs(tokenizer: Any, reload: Reload) -> Any:
    """Return tokenizer with its end token between the texts of a pair, if it has nothing there."""
    mark = tokenizer.eos_token or tokenizer.sep_token
    if mark is None or tokenizer.num_special_tokens_to_add(pair=True):
        return tokenizer
    form = _with_special(tokenizer, [], [mark], reload)
    return form if form.num_special_tokens_to_add(pair=True) else tokenizer


def add_nothing_behind(tokenizer: Any, reload: Reload) -> Any:
    """Return the tokenizer with no special token after a text, which a causal model continues."""
    first = [tokenizer.bos_token] if adds_bos(tokenizer) else []
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    expected = [*tokenizer.convert_tokens_to_ids(first), *plain]
    if list(tokenizer("a")["input_ids"]) == expected:
        return tokenizer
    copy = deepcopy(tokenizer)  # of a model that is not causal: it may mark the texts of a pair
    names = [name for name in copy.model_input_names if name != "token_type_ids"]
    copy.model_input_names = copy.init_kwargs["model_input_names"] = names
    form = _with_special(copy, first, [], reload)
    return form if list(form("a")["input_ids"]) == expected else tokenizer


def _with_special(
    tokenizer: Any, first: Sequence[str], between: Sequence[str], reload: Reload
) -> Any:
    """Return the tokenizer with these special tokens before a text and between two, and no others.

    A class that does not take them from the files is replaced by the generic one.
    """
    backend = plain_backend(tokenizer)
    if backend is None:
        return tokenizer
    from tokenizers import processors

    ids = [(mark, tokenizer.convert_tokens_to_ids(mark)) for mark in (*first, *between)]
    template = processors.TemplateProcessing(
        single=[*first, "$A"], pair=[*first, "$A", *between, "$B:1"], special_tokens=ids
    )
    for form in (deepcopy(tokenizer), _generic(tokenizer)):
        form.backend_tokenizer.post_processor = template
        loaded = reload(form)
        if loaded.num_special_tokens_to_add(pair=True) == len(ids):
            break
    return loaded


def _generic(tokenizer: Any) -> Any:
    """A copy of the class of transformers that reads tokenizer.json and adds nothing to it."""
    from transformers import PreTrainedTokenizerFast

    settings = {name: getattr(tokenizer, name, None) for name in GENERIC_SETTINGS}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        **{name: value for name, value in settings.items() if value is not None},
        **tokenizer.special_tokens_map,
    )
