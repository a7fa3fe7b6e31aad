"""Fields of configurations that know what they allow.  Traced ones are leaves, static ones shape the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flax import struct

INFINITY = float("inf")


def within(low: float, high: float, default: float) -> Any:
    """A traced number from `low` to `high`."""
    return struct.field(default=default, metadata={"low": low, "high": high})


def whole(default: int, *, least: int = 1) -> Any:
    """A static whole number of at least `least`."""
    return struct.field(pytree_node=False, default=default, metadata={"least": least})


def choice(default: str, options: Sequence[str]) -> Any:
    """A static choice among `options`."""
    return struct.field(pytree_node=False, default=default, metadata={"options": tuple(options)})


def static(default: Any) -> Any:
    """A field that shapes the program: no leaf, changing it recompiles."""
    return struct.field(pytree_node=False, default=default)


def check_fields(instance: Any) -> None:
    """Refuse what the fields do not allow, and turn whole numbers in traced fields into floats: 1 and 1.0 are the same.

    Also called when a pytree is put together again, so only plain numbers are looked at: tracers, arrays and whatever
    else a transformation puts in pass.

    Raises:
      ValueError: a value outside of what its field allows.
    """
    for name, field in instance.__dataclass_fields__.items():
        value, rule = getattr(instance, name), field.metadata
        traced = rule.get("pytree_node", True) and isinstance(field.default, float)
        if traced and type(value) is int:
            value = float(value)
            object.__setattr__(instance, name, value)
        if "options" in rule and value not in rule["options"]:
            _refuse(instance, name, value, f"choose one of {', '.join(rule['options'])}")
        if "least" in rule and (type(value) is not int or value < rule["least"]):
            _refuse(instance, name, value, f"give a whole number of at least {rule['least']}")
        if traced and isinstance(value, str | bool):
            _refuse(instance, name, value, "give a number")
        if "low" in rule and type(value) is float and not rule["low"] <= value <= rule["high"]:
            _refuse(instance, name, value, f"give a number from {rule['low']:g} to {rule['high']:g}")


def _refuse(instance: Any, name: str, value: Any, allowed: str) -> None:
    raise ValueError(f"{name}={value!r} is not allowed in {type(instance).__name__}; {allowed}.")
