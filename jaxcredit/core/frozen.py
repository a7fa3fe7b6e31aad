"""What type checkers should know of `flax.struct.dataclass`: it gives every class a `replace`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self


class Frozen:
    """Base of the library's pytree dataclasses; adds nothing at run time."""

    if TYPE_CHECKING:

        def replace(self, **changes: Any) -> Self:
            """A copy with some fields changed."""
            ...
