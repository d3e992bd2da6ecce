"""What is installed: environments and releases, as the folders that lie there."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from settled.reference.engines.environments.home import engines_folder
from settled.reference.engines.environments.recipes import RECIPES, Recipe, RequestError, Source, recipe_named

RELEASE_FILE = "release.json"


class Installed(NamedTuple):
    """A release that can be run. `python` is the interpreter of its environment, `source` the file that it was made from."""

    engine: str
    version: str
    folder: Path
    python: Path
    source: str

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"


class NotInstalledError(RequestError):
    """A release that is not installed; the hint says how to install it."""


def python_tag() -> str:
    """The Python that environments are made of: the running one."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def environment_folder(recipe: Recipe) -> Path:
    """The folder of an engine's environment for this Python and these requirements; it need not exist."""
    told = "\n".join(recipe.with_dependencies) + recipe.requirements.read_text(encoding="utf-8")
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    return engines_folder() / f"environment-{recipe.engine}-{python_tag()}-{digest}"


def environment_python(environment: Path) -> Path:
    """The interpreter in an environment's folder."""
    return environment / "bin" / "python"


def release_folder(recipe: Recipe, version: str) -> Path:
    """The folder of a release; it need not exist. What has compiled code is kept apart for each Python."""
    tag = "" if recipe.source is Source.PURE else f"-{python_tag()}"
    return engines_folder() / f"release-{recipe.engine}-{version}{tag}"


def installed_releases(engine: str | None = None) -> list[Installed]:
    """All that are whole and have an environment for this Python, oldest version first."""
    return sorted(_releases(engine), key=lambda each: (each.engine, version_key(each.version)))


def installed_release(engine: str, version: str) -> Installed:
    """Raises NotInstalledError, RequestError."""
    recipe = recipe_named(engine)
    found = {each.version: each for each in installed_releases(recipe.engine)}
    if version not in found:
        here = f"installed: {', '.join(found)}" if found else "no release of it is installed"
        hint = f"settled engines install {recipe.project}=={version}"
        raise NotInstalledError(f"{recipe.project} {version} is not installed ({here})", hint)
    return found[version]


def version_key(version: str) -> tuple[int, ...]:
    """By which versions are ordered."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version))


def _told_in(file: Path) -> dict[str, str]:
    try:
        told: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
        return {name: told[name] for name in ("version", "source")}
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{file}: damaged ({error})", f"remove {file.parent} and install the release anew") from error


def _releases(engine: str | None) -> Iterator[Installed]:
    for recipe in RECIPES:
        python = environment_python(environment_folder(recipe))
        if engine in (None, recipe.engine) and python.exists():
            for file in engines_folder().glob(f"release-{recipe.engine}-*/{RELEASE_FILE}"):
                told = _told_in(file)
                if file.parent == release_folder(recipe, told["version"]):
                    yield Installed(recipe.engine, told["version"], file.parent, python, told["source"])
