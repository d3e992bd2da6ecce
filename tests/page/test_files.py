"""Perfetto's JSON, SVG images, and how files are written."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hostile import MARKUP, hostile_trace
from traces import long_trace, recorded

from settled.model.events import Allocate, Event, Process
from settled.proofs.showing.data import About
from settled.proofs.showing.perfetto import perfetto_of
from settled.proofs.showing.svg import CHARACTER, EVENTS_MAX, svg_of
from settled.proofs.showing.timeline import timeline_of
from settled.proofs.showing.writing import Files, Pages, write_pictures

NAMES = ("v0.25.1-connector-overwrite", "v0.25.1-min-spec-reject", "v0.33.0-conn-apc-spec", "v0.33.0-preempt")
SVG = "{http://www.w3.org/2000/svg}"


def traced(name: str) -> dict[str, Any]:
    told = json.loads(perfetto_of(timeline_of(recorded(name), name)))
    assert isinstance(told, dict)
    return told


# ---- Perfetto --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_slices_of_a_thread_do_not_overlap(name: str) -> None:
    """Perfetto drops what is nested wrongly."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for each in traced(name)["traceEvents"]:
        if each["ph"] == "X":
            assert each["dur"] > 0
            threads.setdefault((each["pid"], each["tid"]), []).append((each["ts"], each["ts"] + each["dur"]))
    assert len(threads) > 5
    for spans in threads.values():
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(spans)))


@pytest.mark.parametrize("name", NAMES)
def test_each_processed_step_has_a_flow_within_its_two_slices(name: str) -> None:
    told = traced(name)["traceEvents"]
    slices = [each for each in told if each["ph"] == "X" and each["pid"] == each["tid"] == 1]
    ends = {sign: {each["id"]: each["ts"] for each in told if each["ph"] == sign} for sign in "sf"}
    assert ends["s"].keys() == ends["f"].keys() != set()
    for sign, word in (("s", "schedule"), ("f", "process")):
        for at in ends[sign].values():
            (around,) = [each for each in slices if each["ts"] <= at < each["ts"] + each["dur"]]
            assert around["name"].startswith(word)


def test_processes_and_threads_are_named_as_the_lanes() -> None:
    told = traced("v0.25.1-connector-overwrite")["traceEvents"]
    named = [each["args"]["name"] for each in told if each["ph"] == "M" and "name" in each["args"]]
    assert named[:3] == ["host", "device streams", "blocks"]
    assert {"scheduler", "compute, in flight 1", "compute, in flight 2", "transfer 0", "transfer 1", "block 5"} <= set(named)


def test_each_violation_is_an_instant_of_the_thread_that_is_named_after_them() -> None:
    """Perfetto puts an instant of scope g on another track, and the named one stays empty."""
    events = traced("v0.25.1-min-spec-reject")["traceEvents"]
    told = [each for each in events if each["ph"] == "i"]
    assert len(told) == 10
    (thread,) = [each for each in events if each["name"] == "thread_name" and each["args"]["name"] == "violations"]
    assert {(each["s"], each["pid"], each["tid"]) for each in told} == {("t", thread["pid"], thread["tid"])}
    assert (told[0]["name"], told[0]["ts"]) == ("rollback_resident violated", 9000)
    assert told[0]["args"]["sentence"].startswith("line 10: step 3 of request A reads tokens 30 to 31")


def test_perfetto_takes_names_as_they_are() -> None:
    told = json.loads(perfetto_of(timeline_of(hostile_trace(), "hostile")))
    assert f"{MARKUP} [1], {MARKUP}" in {each["name"].split("a\\x1b")[0] for each in told["traceEvents"] if each["ph"] == "X"}


# ---- SVG -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_well_formed_and_shows_the_violation(name: str) -> None:
    timeline = timeline_of(recorded(name), name)
    root = ElementTree.fromstring(svg_of(timeline).encode())
    assert root.tag == f"{SVG}svg"
    lost = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "lost"]
    assert len(lost) == bool(timeline.violations)
    marks = [each for each in root.iter(f"{SVG}line") if each.get("class") == "mark"]
    assert len(marks) == bool(timeline.violations)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for each in root.iter(f"{SVG}rect"):
        assert float(each.get("x", "")) + float(each.get("width", "")) <= width
        assert float(each.get("y", "")) + float(each.get("height", "")) <= height


