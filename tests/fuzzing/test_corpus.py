"""The corpus folder: what is written reads back, runs again, and is judged by `settled check`; damage is named."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from settled.model.disciplines import OPTIMISTIC, RIGHT, VLLM
from settled.model.properties import Contract
from settled.proofs.cli.main import cli
from settled.proofs.folder import CorpusError
from settled.proofs.fuzzing.corpus import Corpus, Entry
from settled.proofs.fuzzing.running import run_case
from settled.proofs.watching import Key
from settled.reference.decisions import Decision
from settled.reference.decoder import ConfigSpace, decode, with_decisions

KEY = Key("read_resident", "freed[window]", "sliding_window")


@pytest.fixture
def entry() -> Entry:
    """The shortest one: two steps, the second scheduled before the first is processed."""
    case = decode(b"", ConfigSpace(discipline=OPTIMISTIC))
    config = replace(case.config, max_in_flight_steps=2, max_num_batched_tokens=4, num_blocks=20)
    case = with_decisions(case, [Decision("add", (1, 0, 0)), Decision("schedule", (0,)), Decision("schedule", (0,))])._replace(
        config=config
    )
    found = run_case(case).found[KEY]
    return Entry(discipline=OPTIMISTIC, contract=Contract.SETTLED, key=KEY, case=case, sentence=found.sentence, seed=7, run=3)


def test_what_is_written_reads_back(entry: Entry, tmp_path: Path) -> None:
    trace = Corpus(tmp_path / "new" / "folder").write(entry)
    assert trace.name == "optimistic-settled-read_resident-freed.window-sliding_window.ndjson"
    (read,) = Corpus(tmp_path / "new" / "folder").entries
    assert read == entry
    assert read.reproduces()
    assert sorted(path.suffix for path in trace.parent.iterdir()) == [".json", ".ndjson"]


def test_the_trace_is_judged_the_same(entry: Entry, tmp_path: Path) -> None:
    trace = Corpus(tmp_path).write(entry)
    result = CliRunner().invoke(cli, ["check", str(trace), "--contract", "settled", "--property", "read_resident", "--json"])
    assert result.exit_code == 1
    assert "freed[window]" in json.loads(result.output)["properties"]["read_resident"]["causes"]
    commands = json.loads(trace.with_suffix(".json").read_text(encoding="utf-8"))["reproduce"]
    assert commands == [entry.command, shlex.join(["settled", "check", str(trace), "--contract", "settled"])]


def test_the_same_finding_takes_the_place_of_the_former(entry: Entry, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.write(entry)
    corpus.write(replace(entry, run=9))
    corpus.write(replace(entry, contract=Contract.EVENT))
    assert {(read.contract, read.run) for read in Corpus(tmp_path).entries} == {(Contract.SETTLED, 9), (Contract.EVENT, 3)}


def test_a_finding_that_is_repaired_no_longer_reproduces(entry: Entry) -> None:
    assert not replace(entry, discipline=RIGHT).reproduces()
    assert not replace(entry, discipline=VLLM).reproduces()


def test_findings_are_chosen_by_discipline_and_contract(entry: Entry, tmp_path: Path) -> None:
    Corpus(tmp_path).write(entry)
    corpus = Corpus(tmp_path)
    assert list(corpus.of([OPTIMISTIC], Contract.SETTLED)) == [entry]
    assert not list(corpus.of([RIGHT], Contract.SETTLED))
    assert not list(corpus.of([OPTIMISTIC], Contract.EVENT))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, expected 1"),
        ({"discipline": "nonsense"}, "'nonsense' is missing or unknown"),
        ({"contract": "nonsense"}, "'nonsense' is not a valid Contract"),
        ({"decisions": [["jump"]]}, "'jump' is missing or unknown"),
        ({"decisions": [["preempt", 1]]}, "preempt takes 2 numbers"),
        ({"decisions": [["preempt", 1, "x"]]}, "preempt takes 2 numbers"),
        ({"config": {}}, "'groups' is missing or unknown"),
        ({"case": "xyz"}, "non-hexadecimal"),
        ({"property": 5}, "property is 5, expected text"),
    ],
)
def test_a_damaged_file_is_named(change: dict[str, object], message: str, entry: Entry, tmp_path: Path) -> None:
    path = Corpus(tmp_path).write(entry).with_suffix(".json")
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(CorpusError, match=message) as raised:
        Corpus(tmp_path)
    assert str(path) in str(raised.value)


def test_a_pool_that_holds_no_request_is_named(entry: Entry, tmp_path: Path) -> None:
    path = Corpus(tmp_path).write(entry).with_suffix(".json")
    told = json.loads(path.read_text(encoding="utf-8"))
    told["config"]["num_blocks"] = 2
    path.write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(CorpusError, match="not a finding of this version: num_blocks: one request"):
        Corpus(tmp_path)


def test_no_json_at_all_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"x\.json: not a finding of this version"):
        Corpus(tmp_path)


def test_a_write_that_fails_leaves_what_was_there(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path)
    corpus.write(entry)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        corpus.write(replace(entry, run=4))
    assert raised.value.filename == str(tmp_path / f"{entry.name}.ndjson")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
