"""`counters_symmetric`: the request's counters by the right discipline, against what the engine says.

The monitor keeps its own C, F, S from the events alone. The engine's are seen where it records `counters`, and otherwise through
the `start` of each step, which must equal C. After a difference C follows the engine, so that one fault is not told for ever.
"""

from __future__ import annotations

from settled.model.monitor import masks
from settled.model.monitor.findings import Findings
from settled.model.monitor.state import Request
from settled.model.monitor.violation import Violation
from settled.model.properties import Property


class Counts:
    """Moves and checks the counters of requests, in tokens."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.saw_counters = False

    def before_schedule(self, request: Request, start: int, line: int, step: int) -> None:
        """The step must start at C. Above it, without a live step in flight, an unrecorded hit is implied."""
        if start == request.computed:
            return
        if start < request.computed or request.has_live_step():
            what = f"step {step} of request {request.name} starts at {start}, but the events make its computed count"
            self._report("start", f"{what} {request.computed}", line, request, step)
        request.computed = start

    def generation_ended(self, request: Request) -> None:
        """All that is in flight is stale."""
        request.computed, request.in_flight, request.stale = masks.counters_after_preempt(
            request.computed, request.in_flight, request.stale
        )

    def compare(self, request: Request, recorded: tuple[int, int, int] | None, line: int, step: int) -> None:
        """The engine's counters, if it records them, after the event."""
        if recorded is None:
            return
        self.saw_counters = True
        own = (request.computed, request.in_flight, request.stale)
        if recorded == own:
            return
        names = ("computed", "in_flight", "stale")
        wrong = [name for name, left, right in zip(names, recorded, own, strict=True) if left != right]
        what = f"after step {step}, request {request.name} counts (computed, in flight, stale) {recorded}; the events make it {own}"
        self._report(f"counters[{'+'.join(wrong)}]", what, line, request, step)
        request.computed = recorded[0]

    def idle(self, request: Request, line: int) -> None:
        """Nothing may be in flight."""
        if request.in_flight or request.unprocessed:
            what = f"the engine is idle, but {request.in_flight} tokens of request {request.name} are in flight"
            self._report("in_flight_at_end", what, line, request, None)

    def _report(self, cause: str, what: str, line: int, request: Request, step: int | None) -> None:
        self._findings.add(
            Violation(
                property=Property.COUNTERS_SYMMETRIC,
                contract=self._findings.contract,
                line=line,
                cause=cause,
                detail=what,
                step=step,
                request=request.name,
            )
        )
