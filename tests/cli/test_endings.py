"""How runs end that have no verdict: never with 0 or 1, always with one line and a hint. Each is a process of its own, as a shell
starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRACES = Path(__file__).parents[1] / "data" / "traces"
VIOLATED = str(TRACES / "v0.24.0-min-spec-reject.ndjson")
HOLDS = str(TRACES / "v0.26.0-min-spec-reject.ndjson")
START = "from settled.proofs.cli.main import main; main()"
UNSET = ("PYTHONIOENCODING", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "LC_ALL", "SETTLED_TRACEBACK")


def settled(
    *arguments: str, before: str = "", shell: str = '"$@"', env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs `settled` as the words $@ of a shell line; `before` is Python that runs in its process first."""
    command = [sys.executable, "-c", f"{before}\n{START}", *arguments]
    clean = {key: value for key, value in os.environ.items() if key not in UNSET}
    return subprocess.run(["bash", "-c", shell, "bash", *command], capture_output=True, env={**clean, **(env or {})}, check=False)


def one_line(stderr: bytes) -> str:
    assert stderr.count(b"\n") == 1, stderr
    return stderr.decode().rstrip("\n")


def line_of(stderr: bytes, hint: str = "") -> str:
    """What is wrong, where the hint under it is asked for by a part of it."""
    lines = stderr.decode().splitlines()
    assert len(lines) == 2, stderr
    assert lines[1].startswith("  hint: "), stderr
    assert hint in lines[1]
    return lines[0]


def raising(exception: str) -> str:
    """Makes every `check` raise."""
    return f"import click\nfrom settled.proofs.cli import check as at\ndef fail(**_): raise {exception}\nat.check.callback = fail"


# ---- click ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"), [((), 2), (("engines",), 2), (("--help",), 0), (("check", "--help"), 0), (("--version",), 0)]
)
def test_usage_is_as_click_prints_it(arguments: tuple[str, ...], code: int) -> None:
    result = settled(*arguments)
    assert result.returncode == code
    assert (result.stdout if code == 0 else result.stderr).startswith((b"Usage: settled", b"settled, version"))


@pytest.mark.parametrize(
    ("arguments", "line", "hint"),
    [
        (("nonsense",), "settled: unknown command 'nonsense'; expected one of tour, ", "settled --help"),
        (("chekc",), "settled: unknown command 'chekc'; expected one of tour, ", "did you mean check?"),
        (("prove", "T99"), "settled prove: unknown theorem 'T99'; expected one of T1, ", "settled prove --help"),
        (("check", HOLDS, "--contract", "setled"), "settled check: Invalid value for '--contract': ", "did you mean settled?"),
        (("check", "--nonsense"), "settled check: No such option '--nonsense'", "settled check --help"),
        (("engines", "remove"), "settled engines remove: name releases, or give --all", "settled engines remove --help"),
        (("hunt", "vllm", "reference"), "settled hunt: Got unexpected extra argument (reference)", "one engine a hunt"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], line: str, hint: str) -> None:
    result = settled(*arguments)
    assert result.returncode == 2
    assert line_of(result.stderr, hint).startswith(line)


def test_verdicts_pass_through() -> None:
    assert [settled("check", trace).returncode for trace in (HOLDS, VIOLATED)] == [0, 1]


def test_a_shell_still_gets_its_completions() -> None:
    result = settled(env={"_SETTLED_COMPLETE": "bash_complete", "COMP_WORDS": "settled ref", "COMP_CWORD": "1"})
    assert result.stdout == b"plain,refute\n"


# ---- what goes wrong outside -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "click.Abort"])
def test_interrupted(exception: str) -> None:
    result = settled("check", HOLDS, before=raising(exception))
    assert (result.returncode, line_of(result.stderr)) == (130, "settled check: interrupted")


def test_a_signal_interrupts_a_search() -> None:
    with started("refute", "--all") as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first refutation is printed: it has begun
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=240)
    assert (process.returncode, line_of(stderr)) == (130, "settled refute: interrupted")


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", VIOLATED),
        ("check", VIOLATED, "--json"),
        ("--help",),
        ("prove", "T2"),
        ("corpus", "47728"),
        ("graph", "window"),
        ("doctor",),
    ],
)
def test_a_reader_that_leaves_is_no_verdict(arguments: tuple[str, ...]) -> None:
    result = settled(*arguments, shell='exec 3> >(:); wait $!; "$@" >&3; echo "code $?" >&2')  # once the reader has ended
    assert one_line(result.stderr) == "code 141"


@pytest.mark.parametrize(
    "arguments", [("check", HOLDS), ("check", HOLDS, "--json"), ("--help",), ("prove", "T5", "--json"), ("doctor",)], ids=" ".join
)
def test_a_full_disk(arguments: tuple[str, ...]) -> None:
    result = settled(*arguments, shell='"$@" > /dev/full')
    command = " ".join(["settled", *[word for word in arguments[:1] if word != "--help"]])
    assert (result.returncode, line_of(result.stderr, "free some space")) == (2, f"{command}: standard output: No space left on device")


