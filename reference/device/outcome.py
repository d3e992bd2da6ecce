"""What every read of a run found, as one record that all back-ends fill alike: a CPU replay, Triton's interpreter, a CUDA device.

Rows are numbered as in `rows.py`. A digest is the sum of the mixed tags that a row read, in wrapping 64 bits: it does not depend on the
order in which they were read, and changes with each of them. All tensors are the host's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from settled.reference.device.attention import rows_differing
from settled.reference.device.compiled import CompiledLog
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import LaunchKind
from settled.reference.device.payload import mix
from settled.reference.device.rows import Rows, moves_of

NOT_RUN = -1  # in `wrong`: nothing has been read


@dataclass(slots=True)
class Outcome:
    """`digests`, `wrong` (how many tags are wrong), `first` (the first wrong position, -1), `found` (the tag there, 0), `is_null` (read
    through a null table entry), `outputs` [rows, head_dim]: of rows of attention. `state_found`, `state_wrong` (0 or 1), `state_null`: of
    states read; `state_outputs` [state rows, head_dim]. `store_digests`, `store_wrong` (slots whose tags are wrong), `store_first` (the
    first of them, -1), `store_found` (the tag there, 0), `store_differing` (slots whose bytes are): of STOREs.
    """

    rows: Rows
    digests: Tensor
    wrong: Tensor
    first: Tensor
    found: Tensor
    is_null: Tensor
    outputs: Tensor
    state_found: Tensor
    state_wrong: Tensor
    state_null: Tensor
    state_outputs: Tensor
    store_digests: Tensor = None
    store_wrong: Tensor = None
    store_first: Tensor = None
    store_found: Tensor = None
    store_differing: Tensor = None

    @property
    def is_clean(self) -> bool:
        """Everything was read, every tag was right, every store brought the right bytes."""
        found = (self.wrong, self.state_wrong, self.store_wrong, self.store_differing)
        return not any(bool(wrong.count_nonzero()) for wrong in found)

    def counts(self) -> str:
        """For people."""
        said = (
            f"{int((self.wrong > 0).sum())} of {len(self.wrong)} rows garbled",
            f"{int((self.state_wrong > 0).sum())} of {len(self.state_wrong)} states",
            f"{int(((self.store_wrong > 0) | (self.store_differing > 0)).sum())} of {len(self.store_wrong)} stores",
        )
        missing = int((self.wrong == NOT_RUN).sum()) + int((self.state_wrong == NOT_RUN).sum())
        return ", ".join(said) + (f", {missing} reads missing" if missing else "")

    def differences(self, other: Outcome) -> list[str]:
        """The names of what the two were told differently, outputs apart: those depend on the device."""
        names = [name for name in self.__dataclass_fields__ if name != "rows" and not name.endswith("outputs")]
        return [name for name in names if not torch.equal(getattr(self, name), getattr(other, name))]

    def rows_differing(self, other: Outcome) -> list[int]:
        """Rows of attention whose outputs are not equal bit for bit."""
        return rows_differing(self.outputs, other.outputs)

    def state_rows_differing(self, other: Outcome) -> list[int]:
        """The same of states."""
        return rows_differing(self.state_outputs, other.state_outputs)


def outcome_before(rows: Rows, head_dim: int, dtype: torch.dtype) -> Outcome:
    """Nothing has run: nothing of it could be taken for a clean run."""
    keys, states = len(rows.keys), len(rows.states)
    return Outcome(
        rows,
        torch.zeros(keys, dtype=torch.int64),
        torch.full((keys,), NOT_RUN, dtype=torch.int32),
        torch.full((keys,), -1, dtype=torch.int32),
        torch.zeros(keys, dtype=torch.int64),
        torch.zeros(keys, dtype=torch.int32),
        torch.full((keys, head_dim), float("nan"), dtype=dtype),
        torch.zeros(states, dtype=torch.int64),
        torch.full((states,), NOT_RUN, dtype=torch.int32),
        torch.zeros(states, dtype=torch.int32),
        torch.full((rows.num_state_rows, head_dim), float("nan"), dtype=dtype),
    )


def add_stores(outcome: Outcome, compiled: CompiledLog, numbered: NumberedLog, tags: Tensor, keys: Tensor, values: Tensor) -> None:
    """Judges what STOREs have brought to the host: slots of tags, keys and values, one STORE behind the other."""
    digests, wrong, first, found, differing = [], [], [], [], []
    for store in moves_of(compiled, LaunchKind.STORE):
        span, wanted = slice(store.at, store.at + len(store.slots)), numbered.moves[store.op]
        unequal = (tags[span] != store.tags).nonzero().flatten().tolist()
        digests.append(int(mix(tags[span]).sum()))
        wrong.append(len(unequal))
        first.append(unequal[0] if unequal else -1)
        found.append(int(tags[store.at + unequal[0]]) if unequal else 0)
        differing.append(len({*rows_differing(keys[span], wanted.keys), *rows_differing(values[span], wanted.values)}))
    outcome.store_digests = torch.tensor(digests, dtype=torch.int64)
    outcome.store_wrong = torch.tensor(wrong, dtype=torch.int32)
    outcome.store_first = torch.tensor(first, dtype=torch.int32)
    outcome.store_found = torch.tensor(found, dtype=torch.int64)
    outcome.store_differing = torch.tensor(differing, dtype=torch.int32)
