"""tests/data/gpu is what its command writes today, and every log in it shows what its line of the index says."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import gpu_data
import pytest
from gpu_data import OUT, contents, facts_of

from settled.proofs.differential.rows import ROWS, Expected
from settled.reference.device.log_io import read_log
from settled.reference.device.ops import LaunchKind
from settled.reference.workload import ALL_KINDS


@pytest.fixture(scope="module")
def index() -> list[dict]:
    return json.loads((OUT / "index.json").read_text(encoding="utf-8"))["logs"]


def unpacked(name: str, content: bytes) -> bytes:
    """Compressed bytes differ from one zlib to the next."""
    return gzip.decompress(content) if name.endswith(".gz") else content


@pytest.mark.slow
def test_the_folder_is_what_the_command_writes() -> None:
    written = contents()
    assert {path.name for path in OUT.iterdir()} == set(written)
    for name, content in written.items():
        assert unpacked(name, (OUT / name).read_bytes()) == unpacked(name, content), f"{name}: run python tests/device/gpu_data.py"


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in OUT.iterdir()) < 1_500_000


def test_every_right_row_and_every_row_that_races_is_there(index: list[dict]) -> None:
    rows = {line["row"] for line in index if line["sort"] == "row"}
    assert {row.name for row in ROWS if row.expected in (Expected.CLEAN, Expected.RACES)} - rows == {"vllm/everything"}
    assert {"short", "poisoned"} < {line["sort"] for line in index}
    assert Counter(line["expected"] for line in index if line["sort"] == "trace") == {"races": 3, "clean": 4, "every order": 1}


@pytest.mark.parametrize("expected", Expected)
def test_the_index_shows_what_each_row_must(index: list[dict], expected: Expected) -> None:
    lines = [line for line in index if line["expected"] == expected.value]
    assert lines
    for line in lines:
        wrong = [order["name"] for order in line["orders"] if order["rows_garbled"] or order["stores_wrong"]]
        assert bool(line["races"]) is (expected is Expected.RACES)
        assert ("as enqueued" in wrong) is (expected is Expected.ALWAYS)
        assert bool(wrong) is (expected in (Expected.RACES, Expected.ALWAYS))


def test_logs_have_every_kind_of_launch_and_of_group(index: list[dict]) -> None:
    seen: set[object] = set()
    for line in index:
        with gzip.open(OUT / line["file"], "rt", encoding="utf-8") as text:
            log = read_log(text)
        seen |= facts_of(log)
        assert "/states" not in line["row"] or any(spec.kind == "mamba" for spec in log.groups)
    kinds = {kind for kind in seen if isinstance(kind, LaunchKind)}
    assert kinds == set(LaunchKind)
    assert "keys and states" in seen
    groups = {fact[0] for fact in seen if isinstance(fact, tuple)}
    assert groups >= {kind.split()[0] for kind in ALL_KINDS}
    assert {("mamba", "none"), ("mamba", "align")} <= seen


def test_too_few_seeds_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_data, "SEEDS_MAX", 2)
    with pytest.raises(RuntimeError, match="settled/everything: too few of 2 seeds show what they should"):
        contents()
