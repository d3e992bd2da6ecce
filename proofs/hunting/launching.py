"""Starts a hunt where its engine is: the reference here, real engines in the interpreter that has them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from settled.proofs.hunting.campaign import Hunt, Plan, Progress, Told
from settled.proofs.hunting.client import RemoteHunt
from settled.proofs.hunting.engines import REFERENCE, EngineError, EngineName, factory_of, parse_engine
from settled.reference.engines.environments.installed import Installed, installed_releases
from settled.reference.engines.environments.launching import launching
from settled.reference.engines.environments.recipes import recipe_named


@contextmanager
def remote_hunt(plan: Plan, tell: Callable[[Told], None], tick: Callable[[Progress], None]) -> Iterator[RemoteHunt]:
    """The hunt in a process of its own, the reference's too. Raises EngineError, also where the release is not installed."""
    engine = parse_engine(plan.engine)
    release = None if engine.name == REFERENCE else _installed(engine)
    if release is None:
        yield RemoteHunt([sys.executable], os.environ, plan, tell, tick)
        return
    named = replace(plan, engine=str(EngineName(engine.name, release.version)))
    with launching(release) as launch:
        yield RemoteHunt(launch.python, launch.variables, named, tell, tick)


@contextmanager
def hunt_of(plan: Plan, tell: Callable[[Told], None], tick: Callable[[Progress], None]) -> Iterator[Hunt | RemoteHunt]:
    """The hunt, to be run while the context lasts. Raises EngineError, also where the release is not installed.

    A release that is not named is the newest of those that `settled engines` has installed, or else the one in this interpreter.
    """
    engine = parse_engine(plan.engine)
    if engine.name == REFERENCE:
        yield Hunt(factory_of(engine), plan, tell, tick)
        return
    with remote_hunt(plan, tell, tick) as hunt:
        yield hunt


def _installed(engine: EngineName) -> Installed | None:
    """The release to hunt in; None: what this interpreter has."""
    found = [each for each in installed_releases(engine.name) if engine.release in ("", each.version)]
    if found:
        return found[-1]
    if importlib.util.find_spec(recipe_named(engine.name).package) is None:
        here = ", ".join(each.version for each in installed_releases(engine.name))
        instead = f"; here are {here}" if here else ""
        raise EngineError(f"{engine} is not installed{instead}", f"settled engines install {engine}")
    return None
