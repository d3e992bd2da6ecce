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
from situations import prepare

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


@pytest.mark.slow
def test_a_missing_terminal_library_costs_only_the_table() -> None:
    result = doctor_without(["rich", "rich.table", "rich.text", "rich.console", "msgspec"])
    assert result.returncode == 0
    assert "z3 decides a query: yes" in result.stdout
    assert "┏" not in result.stdout


@pytest.mark.slow
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


def test_a_compiler_is_looked_for_as_triton_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    none = _compiler()
    assert (none.state, none.hint, none.is_required) == ("missing", "install gcc or clang, or name one by CC", False)
    (tmp_path / "clang").touch(0o755)
    assert (_compiler().state, _compiler().hint) == ("clang", "")
    monkeypatch.setenv("CC", "gcc-15")
    assert _compiler().state == "missing"


def _compiler() -> diagnosis.Finding:
    return next(finding for finding in diagnosis.diagnose() if finding.name == "C compiler")


def test_engines_that_cannot_be_read_do_not_end_the_diagnosis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SETTLED_HOME", str(tmp_path))
    prepare(tmp_path)
    (tmp_path / "engines-here" / "engines").rename(tmp_path / "engines")
    monkeypatch.setattr(diagnosis, "installed", lambda package: None)
    assert _engines().state == "vllm 0.10.0, vllm 0.25.1, vllm 0.26.0"
    release = tmp_path / "engines" / "release-vllm-0.25.1"
    (release / "release.json").write_text("{", encoding="utf-8")
    assert _engines().state.startswith(f"unreadable: {release}/release.json: damaged (")
    assert _engines().hint == f"remove {release} and install the release anew"
    listed = CliRunner().invoke(cli, ["engines", "list"])
    assert listed.exit_code == 2
    assert listed.stderr.startswith(f"settled engines list: {release}/release.json: damaged (")


def _engines() -> diagnosis.Finding:
    return next(finding for finding in diagnosis.diagnose() if finding.name == "engines")


def test_a_damaged_torch_does_not_end_the_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaged(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise OSError("libcudart.so: cannot open shared object file\nmore")

    monkeypatch.setitem(sys.modules, "torch", Damaged("torch"))
    monkeypatch.setattr(diagnosis, "installed", lambda package: "1.0")
    device = list(diagnosis.diagnose())[-1]
    assert device.state == "damaged torch: OSError: libcudart.so: cannot open shared object file"
    assert not device.is_required
