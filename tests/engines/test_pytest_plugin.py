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


SERVED_BEFORE = """
from vllm import LLM, SamplingParams

SAMPLING = SamplingParams(max_tokens=20, ignore_eos=True, detokenize=False)

def test_an_engine_that_served(settled, no_device):
    llm = LLM(**no_device, async_scheduling=True)
    engine = llm.llm_engine
    llm.generate({"prompt_token_ids": [7] * 60}, SAMPLING, use_tqdm=False)
    engine.add_request("gone", {"prompt_token_ids": [7] * 60}, SAMPLING)
    for _ in range(4):
        engine.step()
    engine.abort_request(["gone"])
    assert engine.engine_core.engine_core.batch_queue
    settled.attach(llm)
    llm.generate({"prompt_token_ids": [7] * 60}, SAMPLING, use_tqdm=False)
    engine.engine_core.shutdown()
"""


@pytest.mark.engines
def test_an_engine_that_served_is_watched_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left unprocessed is processed first; the executor of docs/pytest answers steps without tokens, and shuts down."""
    release = max(installed_releases("vllm"), key=lambda each: _numbers(each.version))
    monkeypatch.chdir(tmp_path)
    Path("conftest.py").write_text((DOCS / "pytest" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    Path("test_served.py").write_text(SERVED_BEFORE, encoding="utf-8")
    Path("pytest.ini").write_text("[pytest]\nfilterwarnings = error::pytest.PytestUnraisableExceptionWarning\n", encoding="utf-8")
    printed, code = _pytest(release, tmp_path)
    assert code == 0, printed
    assert "settled: 1 watched: 1 holds" in printed


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


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
