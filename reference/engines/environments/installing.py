"""Installs environments and releases: aside first, in place in one step, so that what is half done never counts."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from settled.reference.engines.environments.home import aside, changing, remove
from settled.reference.engines.environments.installed import (
    RELEASE_FILE,
    Installed,
    environment_folder,
    environment_python,
    installed_releases,
    release_folder,
)
from settled.reference.engines.environments.launching import variables_for
from settled.reference.engines.environments.pip import (
    InstallError,
    NoNetworkError,
    UnknownProjectError,
    UnknownVersionError,
    run_logged,
    run_pip,
)
from settled.reference.engines.environments.recipes import Recipe, Request, Source
from settled.reference.engines.environments.unpacking import unpack_source, unpack_wheel

_BACKEND = Path(__file__).parent / "backend"
Say = Callable[[str], None]


class Installer:
    """Installs one release after the other; `say` gets a line for each thing done. Ctrl-C leaves nothing behind that counts."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def install(self, request: Request) -> Installed:
        """The release, installed now or before. Raises InstallError, OSError."""
        done = _find(request.recipe, request.version)
        if done is not None:
            self.say(f"{request} is installed already")
            return done
        with changing(lambda: self.say("waiting for another installation to end")) as folder:
            return _find(request.recipe, request.version) or self._release(request, folder)

    # ---- environments ------------------------------------------------------------------------------------------------

    def _environment(self, recipe: Recipe, folder: Path) -> Path:
        """Its interpreter. The environment is made if it is not there."""
        target = environment_folder(recipe)
        if not target.exists():
            began, log = time.monotonic(), _fresh_log(folder, target.name)
            first = " ".join(recipe.with_dependencies)
            self.say(f"environment for {recipe.project}: {first + ' and ' if first else ''}what else a scheduler imports ...")
            with aside(folder) as building:
                made = building / "environment"
                run_logged([sys.executable, "-m", "venv", str(made)], log, what="a virtual environment")
                python = environment_python(made)
                if recipe.with_dependencies:
                    run_pip(python, ["install", "--no-compile", *recipe.with_dependencies], log, what=first)
                pinned = ["install", "--no-compile", "--no-deps", "-r", str(recipe.requirements)]
                run_pip(python, pinned, log, what=f"the packages of {recipe.requirements.name}")
                made.rename(target)
            self.say(f"environment for {recipe.project}: {time.monotonic() - began:.0f} s")
        return environment_python(target)

    # ---- releases ----------------------------------------------------------------------------------------------------

    def _release(self, request: Request, folder: Path) -> Installed:
        """Fetched before there is an environment: that a release does not exist is told before a gigabyte is brought for it."""
        recipe, began = request.recipe, time.monotonic()
        log = _fresh_log(folder, f"{recipe.project}-{request.version or 'newest'}")
        self.say(f"{request} ...")
        with aside(folder) as building:
            made = building / "release"
            archive = _obtain(request, _python_with_pip(recipe, building, log), log, made)
            fetched = time.monotonic()
            python = self._environment(recipe, folder)
            began += time.monotonic() - fetched
            version = _version_of(archive)
            target = release_folder(recipe, version)
            if target.exists():  # the newest one, installed before under its number
                self.say(f"{recipe.project} {version} is the newest, and installed already")
                return Installed(recipe.engine, version, target, python, archive)
            _probe(made, recipe, version, python, log)
            told = {"project": recipe.project, "version": version, "source": archive}
            (made / RELEASE_FILE).write_text(json.dumps(told) + "\n", encoding="utf-8")
            made.rename(target)
        self.say(f"{recipe.project} {version}: {time.monotonic() - began:.0f} s, from {archive}")
        return Installed(recipe.engine, version, target, python, archive)


def uninstall(release: Installed, say: Say) -> None:
    """Removes a release; its environment stays for others. Raises OSError."""
    with changing(lambda: say("waiting for another installation to end")):
        remove(release.folder)
    say(f"{release} removed")


