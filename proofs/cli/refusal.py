"""What goes wrong, told in two lines on standard error: what and where, and how to mend it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import IO, Any

import click

EXIT_BAD_INPUT, EXIT_UNKNOWN = 2, 3


def complain(command: str, message: str, hint: str = "", *, file: IO[str] | None = None) -> None:
    """`command: message`, and under it the hint."""
    lines = [f"{command}: {message}", *([f"  hint: {hint}"] if hint else [])]
    with suppress(OSError):  # where nobody listens any more, the exit code says it
        print("\n".join(lines), file=file or sys.stderr, flush=True)


class Refusal(click.ClickException):
    """The command ends without a verdict, with 2. An error's own `hint` is taken where none is given."""

    exit_code = EXIT_BAD_INPUT

    def __init__(self, error: Exception | str, hint: str = "") -> None:
        super().__init__(str(error))
        context = click.get_current_context(silent=True)
        self.command = context.command_path if context is not None else "settled"
        self.hint = hint or str(getattr(error, "hint", ""))

    def show(self, file: IO[Any] | None = None) -> None:
        complain(self.command, self.message, self.hint, file=file)


class Undecided(Refusal):
    """As a Refusal, with 3: the input may be right."""

    exit_code = EXIT_UNKNOWN


# ---- names -----------------------------------------------------------------------------------------------------------


def meant(name: str, known: Iterable[str]) -> str:
    """A question: whether one of the known names is meant; "" if none is like it."""
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[found[0]]}?" if found else ""


class UnknownNameError(click.UsageError):
    """A name that is none of a closed list. `words` are parts of the names, which are accepted too."""

    def __init__(self, what: str, name: str, known: Iterable[str], *, words: Iterable[str] = ()) -> None:
        listed = tuple(known)
        super().__init__(f"unknown {what} {name!r}; expected one of {', '.join(listed)}{', or a word of one' if words else ''}")
        self.hint = meant(name, (*listed, *words))


class Choice(click.Choice[str]):
    """One of a closed list, as an option's value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Raises BadParameter with a hint."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            error.hint = meant(str(value), self.choices)  # type: ignore[attr-defined]
            raise
