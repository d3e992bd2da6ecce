"""A mask from a user's file, run: the reference serves it, the monitor judges by it, and a broken basis is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from settled.model.disciplines import OPTIMISTIC
from settled.proofs.mask_runs import run_mask
from settled.proofs.user_masks import UserMask, load_mask
from settled.reference.masks import is_registered

FILE = Path(__file__).parents[2] / "docs" / "masks" / "strided_sink.py"


@pytest.fixture(params=["with its rule", "without"])
def mask(request: pytest.FixtureRequest) -> UserMask:
    loaded = load_mask(str(FILE))
    return loaded if request.param == "with its rule" else replace(loaded, defines_frees=None)


def test_the_right_discipline_keeps_what_the_mask_reads(mask: UserMask) -> None:
    runs = run_mask(mask, seeds=range(60))
    assert runs.pruned_blocks > 100
    assert runs.found == {}
    assert not is_registered(mask.name)


def test_the_optimistic_basis_is_found(mask: UserMask) -> None:
    lost = {"rollback_resident", "read_resident"}
    runs = next((runs for seed in range(60) if lost & set((runs := run_mask(mask, OPTIMISTIC, seeds=[seed])).found)), None)
    assert runs is not None
    assert "violated" in runs.sentence()
