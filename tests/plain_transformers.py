"""What people do with an exported folder: plain transformers, with its usual calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer

Rows = Sequence[Mapping[str, Any]]


def load_plain(folder: Path, auto: str) -> Any:
    """The exported model through plain transformers."""
    return getattr(transformers, auto).from_pretrained(folder).eval()


def logits_of_texts(folder: Path, rows: Rows) -> tuple[Any, list[Any]]:
    """The model, and its logits for each text or pair of texts."""
    model = load_plain(folder, "AutoModelForSequenceClassification")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return model, [
            model(
                **tokenizer(
                    *(row[name] for name in ("text", "text_pair") if name in row),
                    truncation=True,
                    return_tensors="pt",
                )
            ).logits[0]
            for row in rows
        ]


def text_classes(folder: Path, rows: Rows) -> list[Any]:
    model, logits = logits_of_texts(folder, rows)
    return [model.config.id2label[int(row.argmax())] for row in logits]


def text_label_sets(folder: Path, rows: Rows) -> list[Any]:
    """All labels whose probability is at least one half."""
    model, logits = logits_of_texts(folder, rows)
    assert model.config.problem_type == "multi_label_classification"
    names = model.config.id2label
    return [[names[n] for n, chance in enumerate(row.sigmoid()) if chance > 0.5] for row in logits]


def text_numbers(folder: Path, rows: Rows) -> list[Any]:
    model, logits = logits_of_texts(folder, rows)
    return [float(row) * model.config.target_scale + model.config.target_mean for row in logits]


def text_ranks(folder: Path, rows: Rows) -> list[Any]:
    """The likeliest of ordered classes; each logit is whether a text is above one of them."""
    model, logits = logits_of_texts(folder, rows)
    names, made = model.config.ordered_classes, []
    for row in logits:
        above = torch.cat([torch.ones(1), row.sigmoid(), torch.zeros(1)])
        made.append(names[int((above[:-1].cumprod(0) * (1 - above[1:])).argmax())])
    return made


def answer_scores(folder: Path, rows: Rows) -> list[Any]:
    """The reward of each chosen answer, rendered by the folder's own template."""
    model = load_plain(folder, "AutoModelForSequenceClassification")
    tokenizer, scores = AutoTokenizer.from_pretrained(folder), []
    for row in rows:
        messages = [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": row["chosen"]},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        asked = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            scores.append(float(model(**asked).logits))
    return scores


def word_tags(folder: Path, rows: Rows) -> list[Any]:
    """The tag at the first piece of each word; None beyond the limit."""
    model = load_plain(folder, "AutoModelForTokenClassification")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = []
    for row in rows:
        asked = tokenizer(
            row["tokens"], is_split_into_words=True, truncation=True, return_tensors="pt"
        )
        with torch.no_grad():
            best = model(**asked).logits[0].argmax(-1).tolist()
        words = asked.word_ids()
        firsts = [words.index(n) if n in words else None for n in range(len(row["tokens"]))]
        answers.append([None if at is None else model.config.id2label[best[at]] for at in firsts])
    return answers


def filled_masks(folder: Path, rows: Rows) -> list[Any]:
    """Each text with its mask token filled in."""
    model = load_plain(folder, "AutoModelForMaskedLM")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = []
    for row in rows:
        text = row["text"].replace("[MASK]", tokenizer.mask_token)
        asked = tokenizer(text, truncation=True, return_tensors="pt")
        with torch.no_grad():
            best = model(**asked).logits[0].argmax(-1)
        ids = asked["input_ids"][0]
        filled = torch.where(ids == tokenizer.mask_token_id, best, ids)
        answers.append(tokenizer.decode(filled, skip_special_tokens=True).strip())
    return answers


def continued(folder: Path, rows: Rows, new_tokens: int) -> list[Any]:
    """What plain `generate` makes of each row's text."""
    is_seq2seq = "source" in rows[0]
    auto = "AutoModelForSeq2SeqLM" if is_seq2seq else "AutoModelForCausalLM"
    model, tokenizer = load_plain(folder, auto), AutoTokenizer.from_pretrained(folder)
    answers = []
    for row in rows:
        text = row.get("source") or row.get("text") or f"{row['prompt']}\n"
        asked = tokenizer(text, return_tensors="pt")
        made = model.generate(**asked, max_new_tokens=new_tokens, do_sample=False)[0]
        made = made[1:] if is_seq2seq else made[asked["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(made, skip_special_tokens=True).strip())
    return answers


def picture_classes(folder: Path, files: Sequence[Path]) -> list[Any]:
    from PIL import Image

    model = load_plain(folder, "AutoModelForImageClassification")
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    images = [Image.open(file) for file in files]
    with torch.no_grad():
        best = model(**processor(images, return_tensors="pt")).logits.argmax(-1)
    return [model.config.id2label[place] for place in best.tolist()]


def spoken_classes(folder: Path, files: Sequence[Path]) -> list[tuple[str, float]]:
    """The class of each file and its probability, by the folder's own feature extractor."""
    import soundfile
    import soxr

    model = load_plain(folder, "AutoModelForAudioClassification")
    extractor, found = transformers.AutoFeatureExtractor.from_pretrained(folder), []
    for file in files:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
        mono = soxr.resample(samples.mean(1), rate, extractor.sampling_rate)
        asked = extractor(mono, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        with torch.no_grad():
            chances = model(**asked).logits.softmax(-1)[0]
        found.append((model.config.id2label[int(chances.argmax())], float(chances.max())))
    return found