def uninstall_all(say: Say) -> None:
    """Removes every release and every environment. Raises OSError."""
    with changing(lambda: say("waiting for another installation to end")) as folder:
        found = sorted(folder.glob("release-*")) + sorted(folder.glob("environment-*"))
        for each in found:
            remove(each)
            say(f"{each} removed")
    if not found:
        say(f"nothing is installed in {folder}")


def _python_with_pip(recipe: Recipe, building: Path, log: Path) -> Path:
    """That of the environment; where there is none yet, one that has pip and nothing else."""
    if environment_folder(recipe).exists():
        return environment_python(environment_folder(recipe))
    empty = building / "pip"
    run_logged([sys.executable, "-m", "venv", str(empty)], log, what="a virtual environment")
    return environment_python(empty)


def _find(recipe: Recipe, version: str | None) -> Installed | None:
    return next((each for each in installed_releases(recipe.engine) if each.version == version), None)


def _fresh_log(folder: Path, name: str) -> Path:
    log = folder / "logs" / f"{name}.log"
    log.unlink(missing_ok=True)
    return log


def _obtain(request: Request, python: Path, log: Path, made: Path) -> str:
    """Puts a release into the folder `made`; the name of the file that it was made from. Raises InstallError."""
    if request.recipe.source is Source.PURE:
        try:
            return _from_source(request, python, log, made)
        except NoNetworkError:
            raise
        except InstallError as error:
            shutil.rmtree(made, ignore_errors=True)
            return _from_wheel_after(error, request, python, log, made)
    return _from_wheel(request, python, log, made)


def _from_wheel_after(failed: InstallError, request: Request, python: Path, log: Path, made: Path) -> str:
    try:
        return _from_wheel(request, python, log, made)
    except UnknownVersionError as error:
        raise error.beside(failed) if isinstance(failed, UnknownVersionError) else failed from error
    except UnknownProjectError as error:
        raise failed from error  # there is no wheel: what the source failed with says more


def _from_source(request: Request, python: Path, log: Path, made: Path) -> str:
    options = ["--no-build-isolation", "--no-binary", request.recipe.project]
    archive = _download(request, options, python, log, made, {"PYTHONPATH": str(_BACKEND)})
    unpack_source(archive, request.recipe.package, made)
    return archive.name


def _from_wheel(request: Request, python: Path, log: Path, made: Path) -> str:
    recipe = request.recipe
    archive = _download(request, ["--only-binary", recipe.project], python, log, made, {})
    if recipe.source is Source.WHEEL:
        run_pip(python, ["install", "--no-deps", "--no-compile", "--target", str(made), str(archive)], log, what=archive.name)
    else:
        unpack_wheel(archive, recipe.package, made)
    return archive.name


def _download(request: Request, options: Sequence[str], python: Path, log: Path, made: Path, variables: Mapping[str, str]) -> Path:
    """The one file that pip brings for a request."""
    folder = made.with_name("downloads")
    shutil.rmtree(folder, ignore_errors=True)
    project = request.recipe.project
    asked = project if request.version is None else f"{project}=={request.version}"
    run_pip(python, ["download", "--no-deps", "-d", str(folder), *options, asked], log, what=str(request), variables=variables)
    return next(folder.iterdir())


def _version_of(archive: str) -> str:
    """By its file name: PROJECT-VERSION.tar.gz, or PROJECT-VERSION-TAGS.whl."""
    return archive.removesuffix(".tar.gz").split("-")[1]


def _probe(made: Path, recipe: Recipe, version: str, python: Path, log: Path) -> None:
    """Imports what a hunt needs; this also compiles it. Raises InstallError."""
    command = [str(python), "-c", f"import {recipe.probe}"]
    run_logged(command, log, what=f"{recipe.project} {version}: importing {recipe.probe}", variables=variables_for([made]))
