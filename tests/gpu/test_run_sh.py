"""`run.sh`: how a run ends when something is missing, fails, hangs or crashes. Script and summary are real, the phases a stand-in's."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from phases import PHASES

RUN = Path(__file__).parent / "run.sh"
STAND_IN = """#!{python}
import json, os, sys, time
script, arguments = sys.argv[1], sys.argv[2:]
ways = json.loads(os.environ["WAYS"])
if script.endswith("summary.py"):
    os.execv({python!r}, [{python!r}, script, *arguments])
if script.endswith("phases.py"):
    for name in {names!r}:
        print(name, 4)
    sys.exit(0)
if "--missing" in arguments:
    print(ways.get("missing", "nothing is missing"))
    sys.exit(ways.get("missing_code", 3 if "missing" in ways else 0))
name, out = arguments[0], arguments[arguments.index("--out") + 1]
way = ways.get(name, "passes")
told = dict(phase=name, is_dry="--dry-run" in arguments, checks=2, failed=0, failures=[], facts={{}}, line="a line")
told |= dict(is_over=False, passed=False, seconds=1.0)
if name == "figures" and not told["is_dry"]:
    told["facts"] = dict(figures={{"device copy": dict(gb_per_s=2.0, note="")}})
if way != "crashes":
    told |= dict(is_over=way != "hangs", passed=way == "passes")
    if way == "fails":
        told |= dict(failed=1, failures=["this is wrong"])
    open(out, "w").write(json.dumps(told))
if way == "hangs":
    time.sleep(60)
sys.exit({{"passes": 0, "lies": 0, "crashes": 139, "fails": 1}}[way])
"""


def run(tmp_path: Path, *arguments: str, **ways: object) -> subprocess.CompletedProcess[str]:
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(python=sys.executable, names=[phase.name for phase in PHASES]), encoding="utf-8")
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PYTHON": str(stand_in), "WAYS": json.dumps(ways)}
    command = ["bash", str(RUN), *arguments, str(tmp_path / "out")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_a_run_that_passes_says_so_and_leaves_json(tmp_path: Path) -> None:
    ran = run(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(PHASES)} of {len(PHASES)} phases passed" in ran.stdout.splitlines()[-1]
    assert "2.0 GB/s" in ran.stdout
    told = json.loads((tmp_path / "out" / "gpu.json").read_text(encoding="utf-8"))
    assert told["passed"]
    assert [phase["phase"] for phase in told["phases"]] == [phase.name for phase in PHASES]
    assert (tmp_path / "out" / "gpu.txt").read_text(encoding="utf-8") == ran.stdout


def test_without_a_device_nothing_has_passed_and_nothing_has_failed(tmp_path: Path) -> None:
    ran = run(tmp_path, missing="torch finds no CUDA device")
    assert ran.returncode == 0
    assert ran.stdout == "tests/gpu: nothing was run, all phases are skipped: torch finds no CUDA device\n"
    assert not (tmp_path / "out").exists()


def test_whoever_cannot_say_what_is_missing_has_failed(tmp_path: Path) -> None:
    ran = run(tmp_path, missing="Traceback", missing_code=1)
    assert ran.returncode == 1
    assert "could not say what is missing" in ran.stderr


@pytest.mark.parametrize(
    ("way", "word"),
    [("fails", "FAILED"), ("hangs", "KILLED after"), ("crashes", "CRASHED, exit code 139"), ("lies", "FAILED")],
)
def test_one_phase_that_does_not_pass_fails_the_run_and_the_others_go_on(tmp_path: Path, way: str, word: str) -> None:
    ran = run(tmp_path, torn_read=way)
    assert ran.returncode == 1
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("torn_read  ")]
    assert word in line
    assert ("torn_read: this is wrong" in ran.stdout) is (way == "fails")
    assert "failed: torn_read;" in ran.stdout.splitlines()[-1]
    assert f"{len(PHASES) - 1} of {len(PHASES)} phases passed" in ran.stdout


def test_what_a_phase_leaves_of_its_limit_the_later_ones_may_take(tmp_path: Path) -> None:
    """The fourth has four limits of 4 s, less what three phases took; a phase that was killed leaves nothing, and the next has its own."""
    ran = run(tmp_path, torn_read="hangs", flex_peer="hangs")
    killed = [int(line.split("KILLED after ")[1].split()[0]) for line in ran.stdout.splitlines() if "KILLED after" in line]
    assert len(killed) == 2
    assert 8 < killed[0] <= 16, ran.stdout
    assert killed[1] == 4
    assert f"{len(PHASES) - 2} of {len(PHASES)} phases passed" in ran.stdout


def test_a_dry_run_says_that_it_is_one(tmp_path: Path) -> None:
    ran = run(tmp_path, "--dry-run")
    assert ran.returncode == 0
    assert "nothing was measured" in ran.stdout
    assert "tests/gpu, dry run:" in ran.stdout
    assert "GB/s" not in ran.stdout
