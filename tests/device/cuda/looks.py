"""Words that somebody opens between two looks of a kernel, in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor
from triton.runtime import interpreter


@contextmanager
def opened_at_look(word: Tensor, number: int) -> Iterator[list[int]]:
    """One word becomes 1 when it is looked at for the `number`-th time, and is 0 before. The looks so far."""
    memory, looks = interpreter._interpreter, []

    def load(pointers: Any, *details: Any) -> Any:
        if pointers.size == 1 and int(pointers.item()) == word.data_ptr():
            looks.append(len(looks) + 1)
            word.fill_(int(looks[-1] >= number))
        return memory.load(pointers, *details)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_interpreter", SimpleNamespace(load=load, store=memory.store))
        yield looks
