"""What the HF Trainer and TRL's SFTTrainer do with the data of tests/faults; writes docs/faults.md.

python bench/peers_on_faults.py [PART OF A NAME]

Each case of text or tokens runs through a usual script: datasets.load_dataset, a tokenizer, the
stock collator for the job, a tiny model on the CPU, one epoch. It crashes, trains without an error
(silent), or, if the data is healthy, is fine. TRL's SFTTrainer gets the rows as they are read, with
its defaults, wherever it is made for their columns. With a name, nothing is written.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from faults.case import Case, Chat, run  # noqa: E402
from faults.every import FAULTS, HEALTHY  # noqa: E402

MISSED = "not as expected"
READERS = {".jsonl": "json", ".json": "json", ".gz": "json", ".csv": "csv", ".parquet": "parquet"}
JOBS = ({"input_ids"}, {"messages"}, {"prompt", "completion"}, {"text", "label"})
BEYOND = (
    *("augment", "scorer", "--lora", "masked-lm", "regression", "token-classification"),
    *("--eval-data", "columns.", "read.", "scan=", "overlong=", "--max-memory", "--batch"),
)
SIZE = {
    "vocab_size": 512,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Result:
    """The outcome of a case with surefit and with its peers."""

    case: Case
    surefit: str
    peer: str
    trl: str


def applies(case: Case) -> bool:
    """Whether a usual script covers the case's columns and options."""
    name, content = next(iter(case.files.items()), ("", None))
    row = content[0] if isinstance(content, list) and content else {}
    return (
        case.model in ("tiny:llama", "tiny:bert")
        and not case.module
        and case.data is None
        and case.code != "SF402"
        and Path(name).suffix in READERS
        and not any(word in case.options for word in BEYOND)
        and (not isinstance(content, list) or any(known <= set(row) for known in JOBS))
        and not isinstance(row.get("label"), list)
    )


def peer(case: Case, folder: Path) -> str:
    """The outcome of one epoch of the Trainer on the case."""
    return outcome(case, folder, lambda rows: prepare(case, rows, folder))


def trl(case: Case, folder: Path) -> str:
    """The outcome of one epoch of TRL's SFTTrainer; a dash where it is not made for the task."""
    if case.model != "tiny:llama":
        return "–"
    return outcome(case, folder, lambda rows: prepare_trl(case, rows, folder))


def outcome(case: Case, folder: Path, make: Callable[[Any], Any]) -> str:
    """What comes of loading the rows, making a trainer of them, and training it."""
    case.write(folder)
    stage = "loading"
    try:
        rows = load(folder / next(iter(case.files)), folder)
        stage = "encoding"
        trainer = make(rows)
        stage = "training"
        loss = train(trainer)
    except Exception as error:
        cause = error.__cause__ or error
        return f"crash in {stage} ({type(cause).__name__})"
    if not math.isfinite(loss) or loss == 0:
        return f"silent, loss {loss:g}"
    return "silent" if case.expected else "fine"


def load(path: Path, folder: Path) -> Any:
    """The rows as `datasets` reads them."""
    from datasets import load_dataset

    kind = READERS[path.suffix]
    return load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(folder / ".datasets")
    )


@dataclass(frozen=True)
class Job:
    """A model, rows and a collator."""

    model: Any
    rows: Any
    collator: Any


def prepare(case: Case, rows: Any, folder: Path) -> Any:
    """A Trainer with the tokens, labels and collator that a tutorial uses for such columns."""
    from transformers import Trainer, TrainingArguments

    job = collated(case, rows)
    arguments = settings(TrainingArguments, folder)
    return Trainer(job.model, arguments, train_dataset=job.rows, data_collator=job.collator)


