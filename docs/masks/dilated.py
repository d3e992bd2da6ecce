"""A mask that does not shrink: a dilated window reads every second key, so an odd query reads what the even one before it did not.

`settled prove --mask docs/masks/dilated.py` refutes it with its smallest case.
"""

from settled.model.algebra import both

WINDOW, DILATION = 8, 2


def reads(query, token):
    """Whether the query at position `query` reads the key at position `token`."""
    return both(token <= query, query - token < WINDOW, (query - token) % DILATION == 0)
