"""What all sections of the config share."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

Switch = Literal["auto", "on", "off"]


class Section(BaseModel):
    """Frozen keys and values; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_yes_for_one(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for numbers: YAML reads `yes` and `on` as true."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and "on" in get_args(kind):
            return "on" if value else "off"
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("expected a value, not true or false")
        return value


def check_code_name(name: str | None) -> str | None:
    """Refuse a name that is not module:function."""
    if name is not None and ":" not in name:
        raise ValueError("expected module:function")
    return name
