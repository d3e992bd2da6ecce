"""The ten lines of docs/pytest, run with pytest in every installed release of vLLM: they fail where the fault is, and only there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import rich
from click.testing import CliRunner

from settled.proofs.cli.main import cli
from settled.reference.engines.environments.installed import Installed, installed_releases
from settled.reference.engines.environments.launching import launching

EXAMPLE = Path(__file__).parents[2] / "docs" / "pytest"
OPTIONS = ["-q", "-p", "settled.proofs.pytest_plugin", "-p", "no:cacheprovider", "--disable-warnings", "--rootdir", "."]
MENDED = (0, 26)
SECONDS_MAX = 300


@pytest.mark.engines
@pytest.mark.parametrize("release", installed_releases("vllm") or ["vllm"], ids=str)
def test_the_example(release: Installed | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(release, str):
        pytest.fail("no release of vllm is installed: settled engines install vllm")
    monkeypatch.chdir(tmp_path)
    for path in EXAMPLE.glob("*.py"):
        Path(path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    Path("pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    printed, code = _pytest(release, tmp_path)
    if tuple(map(int, release.version.split(".")[:2])) >= MENDED:
        assert code == 0, printed
        assert "settled: 1 watched: 1 holds" in printed
        assert not Path("settled-traces").exists()
        return
    assert code == 1, printed
    assert "Failed: settled: rollback_resident is violated under stream_order (released_before_schedule[window])" in printed
    assert "step 2 needs" in printed
    (trace,) = re.findall(r"^E +trace: (\S+)$", printed, re.MULTILINE)
    assert CliRunner().invoke(cli, ["check", trace]).exit_code == 1


def _pytest(release: Installed, folder: Path) -> tuple[str, int]:
    """The environment of a release has no rich, which an installed settled brings along: it is lent."""
    lent = folder / "lent"
    lent.mkdir()
    (lent / "rich").symlink_to(Path(rich.__file__).parent, target_is_directory=True)
    with launching(release, before=[lent]) as launch:
        done = subprocess.run(
            [*launch.python, "-m", "pytest", *OPTIONS],
            cwd=folder,
            env=dict(launch.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    return done.stdout, done.returncode
