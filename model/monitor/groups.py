"""Which mask the monitor uses for each KV cache group, and for each request in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from settled.model.algebra import int_variable
from settled.model.kinds import Kind, MambaNone, kind_of
from settled.model.monitor.keys import Formulas, Shape, TokenMask, shape_of
from settled.model.monitor.masks import Mask
from settled.model.monitor.slots import Aligned, AlignedWithDrafts, InPlace
from settled.model.specs import CustomSpec, KVCacheSpec, MambaSpec, RSWASpec

PROMPTS_MAX = 1024  # masks of prompts of different lengths that are kept


class GroupMasks:
    """The masks of a config's groups. `custom` has the kinds that a user gives to groups of kind `custom`, by name."""

    def __init__(self, specs: Sequence[KVCacheSpec], custom: Mapping[str, Kind]) -> None:
        self._specs = specs
        self._fixed = [None if isinstance(spec, RSWASpec) else mask_of(spec, custom=custom) for spec in specs]
        self._depends = [isinstance(spec, RSWASpec) for spec in specs]
        self.modelled = [depends or fixed is not None for depends, fixed in zip(self._depends, self._fixed, strict=True)]

    def of(self, prompt_tokens: int | None) -> list[Mask | None]:
        """The masks of a request with a prompt of that many tokens: None where nothing is known of a group's."""
        if not any(self._depends):
            return self._fixed
        masks = zip(self._specs, self._depends, self._fixed, strict=True)
        return [mask_of(spec, prompt_tokens) if depends else fixed for spec, depends, fixed in masks]


def mask_of(spec: KVCacheSpec, prompt_tokens: int | None = None, custom: Mapping[str, Kind] | None = None) -> Mask | None:
    """The compiled mask of a KV cache group, for a request with a prompt of that many tokens.

    None for a kind that is not modelled, for one that depends on the prompt if that is not given, and for a custom one without a kind.
    """
    if isinstance(spec, CustomSpec):
        kind = (custom or {}).get(spec.name)
        return None if kind is None else _token_mask(kind, spec.block_size)
    if isinstance(spec, RSWASpec):
        return None if prompt_tokens is None else _mask_with_prompt(spec, prompt_tokens)
    return _built_in(spec)


@cache
def _built_in(spec: KVCacheSpec) -> Mask | None:
    kind = kind_of(spec)
    if isinstance(kind, MambaNone):
        return InPlace(kind, spec.block_size)
    if isinstance(spec, MambaSpec) and kind is not None:
        drafts = spec.num_speculative_blocks
        return AlignedWithDrafts(kind, spec.block_size, drafts) if drafts else Aligned(kind, spec.block_size)
    return None if kind is None else _token_mask(kind, spec.block_size)


def _token_mask(kind: Kind, block_size: int) -> Mask:
    shape = shape_of(kind)
    return TokenMask(shape, block_size, Formulas(kind, shape, block_size))


@lru_cache(maxsize=PROMPTS_MAX)
def _mask_with_prompt(spec: RSWASpec, prompt_tokens: int) -> Mask:
    shape, formulas = _formulas_with_prompt(spec)
    return TokenMask(shape, spec.block_size, formulas.bound(prompt_tokens))


@cache
def _formulas_with_prompt(spec: RSWASpec) -> tuple[Shape, Formulas]:
    """One set of functions for all prompts, with the prompt as an argument."""
    kind = kind_of(spec, int_variable("prompt"))
    assert kind is not None
    return shape_of(kind), Formulas(kind, shape_of(kind), spec.block_size, "prompt")
