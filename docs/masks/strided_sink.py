"""A user's mask: a window, and one key in `STRIDE` for good. It shrinks, so `settled prove --mask docs/masks/strided_sink.py` proves it.

`reads` is written in the algebra of `settled.model.algebra`: comparisons, `+ - * // %` by constants, and `both`, `either`, `negate`,
`select`, `maximum`, `minimum` in place of `and`, `or`, `not`, `if`, `max`, `min`.
"""

from settled.model.algebra import both, either

WINDOW, STRIDE = 8, 4


def reads(query, token):
    """Whether the query at position `query` reads the key at position `token`."""
    return both(token <= query, either(token % STRIDE == 0, query - token < WINDOW))


def frees(first, last, basis):
    """Optional: whether a prune at `basis` settled tokens frees the block of the tokens `first` to `last`. Without it, the mask decides.

    A block goes when it lies before the window and holds no multiple of the stride.
    """
    return both(last <= basis - WINDOW, first % STRIDE > 0, first // STRIDE == last // STRIDE)
