"""One engine's events in a test: judged as they come, and kept until it is known whether the test fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from tempfile import SpooledTemporaryFile

import msgspec

from settled.model.events import Config, End, Event
from settled.model.monitor import Monitor, Report, Violation
from settled.model.properties import Contract
from settled.model.trace_encoding import encode_line
from settled.model.trace_io import TraceError, decode_line, read_trace
from settled.proofs.pytesting.asked import Asked

BYTES_IN_MEMORY_MAX = 16 << 20  # of a trace; a longer one lies in a temporary file


class Judged:
    """A trace that is being made. `number`: it is the test's first, second, ... `violations`: those of the event that had the first."""

    def __init__(self, asked: Asked, number: int) -> None:
        self.number = number
        self.num_events = 0
        self.violations: Sequence[Violation] = ()
        self.has_ended = False
        self._source = f"engine {number}"
        self._asked = asked
        self._monitor: Monitor | None = None
        self._lines = SpooledTemporaryFile(max_size=BYTES_IN_MEMORY_MAX)  # noqa: SIM115 - open as long as the test

    def feed(self, event: Event) -> Sequence[Violation]:
        """The violations that became certain. Raises TraceError for an event that cannot be: the first must be the config."""
        self.num_events += 1
        line = self._line_of(event)
        if self._monitor is None:
            if not isinstance(event, Config):
                raise TraceError(self._source, self.num_events, f"the first event must be config, not {event.name}")
            self.engine = event.engine
            self._monitor = Monitor(event, self._asked.contract, self._asked.properties, source=self._source)
        self._lines.write(line + b"\n")
        self.has_ended = isinstance(event, End)
        self.violations = self._monitor.feed(self.num_events, event)
        return self.violations

    def _line_of(self, event: Event) -> bytes:
        """As a trace has it. An event is a plain object, whose maker may have put anything in: it is read again, as from a file."""
        try:
            line = encode_line(event)
        except KeyError:
            told = f"a {type(event).__name__} is no event: expected one of settled.model.events"
            raise TraceError(self._source, self.num_events, told) from None
        except msgspec.ValidationError as error:
            raise TraceError(self._source, self.num_events, f"{event.name}: {error}") from None
        decode_line(line, self._source, self.num_events)
        return line

    @property
    def has_begun(self) -> bool:
        """Whether there is a config, and so something to report."""
        return self._monitor is not None

    @property
    def contract(self) -> Contract:
        assert self._monitor is not None
        return self._monitor.contract

    def report(self) -> Report:
        """The verdict so far; complete only after an `end`."""
        assert self._monitor is not None
        return self._monitor.finish()

    def events(self) -> Iterator[tuple[int, Event]]:
        """All of them, numbered by line."""
        self._lines.seek(0)
        return read_trace(self._lines, self._source)

    def lines(self) -> Iterator[bytes]:
        """As the file of a trace has them."""
        self._lines.seek(0)
        return iter(self._lines)

    def close(self) -> None:
        """The trace is gone, unless it was kept."""
        self._lines.close()
