"""Ground truth of attention: a query at a time, in float64, over the keys it reads and nothing else; written apart from the kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from settled.reference.device.compiled import CompiledLog, Step
from settled.reference.device.ops import KeysPart
from settled.reference.device.payload import KEY, QUERY, VALUE, Numbers, payload


def true_outputs(compiled: CompiledLog, step: Step, numbers: Numbers) -> Tensor:
    """[rows, head_dim] in float64, of what memory that never loses anything would hold."""
    rows = []
    for part in step.work.parts:
        reading = compiled.readings[part.group]
        if not isinstance(part, KeysPart) or reading is None:
            continue
        for query in range(part.start, part.start + part.tokens):
            ranges = reading(query, part.prompt_tokens)
            tags = torch.tensor([part.expected[at - part.first] for first, end in ranges for at in range(first, end)])
            asked = payload(torch.tensor(part.expected[query - part.first]), QUERY, numbers).double()
            keys, values = payload(tags, KEY, numbers).double(), payload(tags, VALUE, numbers).double()
            rows.append(torch.softmax(keys @ asked / numbers.head_dim**0.5, 0) @ values)
    return torch.stack(rows)
