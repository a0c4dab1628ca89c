"""Settings of Trainer and DataLoader that contradict each other or the data."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Message

CAUSES = (
    Cause(
        "SF600",
        "the dataset is empty",
        messages=(
            Message(r"num_samples should be a positive integer value, but got num_samples=0"),
        ),
        why="The dataset has no rows: a filter or a split removed all of them, or the path matched "
        "no file.",
        fix="Print len(dataset) after every filter, and look at the rows that it removes.",
        in_surefit="SF101 reports an empty dataset, and the ledger accounts for every row.",
    ),
    Cause(
        "SF608",
        "the settings for evaluation and saving contradict each other",
        messages=(
            Message(r"--load_best_model_at_end requires the save (?:and eval )?(?:strategy|steps)"),
            Message(
                r"You have set `args\.eval_strategy` to .{1,40} but you didn't pass an "
                r"`eval_dataset`"
            ),
            Message(
                r"The `metric_for_best_model` training argument is set to "
                r"'(?P<metric>\w{1,60})', which is not found"
            ),
        ),
        why="Trainer should choose the best checkpoint, but it does not evaluate, it evaluates and "
        "saves at different steps, or compute_metrics does not return the metric.",
        fix="Use the same eval_strategy and save_strategy (and steps), pass an eval_dataset, and "
        "set metric_for_best_model to a key of compute_metrics.",
        in_surefit="surefit uses a tenth of the rows as validation set, saves at every evaluation, "
        "and refuses a metric that the task does not have.",
    ),
    Cause(
        "SF609",
        "the dataset has no length",
        messages=(
            Message(
                r"The train_dataset does not implement __len__|train_dataset does not implement "
                r"__len__, max_steps has to be specified"
            ),
        ),
        why="An IterableDataset has no length, so Trainer cannot infer the number of steps per "
        "epoch and the learning rate schedule.",
        fix="Set TrainingArguments(max_steps=…), or use a dataset with a length.",
        in_surefit="surefit stores tables on disk, where the number of rows is known.",
    ),
)