def prepare_trl(case: Case, rows: Any, folder: Path) -> Any:
    """TRL's SFTTrainer on the rows as they are."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = load_tokenizer(case, rows)
    if "messages" in rows.column_names and "t.jinja" in case.files:
        tokenizer.chat_template = case.files["t.jinja"]
    model = LlamaForCausalLM(LlamaConfig(**SIZE))
    arguments = settings(SFTConfig, folder, bf16=False, max_length=length_limit(case))
    return SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)


def length_limit(case: Case) -> int:
    """The maximum sequence length that the case asks for."""
    words = case.options.split()
    return int(words[words.index("--max-seq-length") + 1]) if "--max-seq-length" in words else 512


def collated(case: Case, rows: Any) -> Job:
    """The rows as tokens, with the stock collator for them."""
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        DataCollatorForLanguageModeling,
        DataCollatorForSeq2Seq,
        DataCollatorWithPadding,
        LlamaConfig,
        LlamaForCausalLM,
    )

    limit = length_limit(case)
    tokenizer = load_tokenizer(case, rows)
    names = set(rows.column_names)

    def causal() -> Any:
        return LlamaForCausalLM(LlamaConfig(**SIZE))

    if "input_ids" in names:
        cut = rows.map(lambda row: {k: row[k][:limit] for k in names if row[k] is not None})
        if "labels" not in names:
            return Job(causal(), cut, DataCollatorForLanguageModeling(tokenizer, mlm=False))
        return Job(causal(), cut, DataCollatorForSeq2Seq(tokenizer))
    if "messages" in names:
        if "t.jinja" in case.files:
            tokenizer.chat_template = case.files["t.jinja"]
        rendered = rows.map(
            lambda row: {"text": tokenizer.apply_chat_template(row["messages"], tokenize=False)}
        )
        encoded = tokenised(rendered, tokenizer, limit)
        return Job(causal(), encoded, DataCollatorForLanguageModeling(tokenizer, mlm=False))
    if {"prompt", "completion"} <= names:
        encoded = rows.map(lambda row: ask(row, tokenizer, limit), remove_columns=rows.column_names)
        return Job(causal(), encoded, DataCollatorForSeq2Seq(tokenizer))
    if {"text", "label"} <= names:
        classes = {name: place for place, name in enumerate(sorted(set(rows["label"])))}
        model = BertForSequenceClassification(BertConfig(num_labels=len(classes), **SIZE))
        encoded = tokenised(rows, tokenizer, limit, ("label",)).map(
            lambda row: {"labels": classes[row["label"]]}, remove_columns=["label"]
        )
        return Job(model, encoded, DataCollatorWithPadding(tokenizer))
    encoded = tokenised(rows, tokenizer, limit)
    return Job(causal(), encoded, DataCollatorForLanguageModeling(tokenizer, mlm=False))


def load_tokenizer(case: Case, rows: Any) -> Any:
    """The case's own tokenizer, else one trained on its texts; eos is the pad token."""
    from chats import chat_tokenizer
    from surefit.inputs.tokenizer import train_tokenizer

    style = next((c.style for c in case.files.values() if isinstance(c, Chat)), None)
    if style is not None or "messages" in rows.column_names:
        return chat_tokenizer(style or "chatml")
    texts = [text for row in rows for text in row.values() if isinstance(text, str)]
    tokenizer = train_tokenizer(texts, 400)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def tokenised(rows: Any, tokenizer: Any, limit: int, keep: tuple[str, ...] = ()) -> Any:
    """The column `text` as tokens, as in every tutorial."""
    return rows.map(
        lambda row: tokenizer(row["text"], truncation=True, max_length=limit),
        remove_columns=[name for name in rows.column_names if name not in keep],
    )


def ask(row: Any, tokenizer: Any, limit: int) -> dict[str, Any]:
    """Prompt and answer concatenated; the labels of the prompt's tokens are −100."""
    prompt = tokenizer(row["prompt"])["input_ids"]
    ids = tokenizer(row["prompt"] + " " + row["completion"] + tokenizer.eos_token)["input_ids"]
    labels = [-100] * min(len(prompt), len(ids)) + ids[len(prompt) :]
    return {"input_ids": ids[:limit], "labels": labels[:limit]}


