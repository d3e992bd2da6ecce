"""What a failed test says: the violation, its picture, and where it can be seen again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import takewhile

from settled.model.monitor import Violation
from settled.model.trace_io import printable
from settled.proofs.pytesting.asked import Asked
from settled.proofs.pytesting.judged import Judged
from settled.proofs.pytesting.keeping import keep
from settled.proofs.report.console import plain_text
from settled.proofs.report.picture import draw
from settled.proofs.report.signs import signs_for

PICTURE_ROWS_MAX = 12


def violation_text(judged: Judged, violations: Sequence[Violation], asked: Asked) -> str:
    """The first of the violations that became certain together. The first line says what, as it stands alone in pytest's summary."""
    first = violations[0]
    more = f" ({len(violations) - 1} more became certain with it)" if len(violations) > 1 else ""
    lines = [
        f"settled: {first.property} is violated under {first.contract} ({printable(first.cause)})",
        f"{first.property}: {first.property.meaning}",
        f"{printable(judged.engine)}, {first.sentence()}{more}",
        _picture(judged, first, asked.columns),
        *keep(judged, asked),
    ]
    return "\n".join(lines)


def section_of(judged: Judged, asked: Asked) -> str:
    """Of an engine in a test that failed for another reason."""
    so_far = f"{printable(judged.engine)}: {judged.num_events} events, nothing violated under {judged.contract}"
    return "\n".join([so_far, *keep(judged, asked)])


def _picture(judged: Judged, violation: Violation, columns: int) -> str:
    signs = signs_for(getattr(sys.__stdout__, "encoding", None) or "utf-8")
    until = takewhile(lambda numbered: numbered[0] <= violation.line, judged.events())
    return plain_text(draw(until, violation, width=columns, signs=signs, rows_max=PICTURE_ROWS_MAX), columns=columns)
