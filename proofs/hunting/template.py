"""A text with optional regions and named gaps: how a script is put together from a file that reads like one.

A line `#: if NAME` (`#: if not NAME`) opens a region that stays when the feature is on (off); `#: end` closes it. Regions nest.
`$name` is replaced by a value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from string import Template

_MARK = re.compile(r"^#: (?:if (?P<negated>not )?(?P<feature>\w+)|(?P<end>end))$")


def fill(text: str, features: Collection[str], values: Mapping[str, str]) -> str:
    """The text of a template for these features and values.

    Raises ValueError for a mark that is none or a region that is not closed, KeyError for a gap without a value.
    """
    kept: list[str] = []
    regions: list[bool] = []  # of every open region, whether its lines stay
    for number, line in enumerate(text.splitlines(), start=1):
        mark = _MARK.match(line)
        if mark is None:
            if line.startswith("#:"):
                raise ValueError(f"line {number} of the template is no mark: {line}")
            if all(regions):
                kept.append(line)
        elif mark["end"]:
            if not regions:
                raise ValueError(f"line {number} of the template closes a region that nothing opened")
            regions.pop()
        else:
            regions.append((mark["feature"] in features) != bool(mark["negated"]))
    if regions:
        raise ValueError("a region of the template is not closed")
    return Template("\n".join(kept) + "\n").substitute(values)
