"""The signs of a picture, one a token, and those that stand in for them where the output's encoding has only ASCII."""

from __future__ import annotations

from typing import NamedTuple

SIGNS_MAX = 16  # a larger block shows one sign for several tokens: the most telling of theirs


class Signs(NamedTuple):
    """What has no letter: a block that is held, one that is being released, a null entry; an arrow, and what stands before how often."""

    held: str
    released: str
    null: str
    arrow: str
    times: str

    @property
    def legend(self) -> str:
        return f"w written and read   d draft   r read through the window   {self.held} held   {self.released} released   {self.null} null"

    def squeezed(self, signs: str) -> str:
        """At most SIGNS_MAX signs."""
        telling = f"!{self.null}{self.released}rdw{self.held} "
        tokens_a_sign = -(-len(signs) // SIGNS_MAX)
        chunks = (signs[start : start + tokens_a_sign] for start in range(0, len(signs), tokens_a_sign))
        return "".join(min(chunk, key=telling.index) for chunk in chunks)


UNICODE = Signs("·", "×", "∅", "→", "×")
ASCII = Signs(".", "x", "0", "->", "x")


def signs_for(encoding: str) -> Signs:
    """The signs that an encoding can carry."""
    try:
        "".join(UNICODE).encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return UNICODE
