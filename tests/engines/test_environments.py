"""Environments and releases from a registry that is a folder: what is installed, what is not, and what an interrupt leaves."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from settled.proofs.cli.main import cli
from settled.reference.engines.environments import installing, recipes
from settled.reference.engines.environments.home import changing, engines_folder
from settled.reference.engines.environments.installed import NotInstalledError, environment_folder, installed_release, installed_releases
from settled.reference.engines.environments.installing import Installer
from settled.reference.engines.environments.launching import launching
from settled.reference.engines.environments.pip import InstallError, NoNetworkError, run_pip
from settled.reference.engines.environments.recipes import RequestError, parse_request

pytestmark = pytest.mark.slow  # a virtual environment takes seconds, and pip many
PROBE = "vllm/v1/core/sched/scheduler.py"
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"


def files_of(version: str) -> dict[str, str]:
    folders = ["vllm", "vllm/v1", "vllm/v1/core", "vllm/v1/core/sched"]
    return {**{f"{folder}/__init__.py": "" for folder in folders}, PROBE: f"RELEASE = {version!r}\n"}


def add_source(registry: Path, version: str, files: dict[str, str] | None = None) -> None:
    """A source distribution whose own set-up must never run."""
    everything = {
        **(files_of(version) if files is None else files),
        "PKG-INFO": METADATA.format(version=version),
        "vllm.egg-info/PKG-INFO": METADATA.format(version=version),
        "setup.py": "raise SystemExit('the set-up of the project was run')",
        "pyproject.toml": '[build-system]\nrequires = ["setuptools", "torch"]\nbuild-backend = "setuptools.build_meta"\n',
        "csrc/kernel.cu": "",
    }
    with tarfile.open(registry / f"vllm-{version}.tar.gz", "w:gz") as tar:
        for name, text in everything.items():
            member = tarfile.TarInfo(f"vllm-{version}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


def add_wheel(registry: Path, version: str) -> None:
    metadata = {
        "METADATA": METADATA.format(version=version),
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(registry / f"vllm-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files_of(version).items():
            wheel.writestr(name, text)
        wheel.writestr("vllm/_C.abi3.so", "compiled")
        for name, text in metadata.items():
            wheel.writestr(f"vllm-{version}.dist-info/{name}", text)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A home with an environment of no packages, and a registry; a virtual environment takes seconds, so there is one for all."""
    root = tmp_path_factory.mktemp("engines")
    registry = root / "registry"
    registry.mkdir()
    for version in ("0.9.0", "0.10.0"):
        add_source(registry, version)
    add_wheel(registry, "0.8.0")
    add_source(registry, "0.7.0", {**files_of("0.7.0"), PROBE: "import not_there\n"})
    nothing = root / "nothing.txt"
    nothing.write_text("# nothing\n", encoding="utf-8")
    vllm = recipes.RECIPES[0]._replace(with_dependencies=(), requirements=nothing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "RECIPES", (vllm,))
        patch.setattr("settled.reference.engines.environments.installed.RECIPES", (vllm,))
        patch.setenv("SETTLED_HOME", str(root / "home"))
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
            patch.delenv(name, raising=False)
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", registry.as_uri())
        yield root, registry


def settled(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["engines", *arguments])


@pytest.fixture(autouse=True)
def no_release_before(shared: tuple[Path, Path]) -> None:
    for release in installed_releases():
        installing.uninstall(release, lambda line: None)


def test_a_release_is_its_source_distribution_and_nothing_of_it_runs(shared: tuple[Path, Path]) -> None:
    assert settled("install", "vllm==0.9.0").exit_code == 0
    (release,) = installed_releases()
    assert (release.engine, release.version, release.source) == ("vllm", "0.9.0", "vllm-0.9.0.tar.gz")
    assert not (release.folder / "csrc").exists()
    with launching(release) as launch:
        code = "import settled.model, vllm.v1.core.sched.scheduler as s, importlib.metadata as m; print(s.RELEASE, m.version('vllm'))"
        done = subprocess.run([*launch.python, "-c", code], env=dict(launch.variables), capture_output=True, text=True, check=True)
    assert done.stdout == "0.9.0 0.9.0\n"


def test_newest_is_what_the_registry_has_now(shared: tuple[Path, Path]) -> None:
    lines: list[str] = []
    assert Installer(lines.append).install(parse_request("vllm")).version == "0.10.0"
    assert Installer(lines.append).install(parse_request("vllm==newest")).version == "0.10.0"
    assert "installed already" in lines[-1]
    assert [each.version for each in installed_releases()] == ["0.10.0"]


def test_a_wheel_serves_without_its_compiled_libraries(shared: tuple[Path, Path]) -> None:
    release = Installer(lambda line: None).install(parse_request("vllm==0.8.0"))
    assert release.source.endswith(".whl")
    assert not list(release.folder.rglob("*.so"))


def test_a_release_that_cannot_be_imported_is_not_installed(shared: tuple[Path, Path]) -> None:
    result = settled("install", "vllm==0.7.0")
    assert result.exit_code == 3
    assert "No module named 'not_there'" in result.output
    assert "vllm-0.7.0.log" in result.output
    assert not installed_releases()


