"""The wheel holds the three packages under their import names, all of what git tracks there, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("model", "reference", "proofs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """Built from the checkout by the back end itself: no network, no environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return ZipFile(path)


def packaged(wheel: ZipFile) -> set[str]:
    """Everything but the metadata."""
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_exactly_what_git_tracks(wheel: ZipFile) -> None:
    """A file that is new counts once `git add` was told about it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to compare the wheel with")
    listed = subprocess.run(["git", "ls-files", "-z", "--", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {f"settled/{name}" for name in listed.split("\0") if name}
    assert tracked
    assert packaged(wheel) - corpus(wheel) == tracked


def corpus(wheel: ZipFile) -> set[str]:
    """The public bugs, which lie in the tests and travel with the command that runs them."""
    return {name for name in packaged(wheel) if name.startswith("settled/proofs/data/bugs/")}


def test_the_corpus_travels_with_its_command(wheel: ZipFile, tmp_path: Path) -> None:
    """Each file, byte for byte, and the command finds them where a wheel is unpacked."""
    bugs = ROOT / "tests" / "data" / "bugs"
    assert corpus(wheel) == {f"settled/proofs/data/bugs/{path.name}" for path in bugs.iterdir()}
    for name in corpus(wheel):
        assert wheel.read(name) == (bugs / Path(name).name).read_bytes()
    wheel.extractall(tmp_path)
    code = "from settled.proofs.corpus.loading import folder, load; print(folder()); print(len(load(folder()).cases))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert told.stdout.splitlines() == [str(tmp_path / "settled" / "proofs" / "data" / "bugs"), "147"], told.stderr


def test_every_package_is_there_and_typed(wheel: ZipFile) -> None:
    names = packaged(wheel)
    for package in PACKAGES:
        assert {f"settled/{package}/__init__.py", f"settled/{package}/py.typed"} <= names


def test_nothing_lies_outside_the_three_packages(wheel: ZipFile) -> None:
    """No tests, no top-level `model`; `settled` itself is a namespace without an `__init__.py`."""
    assert {tuple(name.split("/")[:2]) for name in packaged(wheel)} == {("settled", package) for package in PACKAGES}
    assert not [name for name in wheel.namelist() if re.search(r"(^|/)tests?(/|_)|conftest|\.pyc$", name)]


def entry_points(wheel: ZipFile) -> ConfigParser:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    parser = ConfigParser()
    parser.read_string(wheel.read(name).decode())
    return parser


def test_the_command_is_called_settled(wheel: ZipFile) -> None:
    assert dict(entry_points(wheel)["console_scripts"]) == {"settled": "settled.proofs.cli.main:main"}
    assert "settled/proofs/cli/main.py" in wheel.namelist()


def test_vllm_finds_its_plugin(wheel: ZipFile, tmp_path: Path) -> None:
    """As vLLM asks for it; and where no trace is asked for, nothing but the plugin's own file is imported."""
    assert dict(entry_points(wheel)["vllm.general_plugins"]) == {"settled": "settled.proofs.vllm_plugin:register"}
    wheel.extractall(tmp_path)
    code = """
import sys
from importlib.metadata import entry_points
before = set(sys.modules)
(plugin,) = entry_points(group="vllm.general_plugins")
plugin.load()()
print(*sorted(name for name in set(sys.modules) - before if "settled" in name))
"""
    environment = {name: value for name, value in os.environ.items() if name != "SETTLED_TRACE"} | {"PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert told.stdout.split() == ["settled", "settled.proofs", "settled.proofs.vllm_plugin"], told.stderr


def test_pytest_finds_its_plugin(wheel: ZipFile, tmp_path: Path) -> None:
    """As pytest asks for it, at every start: nothing but the plugin's own file is imported, also when it has been configured."""
    assert dict(entry_points(wheel)["pytest11"]) == {"settled": "settled.proofs.pytest_plugin"}
    wheel.extractall(tmp_path)
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass")
    code = """
import sys
import pytest
code = pytest.main(["-q", "-p", "no:cacheprovider", "test_plain.py"])
assert code == 0
print(*sorted(name for name in sys.modules if "settled" in name or name in ("msgspec", "rich", "click", "z3", "networkx")))
"""
    drop = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_XDIST_WORKER")
    environment = {name: value for name, value in os.environ.items() if name not in drop} | {"PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert told.stdout.splitlines()[-1].split() == ["settled", "settled.proofs", "settled.proofs.pytest_plugin"], told.stdout + told.stderr


def test_workers_of_an_installed_wheel_find_settled(wheel: ZipFile, tmp_path: Path) -> None:
    """With the data that installing and scripts need, and through the links that an engine's interpreter is given."""
    wheel.extractall(tmp_path / "wheel")
    (tmp_path / "links").mkdir()
    code = f"""
from importlib.resources import files
from pathlib import Path
from settled.reference.engines.environments.launching import link_settled
from settled.reference.engines.environments.recipes import RECIPES
assert all(recipe.requirements.is_file() for recipe in RECIPES)
assert files("settled.proofs.hunting").joinpath("reproducer.template").is_file()
link_settled(Path({str(tmp_path / "links")!r}))
"""
    for folder, told in (("wheel", code), ("links", "import settled.proofs.hunting.worker as worker; print(worker.__file__)")):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / folder)}
        done = subprocess.run([sys.executable, "-c", told], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "links" / "settled" / "proofs" / "hunting" / "worker.py")


def test_the_licence_travels_with_it(wheel: ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()
