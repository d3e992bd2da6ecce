"""Command lines whose transcripts are kept, and the folder in which they run: traces, wrong in one respect each, and stand-in releases."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from settled.proofs.cli.main import COMMANDS
from settled.reference.engines.environments import installed
from settled.reference.engines.environments.recipes import recipe_named

TRACES = Path(__file__).parents[1] / "data" / "traces"
HOLDS, VIOLATED = "v0.26.0-min-spec-reject.ndjson", "v0.24.0-min-spec-reject.ndjson"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command line, typed in the folder that `prepare` fills.

    `before`: Python that runs in the command's own process first. `is_alone`: it gets a process of its own in any case, as it needs a
    shell, or prints what a solver finds, which may depend on what the solver was asked before. `home`: the folder of installed engines.
    `code`: how a mistake ends.
    """

    name: str
    about: str
    line: str
    before: str = ""
    is_alone: bool = False
    home: str = "no-engines"
    is_slow: bool = False
    code: int = 0


# ---- the folder ------------------------------------------------------------------------------------------------------


def _with(**values: object) -> Callable[[str], str]:
    """A trace with other values in its config."""

    def changed(text: str) -> str:
        first, _, rest = text.partition("\n")
        return f"{json.dumps({**json.loads(first), **values})}\n{rest}"

    return changed


def _group(**values: object) -> Callable[[str], str]:
    return _with(groups=[{"kind": "sliding_window", "block_size": 16, "window": 32, **values}])


