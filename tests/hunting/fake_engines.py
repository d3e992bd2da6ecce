"""Engines that behave badly in one way each: the reference with one method changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from settled.model.disciplines import DISCIPLINES
from settled.reference.engines.protocol import Anomaly, Chooser, Sink
from settled.reference.engines.reference_engine import ReferenceEngine, ReferenceFactory
from settled.reference.engines.setup import EngineSetup


class ChangedFactory(ReferenceFactory):
    """Reference engines that `change` has changed."""

    def __init__(self, change: Callable[[Any], None], discipline: str = "settled") -> None:
        super().__init__(DISCIPLINES[discipline])
        self.change = change
        self.name = "changed 1.0"

    def create(self, setup: EngineSetup, sink: Sink | None, *, inspects: bool = True) -> ReferenceEngine:
        engine = super().create(setup, sink, inspects=inspects)
        self.change(engine)
        return engine


def fails_to_process(error: Exception) -> Callable[[Any], None]:
    def change(engine: Any) -> None:
        def process(choose: Chooser) -> None:
            raise error

        engine.process = process

    return change


def never_schedules(engine: Any) -> None:
    engine.schedule = lambda: False


def schedules_without_end(engine: Any) -> None:
    """The engine itself never comes back."""

    def spin() -> bool:
        while True:
            pass

    engine.schedule = spin


def finishes_nothing(engine: Any) -> None:
    """Steps go through, and nothing comes of them."""
    engine.schedule = lambda: True
    engine.process = lambda choose: None


def looks_wrong(engine: Any) -> None:
    def inspect() -> Sequence[Anomaly]:
        return [Anomaly("single_owner", "planted", "block 3 has 2 references and 1 holder")] if engine.num_unprocessed_steps else []

    engine.inspect = inspect
