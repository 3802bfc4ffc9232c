"""The saved state of a component of a model, and the registry that restores it.

A component has ``state() -> State`` and a class method ``from_state(state)``.  The header of a state is JSON
and names its ``kind``; `register` makes a kind known, `restore` builds the object of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from numpy.typing import NDArray

from extremax.errors import ModelFileError


@dataclass(frozen=True)
class State:
    """A JSON header and arrays by name."""

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def nested(self, prefix: str) -> State:
        """Return the state that `merge` stored under a prefix."""
        start = f"{prefix}."
        arrays = {
            name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)
        }
        header = self.header.get(prefix)
        if not isinstance(header, dict):
            raise ModelFileError(
                f"the model does not fit together: its header has no mapping {prefix!r}. Copy or save the"
                " model again."
            )
        return State(header, arrays)


def merge(
    header: Mapping[str, Any], parts: Mapping[str, State], arrays: Mapping[str, NDArray[Any]] | None = None
) -> State:
    """Return one state that holds others under prefixes."""
    joined: dict[str, NDArray[Any]] = dict(arrays or {})
    for prefix, part in parts.items():
        joined |= {f"{prefix}.{name}": array for name, array in part.arrays.items()}
    return State({**header, **{prefix: part.header for prefix, part in parts.items()}}, joined)


T = TypeVar("T")
_KINDS: dict[tuple[str, str], Callable[[State], Any]] = {}


def register(component: str, kind: str) -> Callable[[type[T]], type[T]]:
    """Make a class known under ``header["kind"] == kind`` for a component such as "noise" or "search".

    Examples
    --------
    >>> @register("example", "constant")
    ... class Constant:
    ...     def __init__(self, value: float) -> None:
    ...         self.value = value
    ...     def state(self) -> State:
    ...         return State({"kind": "constant", "value": self.value})
    ...     @classmethod
    ...     def from_state(cls, state: State) -> "Constant":
    ...         return cls(state.header["value"])
    >>> restore("example", Constant(3.0).state()).value
    3.0
    """

    def decorate(cls: type[T]) -> type[T]:
        _KINDS[component, kind] = cls.from_state  # type: ignore[attr-defined]
        return cls

    return decorate


def restore(component: str, state: State) -> Any:
    """Build the object that a state describes."""
    kind = state.header.get("kind")
    if (component, kind) not in _KINDS:
        known = ", ".join(sorted(name for part, name in _KINDS if part == component))
        raise ModelFileError(
            f"the model's {component} is of the unknown kind {kind!r} (known: {known}); a newer"
            " extremax, or the module that defines it, may be able to read it."
        )
    return _KINDS[component, str(kind)](state)
