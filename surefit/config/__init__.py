"""The config of a run: command line, YAML and Python all become one validated RunConfig."""

from surefit.config.array_changes import ImageAugment, SeriesAugment
from surefit.config.joint_names import joint_name, joint_parts
from surefit.config.run_config import (
    SHORT_KEYS,
    Audio,
    Augmentation,
    ChangeName,
    EarlyStopping,
    FeatureShape,
    Generation,
    Images,
    Lora,
    Reading,
    RunConfig,
)
from surefit.config.section import Switch
from surefit.config.settings import (
    config_yaml,
    known_keys,
    make_config,
    nest,
    parse_setting,
    read_yaml,
    set_option,
    spell_out,
)
from surefit.config.training_options import LossOptions, MetricChoice

__all__ = [
    "SHORT_KEYS",
    "Audio",
    "Augmentation",
    "ChangeName",
    "EarlyStopping",
    "FeatureShape",
    "Generation",
    "ImageAugment",
    "Images",
    "Lora",
    "LossOptions",
    "MetricChoice",
    "Reading",
    "RunConfig",
    "SeriesAugment",
    "Switch",
    "config_yaml",
    "joint_name",
    "joint_parts",
    "known_keys",
    "make_config",
    "nest",
    "parse_setting",
    "read_yaml",
    "set_option",
    "spell_out",
]
