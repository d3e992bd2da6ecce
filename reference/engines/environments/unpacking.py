"""The Python files of a release, taken from its source distribution or its wheel as they are.

For every release from 0.13.0 to 0.33.0 that was compared, the `vllm` folder of the source distribution equals the one that vLLM's own
build without a device makes of it, file for file, but for a commit id in `_version.py`.
"""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from settled.reference.engines.environments.pip import InstallError

_COMPILED = (".so", ".pyd", ".dylib")


def unpack_source(archive: Path, package: str, target: Path) -> None:
    """The package's folder and its metadata out of a source distribution. Raises InstallError."""
    wanted = (f"{package}/", f"{package}.egg-info/")
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                member.name = member.name.partition("/")[2]
                if member.name.startswith(wanted):
                    tar.extract(member, target, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise InstallError(f"{archive.name} is damaged: {error}") from error
    _check(archive, package, target)


def unpack_wheel(archive: Path, package: str, target: Path) -> None:
    """Everything in a wheel but compiled libraries. Raises InstallError."""
    try:
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target, [name for name in wheel.namelist() if not name.endswith(_COMPILED)])
    except zipfile.BadZipFile as error:
        raise InstallError(f"{archive.name} is damaged: {error}") from error
    _check(archive, package, target)


def _check(archive: Path, package: str, target: Path) -> None:
    if not (target / package / "__init__.py").is_file():
        raise InstallError(f"{archive.name} has no package {package}")
