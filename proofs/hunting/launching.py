"""Starts a hunt where its engine is: the reference here, real engines in the interpreter that has them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from settled.proofs.hunting.campaign import Hunt, Plan, Progress, Told
from settled.proofs.hunting.client import RemoteHunt
from settled.proofs.hunting.engines import REFERENCE, factory_of, parse_engine


def hunt_of(plan: Plan, tell: Callable[[Told], None], tick: Callable[[Progress], None]) -> Hunt | RemoteHunt:
    """Raises EngineError."""
    engine = parse_engine(plan.engine)
    if engine.name == REFERENCE:
        return Hunt(factory_of(engine), plan, tell, tick)
    return RemoteHunt([sys.executable], os.environ, plan, tell, tick)