def test_why_a_source_failed_is_told_where_there_is_no_wheel(
    shared: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_source(tmp_path, "0.9.0", {"other/__init__.py": ""})
    monkeypatch.setenv("PIP_FIND_LINKS", tmp_path.as_uri())
    result = settled("install", "vllm==0.9.0")
    assert result.exit_code == 3
    assert "nothing of that name" not in result.output
    assert "vllm-0.9.0.tar.gz" in result.output


def test_an_unknown_version_is_told_with_its_neighbours(shared: tuple[Path, Path]) -> None:
    result = settled("install", "vllm==0.9.5")
    assert result.exit_code == 2
    assert "no such version" in result.output
    assert "0.8.0" in result.output
    assert "0.10.0" in result.output


def test_nothing_is_brought_for_a_version_that_does_not_exist(
    shared: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETTLED_HOME", str(tmp_path / "home"))
    assert settled("install", "vllm==0.9.5").exit_code == 2
    assert {each.name for each in engines_folder().iterdir()} == {"lock", "logs"}


@pytest.mark.parametrize("text", ["nothing", "vllm==", "vllm>=1", "vllm==../x", ""])
def test_what_names_no_release_is_refused_before_anything_is_done(shared: tuple[Path, Path], text: str) -> None:
    with pytest.raises(RequestError):
        parse_request(text)
    assert settled("install", text).exit_code == 2


def test_a_registry_out_of_reach_is_told_apart(shared: tuple[Path, Path], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'NewConnectionError: no route'\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(NoNetworkError, match="cannot be reached"):
        run_pip(python, [], tmp_path / "log", what="vllm==1")
    python.write_text("#!/bin/sh\nseq 1 40\nexit 1\n", encoding="utf-8")
    with pytest.raises(InstallError) as raised:
        run_pip(python, [], tmp_path / "log", what="vllm==1")
    assert str(raised.value).splitlines()[1:3] == ["  29", "  30"]


def test_an_interrupt_leaves_nothing_that_counts(shared: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(installing, "_probe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Installer(lambda line: None).install(parse_request("vllm==0.9.0"))
    assert not installed_releases()
    assert not list(engines_folder().glob("building-*"))


def test_what_a_killed_installation_left_is_removed_by_the_next(shared: tuple[Path, Path]) -> None:
    left = engines_folder() / "building-killed" / "release"
    left.mkdir(parents=True)
    assert not installed_releases()
    with changing(lambda: None):
        assert not left.exists()


def test_list_tells_what_can_be_imported(shared: tuple[Path, Path]) -> None:
    assert settled("list").exit_code == 3  # nothing is there
    release = Installer(lambda line: None).install(parse_request("vllm==0.9.0"))
    assert settled("list").exit_code == 0
    (release.folder / PROBE).write_text("import not_there\n", encoding="utf-8")
    result = settled("list", "--json")
    told = json.loads(result.output)
    assert result.exit_code == told["exit_code"] == 3
    assert told["releases"][0]["imports"] is False
    assert "not_there" in told["releases"][0]["fault"]


def test_removed_releases_are_gone_and_their_environment_stays(shared: tuple[Path, Path]) -> None:
    Installer(lambda line: None).install(parse_request("vllm==0.9.0"))
    assert settled("remove", "vllm==0.9.0").exit_code == 0
    assert environment_folder(recipes.RECIPES[0]).exists()
    with pytest.raises(NotInstalledError, match=r"vllm 0\.9\.0 is not installed") as raised:
        installed_release("vllm", "0.9.0")
    assert raised.value.hint == "settled engines install vllm==0.9.0"
    assert settled("remove", "vllm==0.9.0").exit_code == 2
    assert settled("remove").exit_code == 2


# ---- hunt --releases ---------------------------------------------------------------------------------------------------


def hunt(releases: str, *options: str) -> Result:
    return CliRunner().invoke(cli, ["hunt", "vllm", "--releases", releases, "--workloads", "1", *options])


def test_a_hunt_in_releases_that_are_not_installed_says_how_to_get_them(shared: tuple[Path, Path]) -> None:
    nothing = hunt("newest")
    assert nothing.exit_code == 2
    assert "no release of vllm is installed\n  hint: settled engines install vllm; or give --install\n" in nothing.output
    Installer(lambda line: None).install(parse_request("vllm==0.9.0"))
    other = hunt("0.9.0,0.10.0")
    assert other.exit_code == 2
    assert "vllm 0.10.0 is not installed (installed: 0.9.0)" in other.output


@pytest.mark.parametrize(("release", "code", "message"), [("0.9.5", 2, "no such version"), ("0.7.0", 3, "No module named 'not_there'")])
def test_a_hunt_ends_where_a_release_cannot_be_installed(shared: tuple[Path, Path], release: str, code: int, message: str) -> None:
    result = hunt(f"0.9.0,{release}", "--install")
    assert result.exit_code == code
    assert message in result.output
    assert "vllm 0.9.0: " in result.output  # what was done before is told


def test_a_download_that_fails_ends_a_hunt(shared: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    result = hunt("0.9.0", "--install")
    assert result.exit_code == 3
    assert "the package registry cannot be reached" in result.output
    assert not installed_releases()


def test_doctor_names_what_is_installed(shared: tuple[Path, Path]) -> None:
    assert "settled engines install vllm" in CliRunner().invoke(cli, ["doctor"]).output
    Installer(lambda line: None).install(parse_request("vllm==0.9.0"))
    assert "vllm 0.9.0" in CliRunner().invoke(cli, ["doctor"]).output
