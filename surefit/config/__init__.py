"""The config of a run: command line, YAML and Python all become one validated RunConfig."""

from surefit.config.bounded_yaml import joint_name, joint_parts
from surefit.config.run_config import (
    LOCAL_KEYS,
    SHORT_KEYS,
    Audio,
    Augmentation,
    ChangeName,
    FeatureShape,
    Images,
    Lora,
    RunConfig,
)
from surefit.config.sections import (
    EarlyStopping,
    Generation,
    ImageAugment,
    LossOptions,
    MetricChoice,
    Reading,
    SeriesAugment,
    Switch,
)
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

__all__ = [
    "LOCAL_KEYS",
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
