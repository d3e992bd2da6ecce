"""`settled show`, and the pages that other commands write with --html."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from settled.proofs.cli.main import cli

TRACES = Path(__file__).parents[1] / "data" / "traces"
VIOLATED, RIGHT = TRACES / "v0.25.1-min-spec-reject.ndjson", TRACES / "v0.33.0-min-spec-reject.ndjson"


def run(*arguments: str | Path, text: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=text)


def shown(path: Path) -> Any:
    """The data of a page."""
    return json.loads(path.read_text(encoding="utf-8").split('<script type="application/json" id="data">')[1].split("</script>")[0])


# ---- settled show ----------------------------------------------------------------------------------------------------


def test_in_the_terminal_the_first_violation_is_drawn_and_explained() -> None:
    result = run("show", VIOLATED)
    assert result.exit_code == 1
    assert "vllm 0.25.1, 93 events, contract stream_order" in result.output
    assert "rollback_resident violated 10 times" in result.output
    assert "step 3 needs" in result.output
    assert "65 tokens counted as computed, 5 were in flight, 60 were settled." in result.output
    assert result.output.endswith("violated (exit code 1)\n")


def test_what_holds_is_told_without_a_picture() -> None:
    result = run("show", RIGHT)
    assert result.exit_code == 0
    assert "rollback_resident holds" in result.output
    assert "schedule" not in result.output


def test_files_are_written_and_named(tmp_path: Path) -> None:
    html, svg, perfetto = tmp_path / "new folder" / "a.html", tmp_path / "a.svg", tmp_path / "a.json"
    result = run("show", VIOLATED, "--html", html, "--svg", svg, "--perfetto", perfetto)
    assert result.exit_code == 1
    assert [line for line in result.output.splitlines() if line.startswith("written: ")] == [
        f"written: {path}" for path in (html, perfetto, svg)
    ]
    assert len(shown(html)["violations"]) == 10
    assert ElementTree.fromstring(svg.read_bytes()).tag.endswith("svg")
    assert json.loads(perfetto.read_text(encoding="utf-8"))["traceEvents"]


def test_the_contract_is_that_which_was_asked_for(tmp_path: Path) -> None:
    trace = TRACES / "v0.25.1-depth3.ndjson"
    assert run("show", trace, "--html", tmp_path / "default.html").exit_code == 0
    assert run("show", trace, "--contract", "settled", "--html", tmp_path / "settled.html").exit_code == 1
    told = shown(tmp_path / "settled.html")
    assert told["contract"]["name"] == "settled"
    assert told["numViolations"] > 0 == shown(tmp_path / "default.html")["numViolations"]


def test_standard_input_is_a_trace_too(tmp_path: Path) -> None:
    result = run("show", "-", "--html", tmp_path / "a.html", text=VIOLATED.read_bytes())
    assert result.exit_code == 1
    assert shown(tmp_path / "a.html")["source"] == "<stdin>"


@pytest.mark.parametrize("text", [b"", b"{}\n", b'{"event": "add"}\n'])
def test_what_is_no_trace_is_bad_input(text: bytes, tmp_path: Path) -> None:
    result = run("show", "-", "--html", tmp_path / "a.html", text=text)
    assert result.exit_code == 2
    assert "settled show: <stdin>:1: " in result.output
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    result = run("show", tmp_path / "none.ndjson")
    assert result.exit_code == 2
    assert "No such file or directory: expected a readable file, or - for standard input" in result.output


# ---- pages of other commands -----------------------------------------------------------------------------------------


def test_check_writes_a_page_beside_its_verdict(tmp_path: Path) -> None:
    plain = run("check", VIOLATED)
    result = run("check", VIOLATED, "--html", tmp_path / "a.html")
    assert (result.exit_code, result.output) == (1, plain.output)
    told = shown(tmp_path / "a.html")
    assert {each["name"]: each["count"] for each in told["verdict"]["properties"]}["rollback_resident"] == 10
    assert run("check", "-", "--html", tmp_path / "b.html", text=b"").exit_code == 2


def test_refute_writes_what_breaks_and_what_is_right(tmp_path: Path) -> None:
    result = run("refute", "optimistic", "--property", "read_resident", "--replay", "--html", tmp_path)
    assert result.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"optimistic-read_resident.html", "optimistic-read_resident.right.html"}
    broken, right = (shown(tmp_path / f"optimistic-read_resident{end}.html") for end in ("", ".right"))
    assert [each["property"] for each in broken["violations"]] == ["read_resident"]
    assert right["violations"] == []


def test_fuzz_writes_a_page_for_each_finding(tmp_path: Path) -> None:
    result = run("fuzz", "--discipline", "undrained", "--runs", "5", "--html", tmp_path / "pages", "--corpus", tmp_path / "corpus")
    assert result.exit_code == 1
    pages = sorted((tmp_path / "pages").iterdir())
    assert [path.stem for path in pages] == sorted(path.stem for path in (tmp_path / "corpus").glob("*.json"))
    assert all(f"shown in {path}" in result.output for path in pages)
    assert all(shown(path)["violations"] for path in pages)


def test_hunt_writes_a_page_for_each_finding(tmp_path: Path) -> None:
    few = ("reference==optimistic", "--mix", "windows", "--workloads", "30", "--contract", "stream_order")
    result = run("hunt", *few, "--html", tmp_path / "pages", "--corpus", tmp_path / "corpus")
    assert result.exit_code == 1
    pages = sorted((tmp_path / "pages").iterdir())
    assert pages
    assert [path.stem for path in pages] == sorted(path.stem for path in (tmp_path / "corpus").glob("*.json"))
    assert all(shown(path)["violations"] or shown(path)["finding"] for path in pages)


# ---- files that are in each other's way --------------------------------------------------------------------------------


def test_nothing_is_written_over_the_trace_or_over_another_picture(tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    trace.write_bytes(VIOLATED.read_bytes())
    for command in ("show", "check"):
        result = run(command, trace, "--html", trace)
        assert result.exit_code == 2
        assert "would be written over the trace" in result.output
    result = run("show", trace, "--html", tmp_path / "x", "--svg", tmp_path / "." / "x")
    assert "would be written over another of the files" in result.output
    assert trace.read_bytes() == VIOLATED.read_bytes()
    assert not (tmp_path / "x").exists()


def test_a_page_of_check_shows_the_properties_that_were_asked_for(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("check", VIOLATED, "--property", "read_resident", "--html", page).exit_code == 0
    assert shown(page)["numViolations"] == 0
