"""The pytest plugin, used by tests in a folder of their own, on the reference engine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from settled.model.trace_io import read_trace
from settled.proofs.cli.main import cli
from settled.proofs.pytesting import watch
from settled.proofs.pytesting.asked import Asked, id_of
from settled.proofs.pytesting.keeping import name_of
from settled.reference import engine
from settled.reference.engines.vllm import attaching

pytest_plugins = ("pytester",)

# Imported here, and so kept from one inner run to the next: each would import them anew.
KEPT = (watch, engine, Asked)

PLUGIN = ("-p", "no:settled", "-p", "settled.proofs.pytest_plugin", "-p", "no:cacheprovider")  # installed or not
CHEAP = (
    "-p",
    "no:hypothesispytest",
    "-p",
    "no:unraisableexception",
    "--assert",
    "plain",
)  # else each inner run collects all garbage and rewrites its tests

DRIVER = """
import pytest
from settled.model.disciplines import DISCIPLINES
from settled.model.specs import SlidingWindowSpec
from settled.reference.config import EngineConfig
from settled.reference.engine import Engine

WINDOW = SlidingWindowSpec(block_size=4, window=4)

def serve(sink, discipline, *, groups=(WINDOW,), prompt_tokens=10):
    config = EngineConfig(
        groups=groups, num_blocks=40, max_num_batched_tokens=max(16, prompt_tokens), max_model_len=64, max_in_flight_steps=2,
        discipline=DISCIPLINES[discipline],
    )
    engine = Engine(config, sink)
    engine.add_request("r", tuple(range(prompt_tokens)), max_tokens=12)
    while not engine.is_idle:
        while len(engine.unprocessed) < 2 and engine.scheduler.requests and engine.schedule() is not None:
            pass
        engine.process()
    return engine
"""


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As wide as pictures need it, whatever the terminal is in which this runs."""
    monkeypatch.setenv("COLUMNS", "80")


def run(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(driver=DRIVER)
    pytester.makepyfile(test_mine="from driver import *\n\n" + tests)
    return pytester.runpytest_inprocess(*PLUGIN, *CHEAP, *options)


WRONG = """
@pytest.mark.settled(contract="settled")
def test_windows(settled):
    serve(settled.sink(), "optimistic")
    pytest.exit("the engine went on after the violation")
"""


def test_the_first_violation_fails_the_test_with_its_picture_and_a_trace(pytester: pytest.Pytester) -> None:
    result = run(pytester, WRONG)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            '>*serve(settled.sink(), "optimistic")',
            "E*Failed: settled: read_resident is violated under settled (freed[[]window[]])",
            "E*settled.reference, line 5: step 0 of request r reads tokens 0 to 3 *",
            "E*4 step 0: schedule [[]0, 10)*wwww wwww ww*",
            "E*5 step 0 needs*!!!!*",
            "E*trace: settled-traces/test_mine.test_windows.ndjson",
            "E*page:  settled-traces/test_mine.test_windows.html",
            "settled: 1 watched: 1 violated",
            "FAILED test_mine.py::test_windows - Failed: settled: read_resident*",
        ]
    )
    result.stdout.no_fnmatch_line("*recorder.py:*")  # from the test through the engine to where it lost the block, and no further
    result.stdout.no_fnmatch_line("*in _feed*")


