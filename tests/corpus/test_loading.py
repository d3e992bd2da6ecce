"""Files of the corpus that are wrong: each is refused, with the place and what was expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from settled.proofs.corpus.loading import CorpusError, load
from settled.proofs.corpus.rows import Mark, Row, Script
from settled.proofs.corpus.running import Status, run_cases

CONFIG = {
    "event": "config",
    "schema": 1,
    "engine": "script",
    "num_blocks": 2,
    "max_in_flight_steps": 2,
    "max_batched_tokens": 16,
    "num_draft_tokens": 0,
    "prefix_caching": False,
    "kv_consumer": True,
    "groups": [{"kind": "sliding_window", "block_size": 4, "window": 4}],
}
ADD = {"event": "add", "request": "A", "prompt_tokens": 5}
END = {"event": "end", "idle": True}


def schedule(step: int, start: int, tokens: int) -> dict[str, Any]:
    entry = {"request": "A", "start": start, "tokens": tokens, "drafts": 0, "new_blocks": [[]], "resumed": False}
    return {"event": "schedule", "step": step, "requests": [entry]}


def process(step: int, sampled: int) -> dict[str, Any]:
    return {"event": "process", "step": step, "requests": [{"request": "A", "sampled": sampled, "rejected": 0}]}


FINISH = {"event": "finish", "request": "A", "reason": "abort"}
EVENTS = [CONFIG, ADD, schedule(0, 0, 5), process(0, 1), schedule(1, 5, 1), process(1, 1), FINISH, END]
SCENARIO = {
    "name": "a",
    "mapping": "as it is",
    "contract": "settled",
    "property": "read_resident",
    "broken": {"discipline": "ceil"},
    "repaired": {"discipline": "settled"},
    "events": EVENTS,
}
CASE = {"id": "x#1", "title": "t", "numbers": "-", "scenarios": [SCENARIO]}
INDEX = [{"id": f"x#{number}", "family": "F1", "catchable": mark, "cause": "-"} for number, mark in ((1, "Y (bound)"), (2, "P"), (3, "-"))]
SCOPE = {"families": ["F1"], "not_encoded": {"x#2": "not public"}}


def corpus(place: Path, *, index: Any = INDEX, scope: Any = SCOPE, case: Any = CASE) -> Path:
    for name, content in (("index.json", index), ("scope.json", scope), ("one.json", case)):
        (place / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return place


def with_scenario(**changes: Any) -> dict[str, Any]:
    return {**CASE, "scenarios": [{**SCENARIO, **changes}]}


def test_a_corpus_is_loaded_and_run(tmp_path: Path) -> None:
    loaded = load(corpus(tmp_path))
    assert [case.row.mark for case in loaded.cases] == [Mark.CATCHABLE, Mark.PARTLY, Mark.NOT_CATCHABLE]
    assert [outcome.status for outcome in run_cases(loaded.cases)] == [Status.CAUGHT, Status.NOT_ENCODED, Status.NOT_CATCHABLE]
    (scenario,) = loaded.cases[0].scenarios
    assert isinstance(scenario.broken, Script)
    assert scenario.broken.choice.discipline.name == "ceil"


def test_rows_of_families_not_taken_up_need_no_reason(tmp_path: Path) -> None:
    index = [*INDEX, {"id": "x#4", "family": "F3", "catchable": "Y", "cause": "-"}]
    assert load(corpus(tmp_path, index=index)).cases[3].reason == "family F3 is not taken up yet"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"index": "[{"}, "index.json: Input data was truncated"),
        ({"index": [{"id": "x#1", "family": "F1", "catchable": "Y"}]}, "missing required field `cause`"),
        ({"index": [*INDEX, INDEX[0]]}, "index.json: row 'x#1' stands there twice"),
        ({"index": INDEX[1:]}, "one.json: row 'x#1' is not in index.json"),
        ({"scope": {**SCOPE, "not_encoded": {}}}, "row 'x#2' of family F1 is partly catchable, but has neither a file nor a reason"),
        ({"scope": {**SCOPE, "not_encoded": {"x#9": "gone"}}}, "not_encoded: row 'x#9' is not in index.json"),
        ({"scope": {**SCOPE, "not_encoded": {"x#1": "no", "x#2": "no"}}}, "not_encoded: row 'x#1' has scenarios in one.json"),
        ({"case": {**CASE, "more": 1}}, "one.json: Object contains unknown field `more`"),
        ({"case": {**CASE, "scenarios": []}}, "one.json: scenarios: expected at least one"),
        ({"case": {**CASE, "scenarios": [SCENARIO, SCENARIO]}}, "scenarios: 'a' stands there twice"),
        ({"case": with_scenario(property="read_resistant")}, "Invalid enum value 'read_resistant' - at `$.scenarios[0].property`"),
        ({"case": with_scenario(contract="stream")}, "Invalid enum value 'stream' - at `$.scenarios[0].contract`"),
        (
            {"case": with_scenario(broken={"discipline": "sloppy"})},
            "scenario 'a': broken: unknown discipline 'sloppy': expected one of settled,",
        ),
        ({"case": with_scenario(broken={"rows": "lost"})}, "Invalid enum value 'lost' - at `$.scenarios[0].broken.rows`"),
        ({"case": with_scenario(broken={})}, "broken and repaired differ in nothing: expected exactly one field"),
        (
            {"case": with_scenario(broken={"discipline": "ceil", "rows": "kept"})},
            "differ in ceil and rows kept: expected exactly one field",
        ),
        ({"case": with_scenario(repaired={"discipline": "optimistic"})}, "repaired: optimistic: expected a right choice"),
        ({"case": with_scenario(repaired={"discipline": "ceil", "rows": "kept"})}, "repaired: ceil, rows kept: expected a right choice"),
        ({"case": with_scenario(broken={"retained": -1})}, "broken: retained is -1: expected at least 0 tokens"),
        ({"case": with_scenario(over_read=-1)}, "over_read is -1: expected at least 0 tokens"),
        ({"case": with_scenario(broken=None)}, "expected `events`, `broken` and `repaired`, or `recorded`"),
        ({"case": with_scenario(events=EVENTS[1:])}, "events[0]: expected the config first"),
        ({"case": with_scenario(events=[CONFIG, {"event": "x_note"}])}, "events[1]: expected the config first, then events of schema v1"),
        ({"case": with_scenario(events=[CONFIG, {"event": "ad"}])}, "events[1]: unknown event 'ad'; expected one of config,"),
        ({"case": with_scenario(events=[CONFIG, {"event": "add", "request": "A"}])}, "events[1]: add: missing key `prompt_tokens`"),
        (
            {"case": with_scenario(dummy_runs=[{"row_of": "A", "start": 0, "tokens": 1}])},
            "missing required field `after_step` - at `$.scenarios[0].dummy_runs[0]`",
        ),
        (
            {"case": with_scenario(dummy_runs=[{"row_of": "A", "start": 0, "tokens": 0, "after_step": 0}])},
            "tokens 0: expected at least 0 and 1",
        ),
        (
            {"case": with_scenario(recorded={"broken_choice": "", "repaired_choice": "", "broken": EVENTS, "repaired": EVENTS})},
            "stands alone",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(CorpusError) as raised:
        load(corpus(tmp_path, **changes))
    assert expected in str(raised.value)


def recorded(broken: list[dict[str, Any]], repaired: list[dict[str, Any]]) -> dict[str, Any]:
    kept = {key: value for key, value in SCENARIO.items() if key not in ("broken", "repaired", "events")}
    told = {"broken_choice": "b", "repaired_choice": "r", "broken": broken, "repaired": repaired}
    return {**CASE, "scenarios": [{**kept, "recorded": told}]}


def test_recorded_twins_differ_in_counters_alone(tmp_path: Path) -> None:
    wrong = {**process(0, 1), "requests": [{**process(0, 1)["requests"][0], "counters": [5, 1, 0]}]}
    counted = [*EVENTS[:3], wrong, *EVENTS[4:]]
    assert load(corpus(tmp_path, case=recorded(counted, EVENTS))).cases[0].scenarios
    for repaired in (counted, [*EVENTS[:3], process(0, 0), *EVENTS[4:]]):
        with pytest.raises(CorpusError, match="must differ, and in `counters` alone"):
            load(corpus(tmp_path, case=recorded(counted, repaired)))


def test_two_files_of_one_row(tmp_path: Path) -> None:
    corpus(tmp_path)
    (tmp_path / "two.json").write_text(json.dumps(CASE))
    with pytest.raises(CorpusError, match=r"two\.json: row 'x#1' has a file already: one\.json"):
        load(tmp_path)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"index\.json: No such file or directory: expected a readable file in"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"events": [CONFIG, ADD, schedule(0, 0, 9), END]},
            "broken: cannot be run: event 2 (schedule): request 'A': 9 tokens without drafts",
        ),
        (
            {"broken": {"rows": "kept"}, "dummy_runs": [{"row_of": "A", "start": 0, "tokens": 1, "after_step": 7}]},
            "dummy run over the row of 'A'",
        ),
        ({"events": [{**CONFIG, "max_in_flight_steps": 0}, *EVENTS[1:]]}, "max_in_flight_steps must be at least 1"),
        (
            {"events": [{**CONFIG, "groups": [{"kind": "full", "block_size": 4}]}, *EVENTS[1:]], "over_read": 4},
            "a kernel reads below a window, but the group's kind is 'full'",
        ),
    ],
)
def test_a_scenario_that_cannot_be_run(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(CorpusError) as raised:
        run_cases(load(corpus(tmp_path, case=with_scenario(**changes))).cases)
    assert "one.json: scenario 'a'" in str(raised.value)
    assert expected in str(raised.value)


def test_marks_are_read_from_their_sign() -> None:
    marks = {sign: Row("x", "F1", sign, "-").mark for sign in ("Y", "Y (liveness)", "P", "-", "N")}
    assert marks == {
        "Y": Mark.CATCHABLE,
        "Y (liveness)": Mark.CATCHABLE,
        "P": Mark.PARTLY,
        "-": Mark.NOT_CATCHABLE,
        "N": Mark.NOT_CATCHABLE,
    }