@pytest.mark.parametrize("arguments", [("prove", "T5", "--export"), ("refute", "ceil", "--traces")])
def test_a_folder_that_cannot_be_written(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = settled(*arguments, str(tmp_path / "file" / "below"))
    assert result.returncode == 2
    line = line_of(result.stderr, "a part of the path is a file")
    assert line.startswith(f"settled {arguments[0]}: {tmp_path}/file/below")
    assert line.endswith(": Not a directory")
    assert result.stdout == b""  # nothing was searched for


@pytest.mark.parametrize(
    ("arguments", "file"),
    [(("graph", "window", "--dot"), "window.dot"), (("prove", "T6", "--export"), "T6/full-attention/the-same-blocks-are-freed.smt2")],
)
def test_a_full_disk_under_a_folder(arguments: tuple[str, ...], file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).symlink_to("/dev/full")
    result = settled(*arguments, str(tmp_path))
    line = f"settled {arguments[0]}: {tmp_path / file}: No space left on device"
    assert (result.returncode, line_of(result.stderr, "free some space")) == (2, line)


def test_closed_standard_input() -> None:
    result = settled("check", "-", shell='"$@" <&-')
    assert result.returncode == 2
    assert "standard input is closed" in line_of(result.stderr)


@pytest.mark.parametrize(("trace", "code"), [(HOLDS, 0), (VIOLATED, 1)])
def test_closed_standard_output_leaves_the_verdict(trace: str, code: int) -> None:
    result = settled("check", trace, shell='"$@" >&-')
    assert (result.returncode, result.stderr) == (code, b"")


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_memory_that_runs_out_is_no_fault_of_ours() -> None:
    """Python's own, of which the system gives no more."""
    more = "import resource\nfrom settled.proofs.cli import check as at\nimport settled.model.trace_io, settled.model.monitor\n"
    limit = "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
    result = settled("check", HOLDS, before=more + limit + "at._watch = lambda *_: bytes(1 << 31)")
    assert (result.returncode, line_of(result.stderr, "more memory")) == (3, "settled check: out of memory")


def test_a_solver_without_memory_is_named_and_nothing_is_claimed() -> None:
    result = settled("refute", "ceil", before="import z3; z3.set_param('memory_max_size', 20)")
    assert (result.returncode, line_of(result.stderr, "more memory")) == (3, "settled refute: z3 ran out of memory")
    assert b"exit code" not in result.stdout


def test_a_process_that_the_system_kills_is_told() -> None:
    with started("fuzz", "--jobs", "2", "--seconds", "600") as process:
        os.kill(first_worker(process), signal.SIGKILL)
        _, stderr = process.communicate(timeout=240)
    assert (process.returncode, line_of(stderr, "more memory")[:14]) == (3, "settled fuzz: ")


@pytest.mark.parametrize("arguments", [("fuzz", "--jobs", "2", "--seconds", "600"), ("diff", "--workloads", "100000")], ids=" ".join)
def test_processes_end_with_the_one_that_started_them(arguments: tuple[str, ...]) -> None:
    """They hold its standard output open: whoever reads that would wait for them."""
    with started(*arguments) as process:
        first_worker(process)
        process.terminate()
        process.communicate(timeout=240)
    assert process.returncode == -signal.SIGTERM


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", START, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def first_worker(process: subprocess.Popen[bytes]) -> int:
    """The process number of the first that it starts, as soon as there is one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (workers := [pid for pid in children.read_text().split() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]):
        assert process.poll() is None
        time.sleep(0.05)
    return int(workers[0])


# ---- what goes wrong inside ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exception", "told"),
    [
        ("AssertionError", "AssertionError"),
        ("ValueError('a\\nb')", "ValueError: a b"),
        ("RecursionError('deep')", "RecursionError: deep"),
    ],
)
def test_the_unexpected_is_unknown_and_asks_for_a_report(exception: str, told: str) -> None:
    result = settled("check", "a trace", before=raising(exception))
    assert result.returncode == 3
    hint = "please report it with the command: settled check 'a trace' (SETTLED_TRACEBACK=1 shows where)"
    assert line_of(result.stderr, hint) == f"settled check: unexpected {told}"


def test_the_traceback_is_there_for_those_who_ask() -> None:
    result = settled("check", HOLDS, before=raising("KeyError('x')"), env={"SETTLED_TRACEBACK": "1"})
    assert result.returncode == 3
    assert b"Traceback (most recent call last)" in result.stderr


def test_a_library_that_is_missing_is_named() -> None:
    result = settled("check", HOLDS, before="import sys; sys.modules['msgspec'] = None")
    assert result.returncode == 2
    assert line_of(result.stderr, "pip install settled; settled doctor") == "settled check: msgspec is not installed"


def test_without_click_there_is_still_a_line() -> None:
    result = settled("check", HOLDS, before="import sys; sys.modules['click'] = None")
    assert (result.returncode, line_of(result.stderr, "pip install settled")) == (2, "settled: click is not installed")


# ---- encodings -------------------------------------------------------------------------------------------------------

ENCODINGS = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.mark.parametrize("env", ENCODINGS, ids=lambda env: next(iter(env.items()), ""))
def test_an_encoding_without_our_signs_gets_others(env: dict[str, str]) -> None:
    result = settled("check", VIOLATED, "--picture", env=env)
    assert (result.returncode, result.stderr) == (1, b"")
    text = result.stdout.decode("ascii")  # boxes too
    assert ". held   x released   0 null" in text
    assert "0000000000000000 xxxxxxxxxxxxxxxx ................" in text
    assert "?" not in text


def test_other_signs_become_question_marks(tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    trace.write_text(Path(HOLDS).read_text(encoding="utf-8").replace('"engine":"vllm', '"engine":"v∅m', 1), encoding="utf-8")
    result = settled("check", str(trace), env={"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, b"")
    assert b": v?m 0.26.0" in result.stdout


@pytest.mark.parametrize(
    "command", [("prove", "T2"), ("refute", "ceil", "--replay"), pytest.param(("doctor",), marks=pytest.mark.slow)], ids=" ".join
)
def test_every_command_prints_in_ascii(command: tuple[str, ...]) -> None:
    result = settled(*command, env={"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.isascii()
