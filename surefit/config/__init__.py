"""The config of a run: command line, YAML and Python all become one validated RunConfig."""

from surefit.config.run_config import (
    SHORT_KEYS,
    Augmentation,
    ChangeName,
    EarlyStopping,
    FeatureShape,
    Generation,
    Images,
    Lora,
    Reading,
    RunConfig,
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
    "SHORT_KEYS",
    "Augmentation",
    "ChangeName",
    "EarlyStopping",
    "FeatureShape",
    "Generation",
    "Images",
    "Lora",
    "Reading",
    "RunConfig",
    "Switch",
    "config_yaml",
    "known_keys",
    "make_config",
    "nest",
    "parse_setting",
    "read_yaml",
    "set_option",
    "spell_out",
]
