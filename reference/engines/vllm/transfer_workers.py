"""What the driver asks of the workers' side of a connector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from settled.reference.engines.protocol import Ending, NewRequest, TransferPart
from settled.reference.engines.setup import SetupError
from settled.reference.engines.vllm.steps import Step


class Workers:
    """Workers without a connector: they have nothing to tell."""

    has_news = False
    """Whether an output that schedules nothing would tell the scheduler something."""
    is_idle = True
    """No transfer runs."""

    def expect(self, request: NewRequest) -> None:
        """A request comes. Raises SetupError for one that needs a connector that is not there."""

    def step_starts(self, number: int) -> None:
        """The scheduler is about to schedule a step."""

    def dispatch(self, step: Step) -> None:
        """The step is on its way to the workers."""

    def attach(self, step: Step, output: Any) -> None:
        """Adds to a step's output what workers tell with it, just before the scheduler takes it in."""

    def taken_in(self, step: Step) -> None:
        """The scheduler has taken it in."""

    def parts(self) -> Sequence[TransferPart]:
        """Parts of transfers that may be reported."""
        return ()

    def report(self, part: TransferPart, ending: Ending) -> None:
        """A worker is through with a part."""
        raise SetupError("there is no transfer to report")
