"""Settings of Trainer and DataLoader that contradict each other."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Form

CAUSES = (
    Cause(
        "SF600",
        "the data set is empty",
        (Form(r"num_samples should be a positive integer value, but got num_samples=0"),),
        "The DataLoader got a data set without rows: a filter or a split left none, or the path "
        "matched no file.",
        "Print len(dataset) after every step that filters, and look at what was dropped.",
        "An empty data set is SF101, and the ledger says what became of every row.",
    ),
    Cause(
        "SF608",
        "evaluation and saving do not go together",
        (
            Form(
                r"--load_best_model_at_end requires the save(?: and|) e?v?a?l? ?(?:strategy|steps)"
            ),
            Form(
                r"You have set `args\.eval_strategy` to .{1,40} but you didn't pass an "
                r"`eval_dataset`"
            ),
            Form(
                r"The `metric_for_best_model` training argument is set to '(?P<metric>\w+)', which "
                r"is not found"
            ),
        ),
        "Trainer was asked to choose the best model by evaluations that do not happen, or not "
        "when it saves, or by a metric that compute_metrics does not return.",
        "The same eval_strategy and save_strategy (and steps), an eval_dataset, and a "
        "metric_for_best_model among the keys of compute_metrics.",
        "A tenth of the rows is held out, every evaluation is saved, and a metric the task does "
        "not have is refused.",
    ),
    Cause(
        "SF609",
        "a stream of unknown length",
        (
            Form(
                r"The train_dataset does not implement __len__|train_dataset does not implement "
                r"__len__, max_steps has to be specified"
            ),
        ),
        "An IterableDataset has no length, so neither epochs nor the learning rate's schedule can "
        "be worked out.",
        "TrainingArguments(max_steps=…), or a data set with a length.",
        "Tables are on disk with their number of rows known.",
    ),
)
