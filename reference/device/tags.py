"""Tags: what a slot holds, in one integer: the request's number, its generation, the group, the version and the position.

The version counts how often a generation has written that position: a rejected draft and the token that took its place are different
bytes. Position 0 of request 0 is not 0, so that zeroed memory is never right by chance. Every field is checked, none wraps.
"""

from __future__ import annotations

from typing import NamedTuple

_POSITION_BITS, _VERSION_BITS, _GROUP_BITS, _GENERATION_BITS, _REQUEST_BITS = 22, 6, 4, 10, 20
_VERSION_AT = _POSITION_BITS
_GROUP_AT = _VERSION_AT + _VERSION_BITS
_GENERATION_AT = _GROUP_AT + _GROUP_BITS
_REQUEST_AT = _GENERATION_AT + _GENERATION_BITS  # the sign stays clear

ZEROED = 0
POISONED = -1
NEVER_WRITTEN = -2
LOADED, LOOKAHEAD, FAILED = 61, 62, 63  # versions that no step writes: brought by a load, by a drafter, by a load that failed
VERSIONS = 61


class TagError(ValueError):
    """A log is too large for a tag; the message says which field."""


class Tag(NamedTuple):
    """What a tag says. `request` counts requests from 0 in the order in which the trace adds them."""

    request: int
    generation: int
    group: int
    version: int
    position: int

    def __str__(self) -> str:
        how = {LOADED: ", loaded", LOOKAHEAD: ", lookahead", FAILED: ", of a failed load"}.get(self.version, "")
        how = how or (f", version {self.version}" if self.version else "")
        return f"request {self.request}, generation {self.generation}, group {self.group}, position {self.position}{how}"


def pack(tag: Tag) -> int:
    """One positive integer of 63 bits. Raises TagError."""
    base = base_of(tag.request, tag.generation, tag.group)
    _check("version", tag.version, _VERSION_BITS)
    _check("position", tag.position, _POSITION_BITS)
    return base | tag.version << _VERSION_AT | tag.position


def base_of(request: int, generation: int, group: int) -> int:
    """The tag of version 0 at position 0; `VERSION_STEP` and 1 are what a version and a position add. Raises TagError."""
    _check("request", request + 1, _REQUEST_BITS)
    _check("generation", generation, _GENERATION_BITS)
    _check("group", group, _GROUP_BITS)
    return (request + 1) << _REQUEST_AT | generation << _GENERATION_AT | group << _GROUP_AT


VERSION_STEP = 1 << _VERSION_AT
POSITIONS = 1 << _POSITION_BITS


def unpack(tag: int) -> Tag:
    """What `pack` packed. Raises TagError for what is no tag."""
    if tag <= 0:
        raise TagError(f"{tag} is no tag: {describe(tag)}")
    fields = (_GENERATION_AT, _GENERATION_BITS), (_GROUP_AT, _GROUP_BITS), (_VERSION_AT, _VERSION_BITS), (0, _POSITION_BITS)
    generation, group, version, position = [tag >> at & ((1 << bits) - 1) for at, bits in fields]
    return Tag((tag >> _REQUEST_AT) - 1, generation, group, version, position)


def describe(tag: int) -> str:
    """For people, whatever a slot holds."""
    said = {ZEROED: "zeroes", POISONED: "poison", NEVER_WRITTEN: "nothing"}.get(tag)
    if said is not None:
        return said
    return str(unpack(tag)) if tag > 0 else f"garbage ({tag})"


def _check(field: str, value: int, bits: int) -> None:
    if not 0 <= value < 1 << bits:
        raise TagError(f"{field} {value} does not fit into {bits} bits of a tag")
