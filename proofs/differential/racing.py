"""The races of a log, told apart by what they do: without torch, for whoever needs no buffers."""

from __future__ import annotations

from settled.model.properties import Contract
from settled.reference.device.detector import races
from settled.reference.device.ops import OpLog
from settled.reference.device.race import Race


def found_races(log: OpLog, contract: Contract) -> tuple[list[Race], list[Race]]:
    """(Frees that come too early, accesses that race): the second do harm, the first may."""
    every = races(log, contract)
    return [race for race in every if race.second.kind is None], [race for race in every if race.second.kind is not None]
