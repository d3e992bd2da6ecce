"""Runs the tests of each engine in every installed release of it, with the interpreter and the packages of its own environment.

They are no part of what `pytest` selects by itself: `settled engines install vllm==X tokenspeed ...`, then `pytest -m engines`. Where no
release of an engine is installed this fails: a test that did not run has not passed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from settled.reference.engines.environments.installed import Installed, installed_releases
from settled.reference.engines.environments.launching import launching
from settled.reference.engines.environments.recipes import RECIPES

ROOT = Path(__file__).parents[2]
ARGUMENTS = ["-m", "pytest", "-q", "-rfE", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider"]
SECONDS_MAX = 1200


ENGINES = tuple(recipe.engine for recipe in RECIPES)


@pytest.mark.engines
@pytest.mark.parametrize("release", [each for engine in ENGINES for each in installed_releases(engine) or [engine]], ids=str)
def test_engine(release: Installed | str) -> None:
    if isinstance(release, str):
        pytest.fail(f"no release of {release} is installed: settled engines install {release}")
    with launching(release) as launch:
        done = subprocess.run(
            [*launch.python, *ARGUMENTS, f"tests/engines/{release.engine}"],
            cwd=ROOT,
            env=dict(launch.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, f"{release}, exit code {done.returncode}:\n{done.stdout[-6000:]}"
    assert re.search(r"\b[1-9]\d* passed", done.stdout), done.stdout
