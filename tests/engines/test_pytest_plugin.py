"""The ten lines of docs/pytest, run with pytest in every installed release of vLLM: they print what docs/pytest.md shows."""

from __future__ import annotations

import doctest
import re
import subprocess
from pathlib import Path

import pytest
import rich
from click.testing import CliRunner

from settled.proofs.cli.main import cli
from settled.reference.engines.environments.installed import Installed, installed_releases
from settled.reference.engines.environments.launching import launching

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = re.findall(r"^```console\n\$ pytest -q --tb=short\n(.*?)^```", (DOCS / "pytest.md").read_text(encoding="utf-8"), re.M | re.S)
OPTIONS = ["-q", "--tb=short", "-p", "settled.proofs.pytest_plugin", "-p", "no:cacheprovider", "--disable-warnings", "--rootdir", "."]
MENDED = (0, 26)
PRINTED_OTHERWISE = ("CI", "BUILD_NUMBER", "COLUMNS", "LINES")  # pytest and pictures heed these; xdist's workers have the last two
SECONDS_MAX = 300


@pytest.mark.engines
@pytest.mark.parametrize("release", installed_releases("vllm") or ["vllm"], ids=str)
def test_the_example(release: Installed | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(release, str):
        pytest.fail("no release of vllm is installed: settled engines install vllm")
    monkeypatch.chdir(tmp_path)
    for path in (DOCS / "pytest").glob("*.py"):
        Path(path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    Path("pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    printed, code = _pytest(release, tmp_path)
    is_mended = tuple(map(int, release.version.split(".")[:2])) >= MENDED
    shown = SHOWN[1] if is_mended else SHOWN[0].replace("vllm 0.25.1", f"vllm {release.version}")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(shown, printed, flags), f"{printed}\n\n{shown}"
    assert code == (0 if is_mended else 1)
    assert Path("settled-traces").exists() != is_mended
    if is_mended:
        return
    (trace,) = re.findall(r"^E +trace: (\S+)$", printed, re.MULTILINE)
    assert CliRunner().invoke(cli, ["check", trace]).exit_code == 1
    assert Path(trace).with_suffix(".html").is_file()


def _pytest(release: Installed, folder: Path) -> tuple[str, int]:
    """The environment of a release has no rich, which an installed settled brings along: it is lent."""
    lent = folder / "lent"
    lent.mkdir()
    (lent / "rich").symlink_to(Path(rich.__file__).parent, target_is_directory=True)
    with launching(release, before=[lent]) as launch:
        done = subprocess.run(
            [*launch.python, "-m", "pytest", *OPTIONS],
            cwd=folder,
            env={name: value for name, value in launch.variables.items() if name not in PRINTED_OTHERWISE},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    return done.stdout, done.returncode
