"""Numbers as options take them, refused in words that say what is wrong."""

from __future__ import annotations

import math
from typing import Any

import click


class Count(click.IntRange):
    """A whole number that is not below `min`."""

    name = "integer"


class Seconds(click.FloatRange):
    """A time, 0 or more; `inf` is until somebody interrupts."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises BadParameter. What is no number would compare with nothing, and the run never end."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a valid number", param, ctx)
        return float(seconds)