def settings(kind: Any, folder: Path, **more: Any) -> Any:
    """One epoch on the CPU, without files and progress bars."""
    return kind(
        output_dir=str(folder / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **more,
    )


def train(trainer: Any) -> float:
    """The loss of one epoch."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return float(trainer.train().training_loss)


def report_of(case: Case, folder: Path) -> str:
    """What surefit reports for the case."""
    outcome = run(case, folder)
    found = outcome.found(case)
    if found is None:
        expected = f"note, row {case.row}" if case.row is not None else "note"
        return MISSED if outcome.complaint(case) else expected if case.note else "fine"
    row = found["where"].get("row")
    place = f", row {row}" if row is not None else ""
    return f"{found['severity']}{place}"


def page(results: list[Result]) -> str:
    """docs/faults.md."""
    healthy = [r for r in results if not r.case.expected]
    faults = [r for r in results if r.case.expected]
    peers = Counter(r.peer.split(" ")[0].rstrip(",") for r in faults)
    total = sum(map(len, FAULTS.values()))
    fine = sum(r.peer == "fine" for r in healthy)
    tried = [r for r in results if r.trl != "–"]
    sft = Counter(r.trl.split(" ")[0].rstrip(",") for r in tried if r.case.expected)
    trl_healthy = [r for r in tried if not r.case.expected]
    named = sum(r.surefit not in ("fine", MISSED) for r in faults)
    lines = [
        "# Faulty data with surefit, the HF Trainer and TRL",
        "",
        f"`tests/faults/` has {total} faults and {len(HEALTHY)} unusual but healthy data sets.",
        "Each case states what `surefit check` must report.",
        "`python tests/records/record.py --compare --only checks` runs all of them.",
        "",
        "`python bench/peers_on_faults.py` writes this page. It also runs the cases that a usual",
        "script covers (token ids, prompts and answers, dialogues, text classification) through",
        "such a script: `load_dataset`, a tokenizer, the stock collator, the Trainer of",
        "transformers, one epoch on the CPU. TRL's SFTTrainer gets the rows of language models as",
        "they are read, with its defaults. *Silent* means that it trained without an error. The",
        "column surefit has the severity of the finding, or `note`, and the row that it names.",
        "",
        f"Of {len(faults)} faults, surefit reports {named} before the first step. The Trainer",
        f"crashes on {peers['crash']} and trains silently on {peers['silent']}. Of {len(healthy)}",
        f"healthy data sets, surefit accepts {sum(r.surefit == 'fine' for r in healthy)} and the",
        f"usual script {fine}. The SFTTrainer was tried on {sum(sft.values())} of the faults: it",
        f"crashes on {sft['crash']} and trains silently on {sft['silent']}. Of {len(trl_healthy)}",
        f"healthy data sets, it trains on {sum(r.trl == 'fine' for r in trl_healthy)}.",
        "",
        "| code | fault | surefit | HF Trainer | TRL SFTTrainer |",
        "| --- | --- | --- | --- | --- |",
    ]
    for result in faults:
        code = "note" if result.case.note else result.case.code
        cells = (code, result.case.name, result.surefit, result.peer, result.trl)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run every case that applies with surefit and with the peer."""
    from datasets import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()
    logging.set_verbosity_error()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    results = []
    for case in [*(case for cases in FAULTS.values() for case in cases), *HEALTHY]:
        if not applies(case) or wanted not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            places = [Path(folder) / name for name in ("surefit", "peer", "trl")]
            for place in places:
                place.mkdir()
            os.environ["SUREFIT_CACHE"] = f"{folder}/.cache"
            said = report_of(case, places[0])
            results.append(Result(case, said, peer(case, places[1]), trl(case, places[2])))
        last = results[-1]
        print(f"{case.expected} | {case.name} | {said} | {last.peer} | {last.trl}", flush=True)
    if not wanted:
        (ROOT / "docs" / "faults.md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
