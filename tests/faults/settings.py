"""Faults of options and config: exit code 2, one message, before anything is read."""

from __future__ import annotations

from dataclasses import replace

from builders import echo_rows
from faults.case import Case
from faults.models import NET

SFT = {"a.jsonl": echo_rows(20), "a.csv": "text,label\na,b\n", "words.csv": "big\n"}


def usage(name: str, options: str, model: str = "tiny:llama", data: str | None = None) -> Case:
    """A mistake in the options, which is no finding."""
    return Case(name, SFT, model, options, exits=2, data=data)


CASES = [
    usage("key nobody knows", "--set kep=1"),
    usage("key of a role nobody knows", "--set columns.promt=x"),
    usage("rate by the name of another tool", "--set learning_rate=2e-5"),
    usage("rate as the option of another tool", "--learning-rate 2e-5"),
    usage("packing, which is not needed", "--set sample_packing=true"),
    usage("packing as an option", "--packing"),
    usage("optimizer by a name nobody knows", "--set optimizer=adamg9"),
    usage("optimizer by the name of another tool", "--set optim=adamw_8bit"),
    usage("precision as Lightning writes it", "--set precision=bf16-mixed"),
    usage("config key as an option", "--warmup 0.1"),
    usage("task that is kept for later", "--task question-answering"),
    usage("embedding of another task", "--set embedding.scale=10"),
    usage("task by the name of another tool", "--task dpo"),
    usage("preference of another task", "--set preference.beta=0.2"),
    usage("task nobody knows", "--task stf"),
    usage("rate below zero", "--lr -1"),
    usage("rate that is text", "--set lr=high"),
    usage("no epochs", "--epochs 0"),
    usage("batch of nothing", "--batch-size 0"),
    usage("share above one", "--set eval_share=1.5"),
    usage("schedule nobody knows", "--set schedule=stairs"),
    usage("what to do with long rows is misspelt", "--set overlong=trunc"),
    usage("LoRA setting without LoRA", "--set lora.alpha=4"),
    usage("LoRA rank below zero", "--lora-r -1"),
    usage(
        "frame without room for the text", "--augmentation-factor 2 --set augment.frames=[Please]"
    ),
    usage("synonyms that are not there", "--augmentation-factor 2 --set augment.synonyms=none.csv"),
    usage("function without its module", "--set augment.function=change"),
    usage("flip of texts", "--set image.augment=flip"),
    usage("change of images nobody knows", "--set image.augment=[flip,mirror]"),
    usage("probability above one", "--set image.augment.flip=50"),
    usage("encoding nobody knows", "--set read.encoding=klingon"),
    usage("names that are not different", "--set read.names=[a,a]"),
    usage("delimiter of two characters", "--set read.delimiter=ab", data="a.csv"),
    usage("checking too small a sample", "--set scan=1"),
    replace(usage("file that cannot be imported", ""), module="import nothing_of_this_name\n"),
    replace(usage("file that ends the program", ""), module="import sys\n\nsys.exit(3)\n"),
    usage("synonyms without synonyms", "--augmentation-factor 2 --set augment.synonyms=words.csv"),
    replace(usage("file that is no Python", ""), module="def make(:\n"),
    replace(usage("text for a module without tokenizer", ""), module=NET),
    usage("tracker nobody knows", "--set trackers=nope"),
    usage("metric the task does not have", "--set early_stopping.metric=acuracy"),
    usage("class weights where there are no classes", "--set loss.class_weights=balanced"),
    usage("class weights that are no weights", "--set loss.class_weights=even"),
    usage("label smoothing of all", "--set loss.label_smoothing=1"),
    usage("freezing what is not there", "--set freeze=[encodr]"),
    usage("freezing everything", "--set freeze=[model,lm_head]"),
    usage("rate for what is not there", "--set lr_by.haed=1e-3"),
    usage("rate of zero for some parameters", "--set lr_by.lm_head=0"),
    usage("metric of classes without classes", "--set metrics=[roc_auc]"),
    usage("metric nobody knows", "--set metrics=[roc_acu]"),
    usage("own metric without its module", "--set metrics.cost=cost"),
    usage("fold without folds", "--set split.fold=1"),
    usage("more folds than rows", "--set split.folds=500"),
    usage("data that is not there", "", data="nope.jsonl"),
    usage("model that is not there", "", model="./nope"),
    usage("architecture nobody knows", "", model="tiny:lama"),
    usage("module that is not there", "", model="nope:make"),
    usage("tokenizer that is not there", "--tokenizer ./nope"),
    usage("template that is not there", "--set template=none.jinja"),
    usage("evaluation data that is not there", "--eval-data nope.jsonl"),
]
