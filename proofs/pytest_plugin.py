"""The pytest plugin (entry point `pytest11`): options, a marker, and the fixture `settled`, which watches an engine inside a test.

It is imported at every start of pytest where settled is installed, so it imports nothing but pytest until a test asks for the fixture.
It asserts nothing, and pytest need not rewrite it: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from settled.proofs.pytesting.watch import Watch

MARKER = "settled"
VERDICT = "settled_verdict"  # of each watched test: a property of its report, which xdist and JUnit files hand on
VIOLATED, HOLDS, UNKNOWN = "violated", "holds", "unknown"
_WORST_FIRST = (VIOLATED, HOLDS, UNKNOWN)  # none is known before the end of a test, but for a violation
PIPE_COLUMNS = 160  # as reports of `settled` are wide where there is no terminal
_COLUMNS = "settled_columns"  # how wide the terminal is, told to xdist's workers

_watch: pytest.StashKey[Watch] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("settled", "settled: is a KV-cache block freed too early?")
    group.addoption(
        "--settled-contract",
        metavar="NAME",
        help="What makes a free safe: settled, stream_order or event. Default: settled with a KV consumer, stream_order without.",
    )
    group.addoption(
        "--settled-property",
        dest="settled_properties",
        action="append",
        metavar="NAME",
        help="Judge this property only; may be given several times. Default: all.",
    )
    group.addoption("--settled-traces", metavar="DIR", help="Where the traces of failed tests are kept. Default: settled-traces.")
    parser.addini("settled_contract", "As --settled-contract.")
    parser.addini("settled_properties", "As --settled-property, a list.", type="args")
    parser.addini("settled_traces", "As --settled-traces, from the root directory.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(contract=None, properties=None): how the fixture `settled` judges this test; goes before options and configuration",
    )
    option = config.option
    if option.settled_contract or option.settled_properties or config.getini("settled_contract") or config.getini("settled_properties"):
        from settled.proofs.pytesting.asked import WrongNameError, asked_of_session

        try:
            asked_of_session(config)
        except WrongNameError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.fixture
def settled(request: pytest.FixtureRequest) -> Iterator[Watch]:
    """Watches engines: `settled.attach(engine)` for vLLM's, `sink=settled.sink()` for one that emits events of schema version 1.

    The test fails at the first violation, also if something between swallows the exception, and if nothing was judged.
    """
    from settled.proofs.pytesting.asked import WrongNameError, asked_of
    from settled.proofs.pytesting.watch import Watch

    item, config = request.node, request.config
    try:
        asked = asked_of(item, columns=getattr(config, "workerinput", {}).get(_COLUMNS) or _columns_here())
    except WrongNameError as error:
        pytest.fail(str(error), pytrace=False)
    watch = Watch(asked)
    item.stash[_watch] = watch
    yield watch
    del item.stash[_watch]
    watch.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marker that has no effect would look like a check."""
    if any(mark.name == MARKER for mark in item.own_markers) and MARKER not in getattr(item, "fixturenames", ()):
        pytest.fail(f"the test is marked {MARKER!r} and does not use the fixture {MARKER!r}: nothing would be watched", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """The verdict belongs to the test itself, not to its teardown."""
    try:
        yield
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        watch = item.stash.get(_watch, None)
        if watch is not None:
            watch.explain(error)
        raise
    watch = item.stash.get(_watch, None)
    if watch is not None:
        watch.conclude()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    watch = item.stash.get(_watch, None)
    if watch is None or call.when == "teardown":
        return (yield)
    watch.shorten_tracebacks()
    if call.when == "call" or watch.verdict == VIOLATED:  # a fixture may drive the engine, and a setup that ends otherwise watched nothing
        others = [each for each in item.user_properties if each[0] != VERDICT]  # of a subtest of it, or of an earlier try
        item.user_properties[:] = [*others, (VERDICT, watch.verdict)]
    report = yield
    unsaid = watch.unsaid(call.excinfo)
    if unsaid and report.skipped and not hasattr(report, "wasxfail"):  # unittest's own skip
        report.outcome, report.longrepr = "failed", unsaid
    elif report.failed:
        report.sections += [("settled", unsaid)] if unsaid else watch.sections()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    of_tests: dict[str, set[object]] = {}  # a test has several reports if it has subtests, or is tried again
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) in ("setup", "call"):
                for name, value in report.user_properties:
                    if name == VERDICT:
                        of_tests.setdefault(report.nodeid, set()).add(value)
    if of_tests:
        verdicts = Counter(next((each for each in _WORST_FIRST if each in seen), UNKNOWN) for seen in of_tests.values())
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        terminalreporter.write_line(f"settled: {len(of_tests)} watched: {told}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: its workers have no terminal, and some 80 COLUMNS in their environment; pictures are to fit into what this process has."""
    node.workerinput[_COLUMNS] = _columns_here()


def _columns_here() -> int:
    return shutil.get_terminal_size((PIPE_COLUMNS, 0)).columns
