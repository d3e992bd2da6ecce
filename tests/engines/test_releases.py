"""Runs `tests/engines/ENGINE` in every installed release of that engine, with the interpreter and the packages of its own environment.

They are no part of what `pytest` selects by itself: `settled engines install vllm==X ...`, then `pytest -m engines`; with `-rP` it shows
what each release ran and skipped. Where no release of an engine is installed this fails: a test that did not run has not passed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from settled.reference.engines.environments.installed import Installed, installed_releases
from settled.reference.engines.environments.launching import launching
from settled.reference.engines.environments.recipes import RECIPES

HERE = Path(__file__).parent
OPTIONS = ["-q", "-rfEs", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider"]
QUIET = ["-o", "filterwarnings=default", "--disable-warnings"]  # what an engine warns of is its own
SECONDS_MAX = 1200
ENGINES = [recipe.engine for recipe in RECIPES]


@pytest.mark.engines
@pytest.mark.parametrize("release", [each for engine in ENGINES for each in installed_releases(engine) or [engine]], ids=str)
def test_release(release: Installed | str) -> None:
    if isinstance(release, str):
        pytest.fail(f"no release of {release} is installed: settled engines install {release}")
    with launching(release) as launch:
        done = subprocess.run(
            [*launch.python, "-m", "pytest", *OPTIONS, *QUIET, str(HERE / release.engine)],
            cwd=HERE.parents[1],
            env=dict(launch.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,  # apart: what an engine warns of at its end would hide pytest's summary
            text=True,
            errors="replace",
            timeout=SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, f"{release}, exit code {done.returncode}:\n{done.stderr[-1000:]}\n{done.stdout[-6000:]}"
    (passed,) = re.findall(r"^[1-9]\d* passed.*$", done.stdout, re.MULTILINE)
    print(f"{release}: {passed}", *re.findall(r"^SKIPPED .*$", done.stdout, re.MULTILINE), sep="\n")
