"""Tokenizers as plain transformers loads them from the folder of the trained model.

`AutoTokenizer` lets the type of the model beside the saved files decide which class reads them, and
some classes put parts of their own in place of those in the files. So rows are read with the
tokenizer that comes back, and what a task needs of it is put into its files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from surefit.data.cache_use import scratch_in_cache
from surefit.encode.text.batch_tokenizing import plain_backend
from surefit.encode.text.tokenizer import adds_bos, load_tokenizer

Reload = Callable[[Any], Any]
"""A tokenizer to the one that is loaded again from its files, beside those of the model."""

PROBE_WORDS = ("Paris", "don't", "U.S.", "3,500", "naïve", "cat")
GENERIC_SETTINGS = (
    *("model_max_length", "padding_side", "truncation_side", "model_input_names"),
    *("clean_up_tokenization_spaces", "chat_template"),
)


def load_again(tokenizer: Any, model_type: str | None) -> Any:
    """What AutoTokenizer gives for the saved tokenizer beside a model of this type.

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
        loaded = load_tokenizer(str(folder))
    loaded.name_or_path = tokenizer.name_or_path
    return loaded


def read_words_as_text(tokenizer: Any, reload: Reload) -> Any:
    """The tokenizer in the form that reads a list of words most like running text.

    Byte-level tokenizers distinguish ' word' from 'word', and read a list as the latter unless
    their files say otherwise.
    """
    if plain_backend(tokenizer) is None:
        return tokenizer
    expected = [_in_text(tokenizer, word) for word in PROBE_WORDS]

    def score(form: Any) -> int:
        pairs = zip(PROBE_WORDS, expected, strict=True)
        return sum(_in_list(form, word) == wanted for word, wanted in pairs)

    best, most = tokenizer, score(tokenizer)
    for change in (_add_prefix_space, _prepend_space):
        if most == len(PROBE_WORDS):
            break
        form = reload(change(tokenizer))
        if score(form) > most:
            best, most = form, score(form)
    return best


def separate_pairs(tokenizer: Any, reload: Reload) -> Any:
    """The tokenizer with its end token between the texts of a pair, if it has nothing there."""
    mark = tokenizer.eos_token or tokenizer.sep_token
    if mark is None or tokenizer.num_special_tokens_to_add(pair=True):
        return tokenizer
    form = _with_special(tokenizer, [], [mark], reload)
    return form if form.num_special_tokens_to_add(pair=True) else tokenizer


def add_nothing_behind(tokenizer: Any, reload: Reload) -> Any:
    """The tokenizer with no special token after a text, which a causal model continues."""
    first = [tokenizer.bos_token] if adds_bos(tokenizer) else []
    expected = [*tokenizer.convert_tokens_to_ids(first), *_tokens(tokenizer, "a")]
    if list(tokenizer("a")["input_ids"]) == expected:
        return tokenizer
    plain = deepcopy(tokenizer)  # of a model that is not causal: it may mark the texts of a pair
    names = [name for name in plain.model_input_names if name != "token_type_ids"]
    plain.model_input_names = plain.init_kwargs["model_input_names"] = names
    form = _with_special(plain, first, [], reload)
    return form if list(form("a")["input_ids"]) == expected else tokenizer


def _with_special(
    tokenizer: Any, first: Sequence[str], between: Sequence[str], reload: Reload
) -> Any:
    """The tokenizer with these special tokens before a text and between two, and no others.

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


def _in_text(tokenizer: Any, word: str) -> list[int]:
    """The tokens of a word that follows another one in a text."""
    before = _tokens(tokenizer, "a")
    return _tokens(tokenizer, f"a {word}")[len(before) :]


def _in_list(tokenizer: Any, word: str) -> list[int]:
    return _tokens(tokenizer, ["a", word], is_split_into_words=True)[
        len(_tokens(tokenizer, ["a"], is_split_into_words=True)) :
    ]


def _tokens(tokenizer: Any, text: str | list[str], **options: Any) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"])


def _add_prefix_space(tokenizer: Any) -> Any:
    """A copy whose byte-level step puts a space before each piece that it is given."""
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


def _generic(tokenizer: Any) -> Any:
    """A copy of the class of transformers that reads tokenizer.json and adds nothing to it."""
    from transformers import PreTrainedTokenizerFast

    settings = {name: getattr(tokenizer, name, None) for name in GENERIC_SETTINGS}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        **{name: value for name, value in settings.items() if value is not None},
        **tokenizer.special_tokens_map,
    )
