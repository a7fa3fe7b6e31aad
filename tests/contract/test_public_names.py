"""Every public name is documented, and stands in the README; methods in its table."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import jaxcredit as jc

README = (Path(__file__).parents[2] / "README.md").read_text()
NAMES = sorted(n for n, x in vars(jc).items() if not n.startswith("_") and not isinstance(x, ModuleType))
NO_METHODS = ("core", "networks", "agents", "training", "evaluation")


def is_method(x: Any) -> bool:
    """A pure function from a room of methods, or an estimator."""
    if inspect.isclass(x):
        return issubclass(x, jc.CreditEstimator) and x is not jc.CreditEstimator
    return x.__module__.split(".")[1] not in NO_METHODS


STARTS = ("init_trace",)  # first states of methods, named in the method's row
METHODS = [name for name in NAMES if is_method(getattr(jc, name)) and name not in STARTS]


def test_something_is_public() -> None:
    assert {"gae", "GAE", "RUDDER", "redistribute_differences"} <= set(METHODS)
    assert {"chain", "train", "sweep", "PPO"} <= set(NAMES) - set(METHODS)


@pytest.mark.parametrize("name", NAMES)
def test_has_a_docstring_of_its_own(name: str) -> None:
    text = getattr(jc, name).__doc__ or ""  # no class inherits it
    headline = text.partition("\n")[0]
    assert headline.strip() and not headline.startswith(f"{name}("), f"{name} is public: say what it is"


@pytest.mark.parametrize("name", NAMES)
def test_stands_in_the_readme(name: str) -> None:
    assert re.search(rf"`(?:jc\.)?{name}`", README), f"{name} is public: name it in README.md"


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_a_row(name: str) -> None:
    function_and_estimator = re.findall(r"^\|([^|\n]*\|[^|\n]*)\|.*\|.*\|.*\|$", README, re.MULTILINE)
    assert any(f"`{name}`" in cells for cells in function_and_estimator), f"{name} is a method: add a row to README.md"
