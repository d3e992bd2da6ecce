"""Nested values, such as a state made of tuples: their components, and new values of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from settled.model.algebra import Bool, BoolTerm, Int, Term, as_bool, bool_variable, int_variable, select

Value = TypeVar("Value", bound=tuple[Any, ...])


def leaves(value: Any) -> list[Any]:
    """The components of a nested value, in order."""
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple) else [value]


def rebuild(shape: Value, new_leaves: Any) -> Value:
    """A value of the same shape with other components, taken from an iterator."""
    parts = [rebuild(part, new_leaves) if isinstance(part, tuple) else next(new_leaves) for part in shape]
    make = getattr(type(shape), "_make", tuple)
    return cast("Value", make(parts))


def choose(condition: Bool, then: Value, otherwise: Value) -> Value:
    """Component by component, `then` if the condition holds."""
    pairs = zip(leaves(then), leaves(otherwise), strict=True)
    return rebuild(then, (_same_sort_select(condition, x, y) for x, y in pairs))


def _same_sort_select(condition: Bool, then: Int | Bool, otherwise: Int | Bool) -> Term:
    if isinstance(then, BoolTerm | bool) and isinstance(otherwise, BoolTerm | bool):
        return select(condition, as_bool(then), otherwise)
    return select(condition, cast("Int", then), cast("Int", otherwise))


def symbols(shape: Value, suffix: str) -> Value:
    """A value of the same shape whose components are variables."""
    names = iter(f"{index}@{suffix}" for index in range(len(leaves(shape))))
    fresh = (bool_variable(next(names)) if isinstance(leaf, BoolTerm | bool) else int_variable(next(names)) for leaf in leaves(shape))
    return rebuild(shape, fresh)


def concrete(shape: Value, values: Mapping[str, Any]) -> Value:
    """The value of a symbolic one, from the values of its variables."""
    return rebuild(shape, (values[leaf.args[0]] if leaf.op == "variable" else leaf.args[0] for leaf in leaves(shape)))
