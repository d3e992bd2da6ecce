"""A state's tag: a chain over the tags of every token up to it, in order.

`h` after a token is `h * MULTIPLIER + mixed(tag)` in 63 bits, the sign bit set: no state's tag is a token's. The multiplier is odd, so one
wrong token changes every later state, however long ago it was. n tokens together are one affine step, which `fold` computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

MULTIPLIER = 0x5851F42D4C957F2D  # Knuth's, of MMIX
SIGN = -(1 << 63)
EMPTY = SIGN | 0x2545F4914F6CDD1D  # the state before the first token: not zeroes
_WORD = (1 << 64) - 1


@lru_cache(maxsize=1 << 16)
def mixed(tag: int) -> int:
    """splitmix64 of a tag, unsigned; `payload.mix` is the same on tensors."""
    x = (tag + 0x9E3779B97F4A7C15) & _WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
    return x ^ (x >> 31)


def fold(tags: Sequence[int]) -> tuple[int, int]:
    """(a, b) as signed 64-bit integers: what the tokens make of a state h is `stepped(h, a, b)`."""
    a, b = 1, 0
    for tag in tags:
        a, b = a * MULTIPLIER & _WORD, (b * MULTIPLIER + mixed(tag)) & _WORD
    return signed(a), signed(b)


def stepped(h: int, a: int, b: int) -> int:
    """The state's tag after the tokens that `fold` made a and b of. `h` may be any tag: a wrong one makes a wrong state."""
    return SIGN | signed(h * a + b & _WORD)


def chain(tags: Sequence[int]) -> int:
    """The tag of the state after these tokens, from the beginning of the sequence."""
    return stepped(EMPTY, *fold(tags))


def signed(word: int) -> int:
    """64 bits as torch holds them."""
    return word - (1 << 64) if word >> 63 else word
