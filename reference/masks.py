"""Masks of users: an attention kind that only its name describes gets its mask from here.

The reference asks the mask itself, token by token; it derives no formula from it. `settled.model` has its own registry, so that the two
sides can be told different things, and a comparison notices.
"""

from __future__ import annotations

from collections.abc import Callable

Reads = Callable[[int, int], bool]  # (query, token): whether the query at position `query` reads the key at position `token`

_MASKS: dict[str, Reads] = {}


class MaskError(ValueError):
    """No mask, or another one, has been registered under this name."""


def register_mask(name: str, reads: Reads) -> None:
    """Lets `CustomSpec(name=name)` be served. `reads(query, token)` is asked for positions `token` <= `query` only.

    What a mask does not need at a query it must not need later (needed-sets shrink): a prune looks at one query alone. Raises MaskError
    when another mask has the name.
    """
    if _MASKS.setdefault(name, reads) is not reads:
        raise MaskError(f"a mask named {name!r} is registered already")


def unregister_mask(name: str) -> None:
    """Forgets a mask, if there is one; engines that were built with it keep it."""
    _MASKS.pop(name, None)


def is_registered(name: str) -> bool:
    return name in _MASKS


def mask_named(name: str) -> Reads:
    """The mask of that name. Raises MaskError when there is none."""
    if name not in _MASKS:
        raise MaskError(f"no mask named {name!r} is registered; call register_mask first")
    return _MASKS[name]
