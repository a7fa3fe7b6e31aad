"""The run-time type checker of the tests: every function's annotated types and shapes, but no constructor."""

from collections.abc import Callable
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from beartype import BeartypeConf, beartype

# An int is good where a float is asked for, as static checkers have it.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check_functions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check calls of `function` against its annotations, unless it is an `__init__`.

    Constructors of pytree dataclasses stay unchecked: `vmap`, `in_axes` and `eval_shape` rightly put tracers, ints and
    shapes into their fields.
    """
    if function.__name__ == "__init__":
        return function
    function.__annotations__ = {name: without_choices(hint) for name, hint in function.__annotations__.items()}
    return check(function)


def without_choices(hint: Any) -> Any:
    """Turn Literal["a", "b"] into str: a choice that is not allowed must reach the library's own error."""
    if get_origin(hint) is Literal:
        return reduce(or_, (type(choice) for choice in get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, (without_choices(part) for part in get_args(hint)))
    return hint
