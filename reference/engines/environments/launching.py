"""How a process of an engine is started: its Python, its release, and the settled that is running here."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from settled.reference.engines.environments.installed import Installed

_OURS = ("model", "reference", "proofs")
_QUIET = {
    "PYTHONHASHSEED": "0",  # hashes of the prefix cache: the same in every run
    "PYTHONSAFEPATH": "1",  # what lies in the current folder is nobody's package
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # a scheduler computes nothing; releases run beside each other
}

_DROPPED = ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONDONTWRITEBYTECODE")  # the last: an import takes 20 s where nothing is compiled


class Launch(NamedTuple):
    """`python`: the interpreter's command, to which arguments are added; `variables`: its whole environment."""

    python: Sequence[str]
    variables: Mapping[str, str]


@contextmanager
def launching(installed: Installed, *, before: Sequence[Path] = ()) -> Iterator[Launch]:
    """How to run Python code with this release and the running settled, however that one is installed; as long as the context lasts.

    `before` are folders that come first among those in which modules are looked up.
    """
    with tempfile.TemporaryDirectory(prefix="settled-") as scratch:
        link_settled(Path(scratch))
        folders = [*before, Path(scratch), installed.folder]
        yield Launch([str(installed.python)], variables_for(folders))


def variables_for(folders: Sequence[Path]) -> dict[str, str]:
    """The environment of a process that finds its modules in these folders first. It has no way out to a hub."""
    ours = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    return {**ours, **_QUIET, "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders)}


def link_settled(folder: Path) -> None:
    """Links `settled/model` and so on to the packages that are running, and to nothing that was installed beside them."""
    (folder / "settled").mkdir()
    for name in _OURS:
        spec = importlib.util.find_spec(f"settled.{name}")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        (folder / "settled" / name).symlink_to(Path(next(iter(spec.submodule_search_locations))).resolve(), target_is_directory=True)
