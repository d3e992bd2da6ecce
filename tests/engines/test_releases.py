"""Runs `tests/engines/vllm` in every installed release of vLLM, with the interpreter and the packages of its own environment.

They are no part of what `pytest` selects by itself: `settled engines install vllm==X ...`, then `pytest -m engines`. Where no release is
installed this fails: a test that did not run has not passed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from settled.reference.engines.environments.installed import Installed, installed_releases
from settled.reference.engines.environments.launching import launching

ROOT = Path(__file__).parents[2]
ARGUMENTS = ["-m", "pytest", "-q", "-rfE", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "tests/engines/vllm"]
SECONDS_MAX = 1200


@pytest.mark.engines
@pytest.mark.parametrize("release", installed_releases("vllm") or [None], ids=str)
def test_vllm(release: Installed | None) -> None:
    if release is None:
        pytest.fail("no release of vLLM is installed: settled engines install vllm==0.25.1 vllm")
    with launching(release) as launch:
        done = subprocess.run(
            [*launch.python, *ARGUMENTS],
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
