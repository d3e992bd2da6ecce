"""Events to lines of NDJSON, in two passes of msgspec: into mirrors that know which keys may be left out, and from there to text.

A live recorder encodes the events of every step; walking the dataclasses in Python took sixteen times as long.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from settled.model.events import EVENT_BY_NAME, Event
from settled.model.specs import SPEC_BY_KIND, KVCacheSpec


def encode_line(event: Event) -> bytes:
    """One line of NDJSON, without the line end; the event's name comes first, optional keys at their default are left out.

    Raises msgspec.ValidationError for an event with a value that its field cannot have.
    """
    return _ENCODER.encode(msgspec.convert(event, _MIRRORS[type(event)], from_attributes=True))


def _mirror(cls: type, tag_field: str | None = None, tag: str | None = None) -> type[msgspec.Struct]:
    """A struct with the fields of a dataclass, and a tag before them if one is given."""
    hints = get_type_hints(cls)
    typed = [(field.name, _mirrored(hints[field.name]), field.default) for field in fields(cls)]
    members: list[Any] = [(name, hint) if default is MISSING else (name, hint, default) for name, hint, default in typed]
    return msgspec.defstruct(cls.__name__, members, kw_only=True, omit_defaults=True, tag_field=tag_field, tag=tag)


def _mirrored(hint: Any) -> Any:
    """A type with mirrors in the places of dataclasses, all the way down. A group is told from others by its kind."""
    if hint is KVCacheSpec:
        return reduce(or_, [_mirror(spec, "kind", kind) for kind, spec in SPEC_BY_KIND.items()])
    if isinstance(hint, type) and is_dataclass(hint):
        return _mirror(hint)
    origin, inside = get_origin(hint), tuple(_mirrored(part) for part in get_args(hint))
    if origin in (Union, UnionType):
        return reduce(or_, inside)
    return origin[inside] if origin in (tuple, dict) else hint


_MIRRORS = {event: _mirror(event, "event", name) for name, event in EVENT_BY_NAME.items()}
_ENCODER = msgspec.json.Encoder()
