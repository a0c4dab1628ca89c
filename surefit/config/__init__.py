"""The config of a run: command line, YAML and Python all become one validated RunConfig."""

from surefit.config.config_schema import config_schema
from surefit.config.data_sources import DataSource, as_sources, name_sources
from surefit.config.input_sections import (
    Audio,
    Augmentation,
    ChangeName,
    FeatureShape,
    ImageAugment,
    Images,
    SeriesAugment,
)
from surefit.config.run_config import (
    DEFAULT_ROWS,
    LOCAL_KEYS,
    SHORT_KEYS,
    RunConfig,
    joint_name,
    joint_parts,
)
from surefit.config.sections import (
    EarlyStopping,
    Generation,
    Lora,
    LossOptions,
    MetricChoice,
    Reading,
    Splitting,
    Switch,
)
from surefit.config.settings import (
    config_fields,
    config_yaml,
    make_config,
    nest,
    parse_setting,
    read_yaml,
    set_option,
    spell_out,
)

__all__ = [
    "DEFAULT_ROWS",
    "LOCAL_KEYS",
    "SHORT_KEYS",
    "Audio",
    "Augmentation",
    "ChangeName",
    "DataSource",
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
    "Splitting",
    "Switch",
    "as_sources",
    "config_fields",
    "config_schema",
    "config_yaml",
    "joint_name",
    "joint_parts",
    "make_config",
    "name_sources",
    "nest",
    "parse_setting",
    "read_yaml",
    "set_option",
    "spell_out",
]