def test_the_commands_it_names_show_the_same_violation(pytester: pytest.Pytester) -> None:
    commands = re.findall(r"^E +(?:again: )?settled (.*)$", run(pytester, WRONG).stdout.str(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["check", "show"]
    for command in commands:
        shown = CliRunner().invoke(cli, shlex.split(command))
        assert shown.exit_code == 1
        assert "step 0 of request r reads tokens 0 to 3" in shown.output
    with Path("settled-traces/test_mine.test_windows.ndjson").open("rb") as lines:
        assert max(line for line, _ in read_trace(lines)) == 5
    page = Path("settled-traces/test_mine.test_windows.html").read_text(encoding="utf-8")
    assert "step 0 of request r reads tokens 0 to 3" in page


def test_a_right_engine_passes_and_leaves_nothing(pytester: pytest.Pytester) -> None:
    result = run(pytester, 'def test_windows(settled):\n    serve(settled.sink(), "settled")')
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["settled: 1 watched: 1 holds"])
    assert not Path("settled-traces").exists()


def test_tests_that_do_not_use_it_hear_nothing_of_it(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_plain(): pass")
    result.assert_outcomes(passed=1)
    assert "settled" not in result.stdout.str()


SWALLOWED = """
@pytest.mark.settled(contract="settled")
def test_{name}(settled):
    try:
        serve(settled.sink(), "optimistic")
    except BaseException:
        {ending}
"""
ENDINGS = {"return": "return", "raise": 'raise ValueError("the engine is gone")', "assert": "assert False", "skip": "pytest.skip()"}


def test_a_violation_that_something_swallows_fails_all_the_same(pytester: pytest.Pytester) -> None:
    result = run(pytester, "".join(SWALLOWED.format(name=name, ending=ending) for name, ending in ENDINGS.items()))
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["settled: 4 watched: 4 violated", "FAILED *_return - Failed: settled: read_resident*"])
    assert len(re.findall(r"^E +Failed: settled: read_resident is violated under settled", result.stdout.str(), re.MULTILINE)) == 4


def test_events_after_a_swallowed_violation_are_not_judged(pytester: pytest.Pytester) -> None:
    body = """
@pytest.mark.settled(contract="settled")
def test_windows(settled):
    with pytest.raises(pytest.fail.Exception):
        serve(settled.sink(), "optimistic")
    serve(settled.sink(), "optimistic")
    open("went-on", "w").close()
"""
    result = run(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*Failed: settled: read_resident is violated under settled*"])
    assert Path("went-on").exists()


UNITTEST = """
import unittest

class TestWindows(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def watched(self, settled):
        self.settled = settled

    def swallow(self):
        try:
            serve(self.settled.sink(), "optimistic")
        except BaseException:
            pass

    def test_holds(self):
        serve(self.settled.sink(), "settled")

    def test_violated(self):
        serve(self.settled.sink(), "optimistic")

    def test_return(self):
        self.swallow()

    def test_assert(self):
        self.swallow()
        self.assertEqual(1, 2)

    def test_skip(self):
        self.swallow()
        self.skipTest("no reason")

    def test_skip_honestly(self):
        self.skipTest("a reason")

    @unittest.expectedFailure
    def test_expected(self):
        serve(self.settled.sink(), "optimistic")

    def test_otherwise(self):
        serve(self.settled.sink(), "settled")
        self.assertEqual(1, 2)
"""


def test_test_cases_of_unittest_hide_no_violation(pytester: pytest.Pytester) -> None:
    """What is raised within them is kept apart by pytest until the test is over."""
    result = run(pytester, UNITTEST, "--settled-contract", "settled", "--tb", "short")
    result.assert_outcomes(passed=1, failed=5, skipped=1, xfailed=1)
    told = result.stdout.str()
    for name in ("violated", "return", "assert", "skip"):
        (section,) = re.findall(rf"^_+ TestWindows.test_{name} _+$(.*?)(?=^(?:__|==))", told, re.MULTILINE | re.DOTALL)
        assert "settled: read_resident is violated under settled" in section
        assert f"trace: settled-traces/test_mine.TestWindows.test_{name}.ndjson" in section
        assert "in _feed" not in section
    (section,) = re.findall(r"^_+ TestWindows.test_otherwise _+$(.*?)(?=^(?:__|==))", told, re.MULTILINE | re.DOTALL)
    assert "nothing violated under settled" in section


IN_FIXTURE = """
@pytest.fixture
def engine(settled):
    return serve(settled.sink(), "optimistic")

@pytest.mark.settled(contract="settled")
def test_windows(engine):
    pass

@pytest.fixture
def elsewhere(settled):
    pytest.skip("no device here")

def test_skipped(elsewhere):
    pass
"""


def test_a_violation_in_a_fixture_is_told_and_counted_as_in_a_test(pytester: pytest.Pytester) -> None:
    result = run(pytester, IN_FIXTURE, "--junitxml", "junit.xml")
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(["E*Failed: settled: read_resident is violated*", "settled: 1 watched: 1 violated"])
    result.stdout.no_fnmatch_line("*in _feed*")
    assert re.findall(r'name="settled_verdict" value="(\w+)"', Path("junit.xml").read_text(encoding="utf-8")) == ["violated"]


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_a_test_with_subtests_is_one_that_is_watched(pytester: pytest.Pytester) -> None:
    body = """
def test_windows(settled, subtests):
    for number in range(3):
        with subtests.test(number=number):
            serve(settled.sink(), "settled")
            assert number
"""
    result = run(pytester, body, "--junitxml", "junit.xml")
    result.stdout.fnmatch_lines(["settled: 1 watched: 1 *"])


def test_a_fixture_that_breaks_at_the_end_is_told_as_it_is(pytester: pytest.Pytester) -> None:
    body = """
@pytest.fixture
def broken():
    yield
    raise RuntimeError("broken")

def test_windows(broken, settled):
    serve(settled.sink(), "settled")
"""
    result = run(pytester, body)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["E*RuntimeError: broken", "settled: 1 watched: 1 holds"])


def test_an_expected_violation_is_an_expected_failure(pytester: pytest.Pytester) -> None:
    run(pytester, "@pytest.mark.xfail(strict=True)" + WRONG).assert_outcomes(xfailed=1)


@pytest.mark.parametrize(
    ("body", "told"), [("pass", "the test asked for the fixture and attached nothing"), ("settled.sink()", "1 of 1 engines")]
)
def test_watching_nothing_is_no_success(pytester: pytest.Pytester, body: str, told: str) -> None:
    result = run(pytester, f"def test_windows(settled):\n    {body}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*settled: {told}*"])


