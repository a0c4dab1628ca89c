"""Someone else's Trainer, checked as it is: the same faults by the same codes, with row numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks.trainers import (
    CLEAN,
    FAULTY,
    ShiftsTwice,
    Stream,
    causal,
    plain,
    settings,
    token_rows,
)

import surefit
from surefit.errors import UsageError


def test_the_ledger_of_a_healthy_trainer(tmp_path: Path) -> None:
    rows = token_rows()
    checkup = surefit.check(trainer=plain(tmp_path, rows))
    assert checkup.findings == ()
    assert checkup.ledger.rows == checkup.ledger.used_rows == checkup.ledger.rows_learning_eos == 12
    assert checkup.ledger.tokens == sum(len(row["input_ids"]) for row in rows)
    assert checkup.ledger.trained_tokens == checkup.ledger.tokens - 12  # the first of each row
    assert checkup.as_dict()["ok"] is True


def test_uneven_micro_batches(tmp_path: Path) -> None:
    arguments = settings(tmp_path, gradient_accumulation_steps=2)
    trainer = plain(tmp_path, token_rows(), model=ShiftsTwice(causal()), args=arguments)
    assert "SF725" in [found.code for found in surefit.check(trainer=trainer).findings]


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_trainer_has_no_warning(tmp_path: Path, name: str) -> None:
    checkup = surefit.check(trainer=CLEAN[name](tmp_path))
    said = [f"{f.code} {f.message}" for f in checkup.findings if f.severity != "info"]
    assert said == []
    ledger = checkup.ledger
    assert ledger.rows == ledger.used_rows > 0
    assert ledger.dropped_rows == {}
    assert 0 < ledger.trained_tokens <= ledger.tokens


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_trainer_is_found(tmp_path: Path, name: str) -> None:
    (code, *row), make = FAULTY[name][0].split(), FAULTY[name][1]
    checkup = surefit.check(trainer=make(tmp_path))
    (found,) = [f for f in checkup.findings if f.severity != "info"]
    assert found.code == code
    assert found.fix
    assert not row or found.where["row"] == int(row[0])
    assert checkup.ok == (found.severity == "warning")
    if code == "SF720":
        assert "Cause:" in found.message
        assert checkup.ledger.dropped_rows == {"not_collated": 12}


def test_packed_rows_are_counted_as_they_are(tmp_path: Path) -> None:
    one_by_one = surefit.check(trainer=CLEAN["completion-only"](tmp_path)).ledger
    for name in ("packing", "padding-free"):
        packed = surefit.check(trainer=CLEAN[name](tmp_path)).ledger
        assert (packed.tokens, packed.trained_tokens, packed.train_blocks) == (
            one_by_one.tokens, one_by_one.trained_tokens, one_by_one.train_blocks,
        )  # fmt: skip


def test_what_was_not_checked_is_said(tmp_path: Path) -> None:
    rows = token_rows()
    trainer = plain(tmp_path, Stream(rows * 100), args=settings(tmp_path, max_steps=2))
    trainer.eval_dataset = rows
    checkup = surefit.check(trainer=trainer)
    assert checkup.findings == ()
    (said,) = checkup.notes
    assert "rows after the first 1,000 of the stream" in said
    assert "the rows of eval_dataset" in said
    assert checkup.ledger.rows == 1000
    assert "the loss of DPOTrainer" in surefit.check(trainer=CLEAN["preference"](tmp_path)).notes[0]


def test_what_is_no_trainer_is_refused() -> None:
    with pytest.raises(UsageError, match="without model"):
        surefit.check(trainer=object())
    with pytest.raises(UsageError, match="together with data"):
        surefit.check(trainer=object(), data=[])