# File → what it is made of a trace that holds.
_FILES: dict[str, Callable[[str], str]] = {
    "holds.ndjson": lambda text: text,
    "schema-2.ndjson": _with(schema=2),
    "truncated.ndjson": lambda text: text[: len(text) // 2],
    "unknown-kind.ndjson": _group(kind="sliding_windw"),
    "window-0.ndjson": _group(window=0),
    "block-size-0.ndjson": _group(block_size=0),
    "too-deep.ndjson": _with(max_in_flight_steps=1),
    "empty.ndjson": lambda _: "",
    "other-tool.json": lambda _: '[{"name": "step", "ph": "X", "ts": 0, "dur": 5}]\n',
    "other-schema.ndjson": lambda _: '{"event": "config", "version": 3, "blocks": 64}\n',
    "two-engines.ndjson": lambda text: text + text,
}

_NO_MODULE = "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')\n"
# Release → the package vllm in it.
_RELEASES = {
    "0.10.0": "",
    "0.25.1": _NO_MODULE,
    "0.26.0": "import os, sys; print('terminate called', file=sys.stderr, flush=True); os.abort()\n",
}


def prepare(folder: Path) -> None:
    """Fills an empty folder with all that the cases name."""
    text = (TRACES / HOLDS).read_text(encoding="utf-8")
    for name, change in _FILES.items():
        (folder / name).write_text(change(text), encoding="utf-8")
    (folder / "violated.ndjson").write_bytes((TRACES / VIOLATED).read_bytes())
    (folder / "unreadable.ndjson").write_text(text, encoding="utf-8")
    (folder / "unreadable.ndjson").chmod(0)
    (folder / "locked").mkdir(mode=0o555)
    (folder / "full-disk").mkdir()
    (folder / "full-disk" / "ceil-read_resident.ndjson").symlink_to("/dev/full")
    (folder / "cc").write_text("#!/bin/sh\n", encoding="utf-8")
    (folder / "cc").chmod(0o755)
    broken = folder / "broken"
    for package in ("torch", "cvc5"):
        (broken / package).mkdir(parents=True)
        (broken / package / "__init__.py").write_text(_NO_MODULE, encoding="utf-8")
    (folder / "holds.ndjson.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / "binary.ndjson").write_bytes(bytes(range(256)))
    (folder / "marked.ndjson").write_text(f"\ufeff{text}", encoding="utf-8")
    (folder / "deep.ndjson").write_text("[" * 200_000, encoding="utf-8")
    _install(folder / "engines-here")
    _offer(folder / "registry")


def _offer(registry: Path) -> None:
    """A package registry that is a folder, with one release of vLLM: what is asked of the newest can be imported, and no more."""
    registry.mkdir()
    top, package = "vllm-0.27.0", ""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.27.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "setuptools.build_meta"\n',
    }
    for part in ("vllm", "v1", "core", "sched"):
        package = f"{package}{part}/"
        files[f"{package}__init__.py"] = ""
    files[f"{package}scheduler.py"] = ""
    with tarfile.open(registry / f"{top}.tar.gz", "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


def _install(home: Path) -> None:
    """Stand-ins for releases of vLLM, in an environment that is the running Python."""
    recipe = recipe_named("vllm")
    ours = installed.engines_folder()
    environment = home / installed.environment_folder(recipe).relative_to(ours.parent)
    python = installed.environment_python(environment)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    for version, code in _RELEASES.items():
        release = home / installed.release_folder(recipe, version).relative_to(ours.parent)
        for part in ("vllm", f"vllm-{version}.dist-info"):
            (release / part).mkdir(parents=True)
        (release / "vllm" / "__init__.py").write_text(code, encoding="utf-8")
        (release / f"vllm-{version}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        (release / installed.RELEASE_FILE).write_text(
            json.dumps({"project": "vllm", "version": version, "source": f"vllm-{version}.tar.gz"})
        )


# ---- commands --------------------------------------------------------------------------------------------------------

HELP = [
    Case(name="help", about="Help of the whole.", line="settled --help"),
    *[Case(name=f"help-{command}", about=f"Help of {command}.", line=f"settled {command} --help") for command in COMMANDS],
    *[
        Case(name=f"help-engines-{command}", about=f"Help of engines {command}.", line=f"settled engines {command} --help")
        for command in ("install", "list", "remove")
    ],
]

_FUZZ_CASE = "0100000500000000010000000000000000000000000013000000000000000a00000000000a010000"

RUNS = [
    Case(name="tour", about="The whole story.", line="settled tour", is_alone=True, is_slow=True),
    Case(name="prove", about="One theorem.", line="settled prove T6", is_alone=True),
    Case(name="refute", about="A discipline broken and run.", line="settled refute ceil --replay", is_alone=True),
    Case(name="weigh", about="One discipline weighed.", line="settled weigh null-at-allocation", is_alone=True),
    Case(name="corpus", about="One bug report.", line="settled corpus 47728"),
    Case(name="check-holds", about="A trace that holds.", line="settled check holds.ndjson"),
    Case(name="check-violated", about="A trace that is violated, with a picture.", line="settled check violated.ndjson --picture"),
    Case(name="check-json", about="The same for machines.", line="settled check violated.ndjson --property rollback_resident --json"),
    Case(name="show", about="A trace drawn.", line="settled show violated.ndjson"),
    Case(
        name="show-files",
        about="As a page, an image, and for Perfetto.",
        line="settled show violated.ndjson --html a.html --svg a.svg --perfetto a.json",
    ),
    Case(name="fuzz", about="Random decisions.", line="settled fuzz --runs 20 --seed 3"),
    Case(name="fuzz-finds", about="One case of a wrong engine.", line=f"settled fuzz --discipline optimistic --case {_FUZZ_CASE}"),
    Case(
        name="hunt",
        about="Random workloads of a wrong engine.",
        line="settled hunt reference==no-fence --mix windows --contract settled --workloads 5",
    ),
    Case(
        name="hunt-releases",
        about="Several releases, beside each other; the reference's are disciplines.",
        line="settled hunt reference --releases settled,optimistic --mix windows --workloads 30 --property rollback_resident",
    ),
    Case(name="diff", about="A row on real buffers.", line="settled diff optimistic/loads --workloads 2 --tags-only"),
    Case(name="diff-trace", about="A trace on real buffers.", line="settled diff --trace violated.ndjson"),
    Case(name="graph", about="A small engine that is never stuck.", line="settled graph window"),
    Case(name="graph-stuck", about="A small engine that gets stuck.", line="settled graph cap-stuck"),
    Case(name="graph-list", about="Which there are.", line="settled graph --list"),
    Case(name="engines-list", about="No release is installed.", line="settled engines list"),
    Case(name="engines-list-broken", about="Releases that cannot be imported.", line="settled engines list --json", home="engines-here"),
    Case(
        name="engines-install",
        about="A release, into an environment that is there.",
        line="settled engines install vllm",
        home="engines-here",
    ),
    Case(name="engines-install-again", about="One that is there.", line="settled engines install vllm==0.25.1", home="engines-here"),
    Case(name="engines-remove", about="Two releases.", line="settled engines remove vllm==0.25.1 vllm==0.26.0", home="engines-here"),
    Case(name="engines-remove-all", about="All that was installed.", line="settled engines remove --all", home="engines-here"),
    Case(name="engines-remove-nothing", about="Where nothing is.", line="settled engines remove --all"),
    Case(name="doctor", about="What is here; versions are stand-ins.", line="settled doctor"),
]

# ---- mistakes --------------------------------------------------------------------------------------------------------

# Root may do everything; without its capabilities it is a user like others.
_NOBODY = (
    "import ctypes\n"
    "unchanged = ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())\n"
    "assert unchanged == 0, 'capabilities cannot be given up'\n"
)
# As Python sees it: nobody has written down where this user is at home.
_NO_HOME = (
    "import posixpath\n"
    "for name in ('HOME', 'SETTLED_HOME', 'XDG_CACHE_HOME'): os.environ.pop(name, None)\n"
    "posixpath.expanduser = lambda path: path\n"
)
# Standard input is a pipe into which nobody writes, and Ctrl-C comes once the command is at work.
_INTERRUPT = """
import signal, threading
os.dup2(os.pipe()[0], 0)
def interrupt():
    while "settled.model.trace_io" not in sys.modules:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
"""


def _missing(module: str) -> str:
    return f"sys.modules[{module!r}] = None\n"


def _mistake(
    name: str, about: str, line: str, *, code: int = 2, before: str = "", is_alone: bool = False, home: str = "no-engines"
) -> Case:
    return Case(name=f"mistake-{name}", about=about, line=line, code=code, before=before, is_alone=is_alone, home=home)


MISTAKES = [
    _mistake("schema-version", "Another schema version.", "settled check schema-2.ndjson"),
    _mistake("truncated", "A file that ends in the midst of a line.", "settled check truncated.ndjson"),
    _mistake("unknown-kind", "A kind of group that is misspelt.", "settled check unknown-kind.ndjson"),
    _mistake("window-0", "A window of 0 tokens.", "settled check window-0.ndjson"),
    _mistake("block-size-0", "Blocks of 0 tokens.", "settled check block-size-0.ndjson"),
    _mistake("too-deep", "More steps in flight than the engine declares.", "settled check too-deep.ndjson"),
    _mistake("vllm-missing", "vLLM is not installed.", "settled hunt vllm"),
    _mistake("vllm-another", "Other releases are.", "settled hunt vllm==0.33.0", home="engines-here"),
    _mistake("vllm-too-old", "vLLM is too old.", "settled hunt vllm==0.10.0 --workloads 1", home="engines-here"),
    _mistake("vllm-broken", "vLLM lacks a library.", "settled hunt vllm==0.25.1 --workloads 1", home="engines-here"),
    _mistake("vllm-crashes", "vLLM ends its process.", "settled hunt vllm==0.26.0 --workloads 1", home="engines-here"),
    _mistake("torch-missing", "torch is not installed.", "settled diff settled/loads", before=_missing("torch")),
    _mistake("torch-broken", "torch lacks a library.", "settled diff settled/loads", before="sys.path.insert(0, 'broken')"),
    _mistake("cvc5-missing", "cvc5 is not installed.", "settled prove T6 --solver both", before=_missing("cvc5")),
    _mistake("cvc5-broken", "cvc5 lacks a library.", "settled prove T6 --solver cvc5", before="sys.path.insert(0, 'broken')"),
    _mistake("cuda-missing", "There is no CUDA device.", "settled diff settled/loads --device cuda"),
    _mistake(
        "gcc-missing", "There is no C compiler.", "settled diff settled/loads --device cuda", before="os.environ['CC'] = 'no-such-gcc'"
    ),
    _mistake("triton-missing", "triton is not installed.", "settled diff settled/loads --device cuda", before=_missing("triton")),
    _mistake("z3-missing", "z3 is not installed.", "settled refute ceil", before=_missing("z3")),
    _mistake("disk-full", "Standard output is a full disk.", "settled check holds.ndjson > /dev/full", is_alone=True),
    _mistake(
        "disk-full-folder", "The folder of the traces is on a full disk.", "settled refute ceil --json --traces full-disk", is_alone=True
    ),
    _mistake("disk-full-page", "The page is to lie on a full disk.", "settled show violated.ndjson --html /dev/full"),
    _mistake("interrupt", "Ctrl-C while standard input is read.", "settled check -", code=130, before=_INTERRUPT),
    _mistake("unknown-theorem", "A theorem that does not exist.", "settled prove T33"),
    _mistake("unknown-discipline", "A discipline that is misspelt.", "settled refute optimistc"),
    _mistake("unknown-command", "A command that is misspelt.", "settled chekc holds.ndjson"),
    _mistake("unknown-option", "An option that is misspelt.", "settled check holds.ndjson --contrct settled"),
    _mistake("unknown-contract", "A contract that is misspelt.", "settled check holds.ndjson --contract setled"),
    _mistake("unknown-engine", "An engine that is misspelt.", "settled hunt vlmm"),
    _mistake("unreadable", "A file that may not be read.", "settled check unreadable.ndjson", before=_NOBODY),
    _mistake("no-file", "A file that does not exist.", "settled check hold.ndjson"),
    _mistake("empty", "A trace without a line.", "settled check empty.ndjson"),
    _mistake("other-schema", "A trace of another schema.", "settled check other-schema.ndjson"),
    _mistake("other-tool", "A trace of another tool.", "settled check other-tool.json"),
    _mistake("two-engines", "Two engines at once.", "settled hunt vllm reference"),
    _mistake("two-engines-in-a-file", "Two engines wrote into one file.", "settled check two-engines.ndjson"),
    _mistake("no-permission", "A folder that may not be written.", "settled refute ceil --traces locked/traces", before=_NOBODY),
    _mistake("binary", "No text.", "settled check binary.ndjson"),
    _mistake("gzip", "A compressed trace.", "settled check holds.ndjson.gz"),
    _mistake("byte-order-mark", "A file that an editor has marked.", "settled check marked.ndjson"),
    _mistake("deep", "Brackets without an end.", "settled check deep.ndjson"),
    _mistake("folder", "A folder for a trace.", "settled check locked"),
    _mistake("no-name", "A shell variable that is empty.", "settled check ''"),
    _mistake("many-rows", "The end of every row.", "settled corpus ''"),
    _mistake("two-traces", "Two traces.", "settled check holds.ndjson violated.ndjson"),
    _mistake("over-the-trace", "The trace would be written over.", "settled diff --trace holds.ndjson --op-log holds.ndjson"),
    _mistake("over-another", "Two files of one name.", "settled fuzz --junit summary --markdown summary"),
    _mistake("to-standard-output", "A page for standard output.", "settled show violated.ndjson --html -"),
    _mistake("page-in-a-folder", "A folder for a page.", "settled check violated.ndjson --html locked"),
    _mistake("traces-in-a-file", "A file for a folder.", "settled refute ceil --traces holds.ndjson"),
    _mistake("no-value", "An option without its value.", "settled show violated.ndjson --property"),
    _mistake("no-number", "A word for a number.", "settled fuzz --runs many"),
    _mistake("negative", "A negative number.", "settled hunt reference --workloads -1"),
    _mistake("not-a-number", "A time that is no number.", "settled fuzz --seconds nan"),
    _mistake("case-and-runs", "One case, and many.", "settled fuzz --case 00 --runs 5"),
    _mistake("number-and-workloads", "One workload, and many.", "settled hunt reference --number 3 --workloads 5"),
    _mistake("list-and-names", "A list of all, and one.", "settled graph --list window"),
    _mistake("no-such-row", "A row that is of another family.", "settled corpus 47728 --family F9"),
    _mistake("unknown-property", "A property that is misspelt.", "settled hunt reference --property held_bounde"),
    _mistake("property-of-another", "A property that only vLLM is inspected for.", "settled hunt reference --property cache_truthful"),
    _mistake("two-versions", "Two versions in one name.", "settled hunt vllm==0.25.1==0.26.0"),
    _mistake("release-twice", "A release, and releases.", "settled hunt vllm==0.25.1 --releases 0.26.0"),
    _mistake("no-release", "A comma too many.", "settled hunt vllm --releases 0.26.0,"),
    _mistake("unknown-release", "A discipline that does not exist.", "settled hunt reference --releases settled,nope"),
    _mistake("install-reference", "There is nothing to install.", "settled hunt reference --releases settled --install"),
    _mistake("trace-for-a-workload", "A trace in place of a workload.", "settled hunt reference --workload holds.ndjson"),
    _mistake("mask-missing", "A mask file that is not there.", "settled prove --mask nope.py"),
    _mistake("mask-folder", "A folder for a mask file.", "settled prove --mask locked"),
    _mistake("install-unknown", "A project that does not exist.", "settled engines install nope"),
    _mistake("install-no-version", "A version that is none.", "settled engines install vllm==../..", home="engines-here"),
    _mistake("install-version", "A version that does not exist.", "settled engines install vllm==9.9", home="engines-here"),
    _mistake("install-in-a-file", "A file for the folder of engines.", "settled engines install vllm", home="holds.ndjson"),
    _mistake("no-home", "A user without a home folder.", "settled engines install vllm", before=_NO_HOME),
    _mistake("remove-missing", "A release that is not here.", "settled engines remove vllm==9.9", home="engines-here"),
    _mistake("remove-no-version", "No version.", "settled engines remove vllm", home="engines-here"),
    _mistake("remove-nothing", "Nothing named.", "settled engines remove"),
    _mistake(
        "solver-memory",
        "z3 may use 20 MB.",
        "settled refute --all --json",
        code=3,
        before="import z3\nz3.set_param('memory_max_size', 20)",
    ),
]

CASES = [*HELP, *RUNS, *MISTAKES]
