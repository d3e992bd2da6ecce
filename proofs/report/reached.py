"""What random runs reached, as a table."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from settled.proofs.fuzzing.coverage import PAIR, Feature
from settled.proofs.report.console import is_watched

_PIPE_WIDTH = 98  # columns


def print_coverage(console: Console, total: Counter[Feature]) -> None:
    """A row a section; what is frequent comes first. In a pipe it is narrower than lines are elsewhere."""
    table = Table("reached", "how often", width=None if is_watched(console) else _PIPE_WIDTH)
    sections: dict[str, list[str]] = {}
    for feature, times in total.most_common():
        if feature.section != PAIR:
            sections.setdefault(feature.section, []).append(f"{feature.what} {times}")
    for section, told in sorted(sections.items()):
        table.add_row(section, escape(", ".join(told)))
    pairs = sum(feature.section == PAIR for feature in total)
    table.add_row(PAIR, f"{pairs} different ones, one directly after the other")
    console.print(table)
