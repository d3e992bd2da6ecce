"""Summaries for CI systems and issue trackers: JUnit XML as they read it, Markdown in which nothing from a trace is markup."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from settled.model.properties import Property
from settled.proofs.cli.main import cli
from settled.proofs.hunting.campaign import Judged, Plan, Progress
from settled.proofs.report.junit import junit_text
from settled.proofs.report.markdown import CHARACTERS_MAX, TRACE_LINES_MAX, markdown_text
from settled.proofs.report.summaries import suite_of_hunt
from settled.proofs.report.summary import Case, Outcome, Suite, SummaryFiles

ROOT = Path(__file__).parents[2]
WRONG = ROOT / "tests/data/traces/v0.24.0-min-spec-reject.ndjson"
RIGHT = ROOT / "tests/data/traces/v0.26.0-min-spec-reject.ndjson"
HOSTILE = "A]]> <script>&amp; | `x` ```\n# head @someone #1 \u202e\x1b[31m\x00 ![i](j)"

COMMANDS = {
    "check": ["check", str(WRONG)],
    "hunt": ["hunt", "reference==optimistic", "--mix", "windows", "--workloads", "8", "--seed", "4"],
    "fuzz": ["fuzz", "--discipline", "optimistic", "--runs", "4", "--seed", "1"],
    "clean": ["hunt", "reference", "--mix", "windows", "--workloads", "3"],
    "releases": ["hunt", "reference", "--releases", "optimistic,settled", "--mix", "windows", "--workloads", "8", "--seed", "6"],
}
CODES = {name: 0 if name == "clean" else 1 for name in COMMANDS}
SLOW = {"releases"}
RUNS = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in COMMANDS]


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[ElementTree.Element, str]]:
    """Both summaries of a command, which is run once."""
    made: dict[str, tuple[ElementTree.Element, str]] = {}

    def of(name: str) -> tuple[ElementTree.Element, str]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = run(COMMANDS[name], folder, code=CODES[name])
        return made[name]

    return of


def run(arguments: list[str], folder: Path, *, code: int) -> tuple[ElementTree.Element, str]:
    junit, markdown = folder / "reports" / "junit.xml", folder / "reports" / "summary.md"
    result = CliRunner().invoke(cli, [*arguments, "--junit", str(junit), "--markdown", str(markdown)])
    assert result.exit_code == code, result.output
    return ElementTree.fromstring(junit.read_bytes()), markdown.read_text(encoding="utf-8")


# ---- JUnit ---------------------------------------------------------------------------------------------------------------------------

# What the schemas of Jenkins and of Ant, and the readers of GitLab and Azure, agree upon: element → attributes it must have; it may have;
# elements within.
GRAMMAR: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "tests", "failures", "errors", "skipped", "time"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "time"}, {"skipped"}, {"testcase", "system-out"}),
    "testcase": ({"classname", "name", "time"}, set(), {"failure", "error", "skipped"}),
    "failure": ({"message", "type"}, set(), set()),
    "error": ({"message", "type"}, set(), set()),
    "skipped": ({"message"}, set(), set()),
    "system-out": (set(), set(), set()),
}


def check_grammar(element: ElementTree.Element) -> None:
    must, may, within = GRAMMAR[element.tag]
    assert must <= set(element.attrib) <= must | may, element.attrib
    assert {child.tag for child in element} <= within
    if element.tag == "testcase":
        assert len(element) <= 1
    if "time" in element.attrib:
        assert re.fullmatch(r"\d+\.\d{3}", element.attrib["time"])
    if "tests" in element.attrib:
        found = {name: len(list(element.iter(tag))) for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"))}
        assert {name: int(element.attrib[name]) for name in found} == found
        assert int(element.attrib["skipped"]) == len(list(element.iter("skipped")))
    for child in element:
        check_grammar(child)


@pytest.mark.parametrize("name", RUNS)
def test_junit_is_as_ci_systems_read_it(name: str, summaries: Callable[[str], tuple[ElementTree.Element, str]]) -> None:
    root, _ = summaries(name)
    assert root.tag == "testsuites"
    check_grammar(root)
    names = [(case.attrib["classname"], case.attrib["name"]) for case in root.iter("testcase")]
    assert len(set(names)) == len(names), "a CI system takes two cases of one name for one"
    assert bool(list(root.iter("failure"))) == bool(CODES[name])
    for failure in root.iter("failure"):
        assert re.search(r"^settled \w+ ", failure.text or "", re.MULTILINE), "a command shows it again"


def test_each_property_of_a_trace_is_a_case(summaries: Callable[[str], tuple[ElementTree.Element, str]]) -> None:
    root, _ = summaries("check")
    (suite,) = root
    told = {case.attrib["name"]: [child.tag for child in case] for case in suite.iter("testcase")}
    assert told == {
        "read_resident": [],
        "rollback_resident (released_before_schedule[window])": ["failure"],
        "write_owned": [],
        "single_owner": [],
        "counters_symmetric": [],
        "held_bounded": ["skipped"],  # the trace records no cap: it has not passed
    }
    (failure,) = root.iter("failure")
    assert failure.attrib["message"].startswith("line 10: step 3 of request A reads tokens 30 to 31 ")
    assert "10 step 3 needs" in (failure.text or "")


def test_of_a_hunt_every_property_is_told(summaries: Callable[[str], tuple[ElementTree.Element, str]]) -> None:
    root, _ = summaries("clean")
    told = {(case.attrib["classname"], case.attrib["name"]) for case in root.iter("testcase")}
    assert told == {("reference settled.stream_order", each.value) for each in Property}


def test_what_is_violated_under_two_contracts_holds_under_neither() -> None:
    """A finding is told under the contract of the workload that showed it first, and counted under both."""
    progress = Progress("reference optimistic")
    for contract, verdict in (("settled", "holds"), ("settled", "violated"), ("stream_order", "holds")):
        progress.verdicts[Judged(contract, "rollback_resident", verdict)] += 1
    plan = Plan(engine="reference", mix="windows", properties=("rollback_resident", "read_resident"))
    suite = suite_of_hunt(plan, progress, {})
    told = {(case.contract, case.property_name): case.outcome for case in suite.cases}
    assert told == {
        ("settled", "read_resident"): Outcome.SKIPPED,
        ("settled", "rollback_resident"): Outcome.FAILED,
        ("stream_order", "read_resident"): Outcome.SKIPPED,
        ("stream_order", "rollback_resident"): Outcome.PASSED,
    }
    assert "violated in 1 workload, " in markdown_text([suite])


def test_a_hunt_that_breaks_off_is_an_error_and_keeps_what_it_knows() -> None:
    suite = suite_of_hunt(Plan(engine="reference", mix="all"), Progress("reference settled"), {}, "the harness\x00 failed\x1b")
    assert [(case.outcome, case.told) for case in suite.cases] == [(Outcome.ERROR, "the harness\x00 failed\x1b")]
    assert "a run failed" in markdown_text([suite])
    root = ElementTree.fromstring(junit_text([suite]))
    check_grammar(root)
    assert root.attrib["errors"] == "1"


def test_what_nobody_asked_for_is_not_made(tmp_path: Path) -> None:
    def never() -> list[Suite]:
        raise AssertionError("pictures and traces cost time")

    SummaryFiles().write(never)


@pytest.mark.parametrize("command", ["hunt", "fuzz", "releases"])
def test_what_cannot_be_written_is_told_before_a_run_and_not_after_it(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, [*COMMANDS[command], "--junit", str(tmp_path / "file" / "junit.xml")])
    assert isinstance(result.exception, OSError)
    assert result.output == ""


@pytest.mark.parametrize("option", ["--junit", "--markdown", "--html"])
def test_a_link_stays_one_and_what_it_names_is_written(option: str, tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    for _ in range(2):  # where there is no such file yet, and where there is one
        assert CliRunner().invoke(cli, ["check", str(WRONG), option, str(link)]).exit_code == 1
        assert link.is_symlink()
        assert "rollback_resident" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_a_pipe_is_written_to(option: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert CliRunner().invoke(cli, ["check", str(WRONG), option, str(pipe)]).exit_code == 1
        assert pipe.is_fifo()
        assert b"rollback_resident" in os.read(reader, 1 << 16)
    finally:
        os.close(reader)


def test_one_case_of_fuzz_has_no_summary() -> None:
    result = CliRunner().invoke(cli, ["fuzz", "--case", "00", "--junit", "junit.xml"])
    assert result.exit_code == 2
    assert "--case is one run" in result.output


# ---- Markdown ------------------------------------------------------------------------------------------------------------------------


def hostile_trace(folder: Path) -> Path:
    """The recorded violation, with a request whose name is all that may go wrong."""
    path = folder / "trace.ndjson"
    name = json.dumps(HOSTILE)[1:-1].replace("\\", "\\\\")
    path.write_text(re.sub(r'("request": ?)"A"', rf'\1"{name}"', WRONG.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def texts_outside_code(markdown: str) -> list[str]:
    """What a tracker would look at for markup, mentions, numbers."""
    texts = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "html_block":
            texts.append(token.content)
        texts += [child.content for child in token.children or () if child.type != "code_inline"]
    return texts


def test_nothing_from_a_trace_is_markup(tmp_path: Path) -> None:
    root, markdown = run(["check", str(hostile_trace(tmp_path))], tmp_path, code=1)
    check_grammar(root)
    (failure,) = root.iter("failure")
    assert "<script>&amp; | `x` ```\\n# head @someone" in failure.attrib["message"]
    assert "<script>" in markdown
    outside = "\n".join(texts_outside_code(markdown))
    assert not re.search(r"script|someone|head|#1|!\[|\x1b|\x00|\u202e", outside), outside
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", markdown)


def test_code_of_any_kind_stays_code() -> None:
    case = Case(
        contract="`` ` @a",
        property_name="|@b|",
        outcome=Outcome.FAILED,
        told="```` @c",
        cause="`@d",
        picture="@e\n~~~\n```\n@i",
        trace=["`````@f"],
    )
    outside = texts_outside_code(markdown_text([Suite(subject="`@g`", done="@h\n@i", cases=[case])]))
    assert not [text for text in outside if "@" in text], outside


def test_every_text_in_junit_is_one_that_xml_can_hold() -> None:
    wrong = "a\x00\ud800\x1b"
    case = Case(contract=wrong, property_name=wrong, outcome=Outcome.FAILED, told=wrong, cause=wrong, picture=wrong, commands=[wrong])
    root = ElementTree.fromstring(junit_text([Suite(subject=wrong, done=wrong, cases=[case])]).encode())
    assert [element.attrib["type"] for element in root.iter("failure")] == [r"a\x00\ud800\x1b"]


def test_a_bar_is_escaped_in_tables_alone() -> None:
    """Code shows a backslash, but in the cell of a table, where it is taken away."""
    case = Case(contract="settled", property_name="read_resident", outcome=Outcome.FAILED, told="so", cause="a|b")
    text = markdown_text([Suite(subject="my|engine", done="much", cases=[case])])
    assert "## `my|engine`: `read_resident`" in text
    assert "- cause: `a|b`" in text
    table = markdown_text([Suite(subject="e", done="d", cases=[replace(case, contract="c|d")])])
    assert r"| property | `c\|d` |" in table


@pytest.mark.parametrize(("count", "told"), [(0, "0 violations"), (1, "1 violation"), (2, "2 violations")])
def test_a_run_that_failed_says_what_it_found_before(count: int, told: str) -> None:
    found = Case(contract="settled", property_name="read_resident", outcome=Outcome.FAILED, told="so")
    failed = Case(contract="settled", property_name="harness", outcome=Outcome.ERROR, told="so")
    text = markdown_text([Suite(subject="e", done="d", cases=[*[found] * count, failed])])
    assert text.startswith(f"# settled: a run failed; {told}\n")


def test_a_finding_is_counted_once_under_however_many_contracts() -> None:
    one = Case(contract="settled", property_name="read_resident", outcome=Outcome.FAILED, told="so", cause="freed[window]")
    again = replace(one, contract="stream_order", cause="")
    assert markdown_text([Suite(subject="e", done="d", cases=[one, again])]).startswith("# settled: 1 violation\n")


@pytest.mark.parametrize("name", [param for param in RUNS if param.values[0] != "clean"])
def test_a_finding_has_all_that_a_report_needs(name: str, summaries: Callable[[str], tuple[ElementTree.Element, str]]) -> None:
    root, markdown = summaries(name)
    _, *findings = re.split(r"^## ", markdown, flags=re.MULTILINE)
    assert len(findings) == len(list(root.iter("failure")))
    for finding in findings:
        assert re.search(r"^```text\nline \d+: ", finding, re.MULTILINE), "what"
        assert re.search(r"^- `(settled|stream_order)`: ", finding, re.MULTILINE), "under which contract"
        assert re.search(r"^line +event ", finding, re.MULTILINE), "the picture"
        assert re.search(r"^```sh\nsettled (check|hunt|fuzz) ", finding, re.MULTILINE), "how to see it again"
        if name != "check":
            assert re.search(r'^```json\n\{"event":"config"', finding, re.MULTILINE), "the trace"


def test_a_text_is_never_longer_than_a_tracker_takes() -> None:
    cases = [
        Case(
            contract="settled", property_name="read_resident", outcome=Outcome.FAILED, cause=str(number), told="so", trace=["x" * 90] * 900
        )
        for number in range(80)
    ]
    text = markdown_text([Suite(subject="vllm", done="much", cases=cases)])
    assert len(text) < CHARACTERS_MAX + 5_000
    assert "900 lines, of which the first 200 are here" in text
    assert TRACE_LINES_MAX == 200
    assert re.search(r"^7\d more, for which there is no room here:$", text, re.MULTILINE)


def test_nothing_violated_says_so(summaries: Callable[[str], tuple[ElementTree.Element, str]], tmp_path: Path) -> None:
    assert summaries("clean")[1].startswith("# settled: nothing is violated\n")
    assert run(["check", str(RIGHT)], tmp_path, code=0)[1].startswith("# settled: nothing is violated\n")