def test_an_image_says_what_is_violated_and_why() -> None:
    root = ElementTree.fromstring(svg_of(timeline_of(recorded("v0.25.1-min-spec-reject"), "recorded")).encode())
    texts = [each.text or "" for each in root.iter(f"{SVG}text")]
    assert texts[0] == "vllm 0.25.1: rollback_resident violated"
    assert " ".join(texts[1:3]).startswith("line 10: step 3 of request A reads tokens 30 to 31")
    assert "step 3 reads it" in texts


def test_an_image_breaks_long_lines_and_keeps_texts_apart() -> None:
    """A long name neither leaves the image nor covers what stands beside it in a row, where several hold a block or it is violated."""
    root = ElementTree.fromstring(svg_of(timeline_of(hostile_trace(), "hostile")).encode())
    width = float(root.get("width", ""))
    rows: dict[str, list[tuple[float, float]]] = {}
    for each in root.iter(f"{SVG}text"):
        sort, begin, wide = each.get("class"), float(each.get("x", "")), len(each.text or "") * CHARACTER
        if sort in (None, "title", "line", "bad"):
            assert begin + wide <= width + 1
            rows.setdefault(each.get("y", ""), []).append((begin, begin + wide))
    assert max(map(len, rows.values())) > 1
    for texts in rows.values():
        assert all(one[1] <= other[0] + CHARACTER for one, other in pairwise(sorted(texts)))


def test_an_image_says_who_got_the_block_and_of_which_group() -> None:
    root = ElementTree.fromstring(svg_of(timeline_of(recorded("v0.25.1-connector-overwrite"), "recorded")).encode())
    texts = [(each.get("y"), each.text) for each in root.iter(f"{SVG}text")]
    (row,) = [y for y, text in texts if text == "step 1 reads it"]
    assert {text for y, text in texts if y == row} == {"A g1[0]", "step 1 reads it", "A g0[5]"}


def test_an_image_of_an_undecided_trace_says_why() -> None:
    root = ElementTree.fromstring(svg_of(timeline_of(recorded("v0.33.0-swa-a")[:-1], "recorded")).encode())
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts[:2] == ["vllm 0.33.0: unknown", "the trace has no `end` event: its tail was not judged."]


def test_an_image_escapes_what_a_trace_says() -> None:
    text = svg_of(timeline_of(hostile_trace(), "hostile"))
    root = ElementTree.fromstring(text.encode())
    assert MARKUP in "".join(root.itertext())
    assert not [each for each in root.iter() if each.tag not in {SVG + tag for tag in ("svg", "style", "title", "rect", "text", "line")}]


def test_of_a_long_trace_an_image_shows_the_neighbourhood() -> None:
    root = ElementTree.fromstring(svg_of(timeline_of(long_trace(600), "long")).encode())
    lines = [each.text for each in root.iter(f"{SVG}text") if (each.text or "").isdigit()]
    assert 0 < len(lines) <= EVENTS_MAX


# ---- files -----------------------------------------------------------------------------------------------------------


def test_what_is_wanted_is_written_and_nothing_else(tmp_path: Path) -> None:
    timeline = timeline_of(recorded("v0.25.1-min-spec-reject"), "recorded")
    wanted = Files(html=tmp_path / "new" / "page.html", svg=tmp_path / "image.svg")
    assert write_pictures(timeline, wanted) == [tmp_path / "new" / "page.html", tmp_path / "image.svg"]
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"page.html", "image.svg"}
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_finding_without_a_trace_has_no_page(tmp_path: Path) -> None:
    assert Pages(tmp_path).write("nothing", [], None, About(sentence="the engine did not start")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_contradicts_itself_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    events: list[Event] = [event for _, event in recorded("v0.33.0-min-spec-reject")[:9]]
    events.append(Process(step=99, requests=()))
    path = Pages(tmp_path).write("fault", events, None, About("engine_fault", "KeyError", "the engine failed."))
    assert path is not None
    data = json.loads(path.read_text(encoding="utf-8").split('<script type="application/json" id="data">')[1].split("</script>")[0])
    assert len(data["events"]["lines"]) == 9
    assert data["finding"]["sentence"].startswith("the engine failed. The trace goes on with line 10: process: step 99 is not unprocessed")
    assert any(isinstance(event, Allocate) for event in events)
