"""KV cache groups as plain values for JSON, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from settled.model.specs import SPEC_BY_KIND, KVCacheSpec


def spec_as_dict(spec: KVCacheSpec) -> dict[str, Any]:
    """Its kind and its parameters."""
    return {"kind": spec.kind, **{field.name: getattr(spec, field.name) for field in fields(spec)}}


def spec_of(raw: dict[str, Any]) -> KVCacheSpec:
    """What `spec_as_dict` wrote. Raises KeyError, TypeError, ValueError."""
    parameters = dict(raw)
    return SPEC_BY_KIND[parameters.pop("kind")](**parameters)
