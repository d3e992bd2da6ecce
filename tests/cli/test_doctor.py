"""`settled doctor` starts where other things are missing or damaged, and says which."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from settled.model.search import solver
from settled.proofs.cli.main import cli
from settled.proofs.report import diagnosis

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def doctor_without(modules: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs it in a fresh process in which these modules cannot be imported."""
    code = f"import sys; sys.modules.update(dict.fromkeys({list(modules)!r})); sys.argv = ['settled', 'doctor']"
    start = "from settled.proofs.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", f"{code}; {start}"], capture_output=True, text=True, check=False)


def test_doctor_names_every_dependency() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    everything = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 0
    assert all(requirement.partition(">")[0] in result.output for requirement in everything)
    assert "z3 decides a query" in result.output


def test_a_missing_terminal_library_costs_only_the_table() -> None:
    result = doctor_without(["rich", "rich.table", "rich.text", "rich.console", "msgspec"])
    assert result.returncode == 0
    assert "z3 decides a query: yes" in result.stdout
    assert "┏" not in result.stdout


def test_a_damaged_solver_is_found() -> None:
    result = doctor_without(["z3"])
    assert result.returncode == 3
    assert "damaged: ModuleNotFoundError" in result.stdout


def test_a_solver_that_answers_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver.Z3, "check", lambda self, formulas: solver.Answer(solver.Status.SAT, 0.0))
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 3
    assert "no: sat and sat instead of sat and unsat" in result.output


def test_a_package_that_is_missing_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "installed", lambda package: None if package in ("msgspec", "mypy", "cvc5") else "1.0")
    found = {finding.name: finding for finding in diagnosis.diagnose()}
    assert (found["msgspec"].state, found["msgspec"].hint) == ("missing", "pip install settled")
    assert found["mypy"].hint == "pip install 'settled[test]'"
    assert (found["cvc5 decides a query"].state, found["cvc5 decides a query"].hint) == ("unknown", "needs cvc5")
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 3  # msgspec is required


def test_a_damaged_torch_does_not_end_the_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaged(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise OSError("libcudart.so: cannot open shared object file\nmore")

    monkeypatch.setitem(sys.modules, "torch", Damaged("torch"))
    monkeypatch.setattr(diagnosis, "installed", lambda package: "1.0")
    device = list(diagnosis.diagnose())[-1]
    assert device.state == "damaged torch: OSError: libcudart.so: cannot open shared object file"
    assert not device.is_required