def test_judging_nothing_is_no_success(pytester: pytest.Pytester) -> None:
    body = """
def test_windows(settled):
    Engine(EngineConfig(groups=(WINDOW,), num_blocks=40, max_model_len=64), settled.sink())
"""
    result = run(pytester, body, "-W", "default")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*settled: nothing was judged: *the trace has no requests in steps*"])


def test_what_is_judged_in_part_warns(pytester: pytest.Pytester) -> None:
    body = """
from dataclasses import replace
from settled.model.events import Config
from settled.model.specs import CustomSpec, FullAttentionSpec

def test_windows(settled):
    sink = settled.sink()
    def as_if_custom(event):
        if isinstance(event, Config):
            event = replace(event, groups=(event.groups[0], CustomSpec(block_size=4, name="mine")))
        sink(event)
    serve(as_if_custom, "settled", groups=(WINDOW, FullAttentionSpec(block_size=4)))
"""
    result = run(pytester, body, "-W", "default")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*PartlyJudgedWarning: *group 1 (custom) is not modelled", "settled: 1 watched: 1 unknown"])
    run(pytester, body, "-W", "error").assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("feed", "complaint"),
    [
        ("End(idle=True)", "engine 1:1: the first event must be config, not end"),
        ("config, Preempt(request='nobody')", "engine 1:2: preempt: *nobody*"),
        ("config, Preempt(request=5)", "engine 1:2: preempt: Expected `str`, got `int`*"),
        ("config, Add(request='r', prompt_tokens=-1)", "engine 1:2: add: prompt_tokens must be at least 0, not -1*"),
        ("{'event': 'config'}", "engine 1:1: a dict is no event: expected one of settled.model.events"),
    ],
)
def test_events_that_cannot_be_fail_the_test(pytester: pytest.Pytester, feed: str, complaint: str) -> None:
    body = f"""
from settled.model.events import *

def test_windows(settled):
    kept = []
    Engine(EngineConfig(groups=(WINDOW,), num_blocks=40, max_model_len=64), kept.append)
    config, sink = kept[0], settled.sink()
    for event in ({feed},):
        sink(event)
"""
    result = run(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E*settled: the engine emits what cannot be: {complaint}"])
    result.stdout.no_fnmatch_line("*During handling of the above exception*")


def test_a_pipeline_deeper_than_declared_is_told_with_what_declares_it(pytester: pytest.Pytester) -> None:
    body = """
from dataclasses import replace
from settled.model.events import Config

def test_windows(settled):
    sink = settled.sink()
    serve(lambda event: sink(replace(event, max_in_flight_steps=1) if isinstance(event, Config) else event), "settled")
"""
    result = run(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*settled: *: 1 step is unprocessed already: *", "E*declare what the engine keeps in flight*"])


def test_a_test_that_fails_otherwise_keeps_its_traces(pytester: pytest.Pytester) -> None:
    body = """
@pytest.mark.parametrize("name", ["a/b", "a b"])
def test_windows(settled, name):
    serve(settled.sink(), "settled")
    serve(settled.sink(), "settled")
    assert name == "c"
"""
    result = run(pytester, body, "--settled-traces", "kept")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*- settled -*", "settled.reference: * events, nothing violated under stream_order", "trace: kept/*"])
    assert sorted(path.suffix for path in Path("kept").iterdir()) == [".html"] * 4 + [".ndjson"] * 4
    for path in Path("kept").glob("*.ndjson"):
        assert CliRunner().invoke(cli, ["check", str(path)]).exit_code == 3, "the test failed before the trace had an end"


def test_a_folder_that_cannot_be_written_hides_no_violation(pytester: pytest.Pytester) -> None:
    Path("occupied").write_text("a file")
    result = run(pytester, WRONG, "--settled-traces", "occupied")
    result.stdout.fnmatch_lines(["E*Failed: settled: read_resident is violated*", "E*the trace is not kept: *occupied*: *"])


# ---- contract and properties -------------------------------------------------------------------------------------------------------


PLAIN = 'def test_windows(settled):\n    serve(settled.sink(), "optimistic")\n'
MARKERS = {
    "no_marker": "",
    "settled": 'contract="settled"',
    "stream_order": 'contract="stream_order"',
    "owner": 'properties=["single_owner"]',
    "both": 'contract="settled", properties=["single_owner", "read_resident"]',
}
CONTRACT = "[pytest]\nsettled_contract = settled\n"


@pytest.mark.parametrize(
    ("options", "ini", "failed"),
    [
        ([], "[pytest]", {"settled", "both"}),  # the default without a KV consumer is the order of the stream
        (["--settled-contract", "settled"], "[pytest]", {"no_marker", "settled", "both"}),
        ([], CONTRACT, {"no_marker", "settled", "both"}),
        (["--settled-contract", "stream_order"], CONTRACT, {"settled", "both"}),
        (["--settled-property", "single_owner", "--settled-property", "held_bounded"], CONTRACT, {"both"}),
        ([], CONTRACT + "settled_properties = single_owner held_bounded", {"both"}),
    ],
)
def test_markers_go_before_options_and_options_before_configuration(
    pytester: pytest.Pytester, options: list[str], ini: str, failed: set[str]
) -> None:
    pytester.makeini(ini)
    tests = [f"@pytest.mark.settled({marker})\n{PLAIN}".replace("windows", name) for name, marker in MARKERS.items()]
    result = run(pytester, "\n".join(tests), *options)
    result.assert_outcomes(failed=len(failed), passed=len(MARKERS) - len(failed))
    assert set(re.findall(r"^FAILED test_mine.py::test_(\w+)", result.stdout.str(), re.MULTILINE)) == failed


def test_the_closest_marker_counts(pytester: pytest.Pytester) -> None:
    body = f"""
pytestmark = pytest.mark.settled(contract="settled", properties=["single_owner"])

def test_plain(): pass

@pytest.mark.settled(properties=["read_resident"])
{PLAIN}
"""
    run(pytester, body).assert_outcomes(failed=1, passed=1)


COMPLAINTS = {
    'contract="strict"': "contract: 'strict' is none; expected one of settled, stream_order, event",
    'properties=["resident"]': "properties: 'resident' is none; expected one of read_resident, ",
    'properties="read_resident"': "properties: expected a list of names, not 'read_resident'",
    "properties=5": "properties: expected a list of names, not 5",
    'contracts="settled"': "expected contract=NAME and properties=[NAME, ...], not contracts",
    '"settled"': "expected contract=NAME and properties=[NAME, ...], not 'settled'",
}


def test_a_wrong_marker_is_an_error(pytester: pytest.Pytester) -> None:
    tests = [f"@pytest.mark.settled({marker})\n{PLAIN}".replace("windows", str(number)) for number, marker in enumerate(COMPLAINTS)]
    result = run(pytester, "\n".join(tests))
    result.assert_outcomes(errors=len(COMPLAINTS))
    for complaint in COMPLAINTS.values():
        assert complaint in result.stdout.str()


def test_a_marker_without_the_fixture_is_an_error(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.settled\ndef test_plain(): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*marked 'settled' and does not use the fixture 'settled'*"])


@pytest.mark.parametrize("option", [("--settled-contract", "strict"), ("--settled-property", "resident")])
def test_a_wrong_option_ends_pytest_before_any_test(pytester: pytest.Pytester, option: tuple[str, str]) -> None:
    result = run(pytester, PLAIN, *option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: settled *: '{option[1]}' is none; expected one of *"])


def test_a_wrong_configuration_does_so_too(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nsettled_properties = resident\n")
    assert run(pytester, "def test_plain(): pass").ret == pytest.ExitCode.USAGE_ERROR


# ---- names, other reports, other processes -----------------------------------------------------------------------------------------


IDS = [
    "tests/test_a.py::test_b",
    "tests/test_a.py::TestC::test_b",
    "tests/test_a.py::test_b[x]",
    "tests/test_a.py::test_b[x/y]",
    "tests/test_a.py::test_b[x y]",
    "tests/test_a.py::test_b[x.y]",
    "tests/test.a.py::test_b",
    "tests/test_a.py::test_b[" + "x" * 400 + "]",
    "tests/test_a.py::test_b[" + "x" * 401 + "]",
    "tests/test_a.py::test_b[../../../etc/passwd]",
    "tests/test_a.py::test_ß[é]",
]


@pytest.mark.parametrize("group", ["", "@models"])
def test_a_group_of_xdist_is_no_part_of_a_tests_name(group: str) -> None:
    """Before pytest 9.2, workers append it to the id, and a run without workers does not."""
    item = SimpleNamespace(parent=SimpleNamespace(nodeid="test_a.py::TestC"), name="test_b", nodeid=f"test_a.py::TestC::test_b{group}")
    assert id_of(cast(pytest.Item, item)) == "test_a.py::TestC::test_b"


def test_every_test_has_a_file_name_of_its_own() -> None:
    names = [name_of(test, number) for test in IDS for number in (1, 2)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) and len(name) < 200 for name in names), names
    assert name_of(IDS[1], 1) == "tests.test_a.TestC.test_b"


def test_the_verdict_is_in_junit_files(pytester: pytest.Pytester) -> None:
    run(pytester, WRONG + "\n" + PLAIN.replace("windows", "others"), "--junitxml", "junit.xml")
    text = Path("junit.xml").read_text(encoding="utf-8")
    assert re.findall(r'name="settled_verdict" value="(\w+)"', text) == ["violated", "holds"]


def heads(result: pytest.RunResult) -> set[str]:
    """The blocks that pictures show, each picture's in one line."""
    return {" ".join(re.findall(r"\[\d+\]", line)) for line in result.outlines if re.match(r"E +\[0\]", line)}


@pytest.mark.slow
def test_workers_of_xdist_judge_and_keep_each_its_own(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # 80 has no room for all blocks
    body = """
@pytest.mark.settled(contract="settled")
@pytest.mark.parametrize("number", range(6))
def test_windows(settled, number):
    serve(settled.sink(), "settled" if number % 2 else "optimistic", prompt_tokens=40)
"""
    result = run(pytester, body)
    pytester.makepyfile(driver=DRIVER)
    alone = {path.name: path.read_bytes() for path in Path("settled-traces").iterdir()}
    beside = pytester.runpytest_subprocess(*PLUGIN, "-n", "2", "--settled-traces", "beside")
    for each in (result, beside):
        each.assert_outcomes(failed=3, passed=3)
        each.stdout.fnmatch_lines(["settled: 6 watched: 3 holds, 3 violated"])
        assert each.stdout.str().count("settled: 6 watched") == 1
    assert heads(result) == heads(beside) == {" ".join(f"[{index}]" for index in range(10))}
    assert len(alone) == 6
    assert {path.name: path.read_bytes() for path in Path("beside").iterdir()} == alone


# ---- attaching -----------------------------------------------------------------------------------------------------------------------


class Client:
    """As a front end has it whose engine core runs in another process."""


class AsyncMPClient(Client):
    """As AsyncLLM has it, whose engine core never runs anywhere else."""


class DPAsyncMPClient(AsyncMPClient):
    """And with data parallelism."""


class FrontEnd:
    def __init__(self, client: type = Client) -> None:
        self.engine_core = client()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (FrontEnd, "runs in another process, where a test cannot see it: set VLLM_ENABLE_V1_MULTIPROCESSING=0"),
        (
            partial(FrontEnd, AsyncMPClient),
            "always runs in another process, where a test cannot see it: expected an LLM or LLMEngine; or record it with SETTLED_TRACE",
        ),
        (partial(FrontEnd, DPAsyncMPClient), "always runs in another process"),
        (Client, "cannot attach to a"),
    ],
)
def test_only_an_engine_that_can_be_seen_is_attached_to(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        attaching.scheduler_and_config(make())


def test_a_mock_has_an_engine_core_in_every_engine_core() -> None:
    found = attaching.engine_core_of(Mock())
    assert isinstance(found, Mock)


def test_an_engine_that_says_nothing_is_not_taken_for_one_that_holds(pytester: pytest.Pytester) -> None:
    tests = """
from driver import serve

def test_two(settled):
    settled.sink()
    serve(settled.sink(), "settled")
"""
    result = run(pytester, tests)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*1 of 2 engines emitted nothing*"])


def test_what_a_fixture_does_after_the_test_is_not_judged(pytester: pytest.Pytester) -> None:
    tests = """
import pytest
from driver import serve

@pytest.fixture
def engine(settled):
    engine = serve(settled.sink(), "settled")
    engine.add_request("later", tuple(range(10)), max_tokens=12)
    engine.schedule()
    yield engine
    engine.abort("later")

def test_one(engine):
    assert engine
"""
    run(pytester, tests).assert_outcomes(passed=1)


STAND_IN = """
from types import SimpleNamespace
from settled.reference.engines.vllm import attaching

@pytest.fixture
def scheduler(monkeypatch):
    monkeypatch.setattr(attaching, "scheduler_and_config", lambda engine, vllm_config: (engine, vllm_config))
    monkeypatch.setattr(attaching, "attach", lambda engine, sink, **_: engine.attach(sink))
    return SimpleNamespace()
"""


def test_an_engine_that_refuses_to_be_watched_is_none_that_says_nothing(pytester: pytest.Pytester) -> None:
    """A test may expect that, or try another one."""
    body = """
def test_windows(settled, scheduler):
    def attach(sink):
        raise ValueError("the scheduler has 1 requests already")
    scheduler.attach = attach
    with pytest.raises(ValueError):
        settled.attach(scheduler)
    serve(settled.sink(), "settled")
"""
    run(pytester, STAND_IN + body).assert_outcomes(passed=1)


ATTACHED = """
def test_windows(settled, scheduler):
    def attach(sink):
        scheduler.sink = sink
        return SimpleNamespace(unexplained={unexplained!r}, end=lambda: None, detach=lambda: None)
    scheduler.attach = attach
    settled.attach(scheduler)
    serve({sink}, {discipline!r})
"""


def test_what_the_recorder_cannot_explain_is_told_with_what_may_be_the_cause(pytester: pytest.Pytester) -> None:
    """At the next event: a violation that comes after it may be none."""
    body = ATTACHED.format(unexplained="blocks [5] were taken for nobody", sink="scheduler.sink", discipline="optimistic")
    result = run(pytester, STAND_IN + body, "--settled-contract", "settled")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*settled: the recorder cannot explain *: blocks [[]5] were taken for nobody"])
    result.stdout.fnmatch_lines([">*serve(scheduler.sink, *"])
    result.stdout.no_fnmatch_line("*is violated*")


def test_a_scheduler_that_a_test_drives_deeper_than_declared_is_told_how_to_declare_it(pytester: pytest.Pytester) -> None:
    sink = "lambda event: scheduler.sink(replace(event, max_in_flight_steps=1) if isinstance(event, Config) else event)"
    body = "from dataclasses import replace\nfrom settled.model.events import Config\n" + ATTACHED.format(
        unexplained="", sink=sink, discipline="settled"
    )
    result = run(pytester, STAND_IN + body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*settled.attach(scheduler, max_in_flight_steps=N) declares how many steps a test keeps in flight*"])
