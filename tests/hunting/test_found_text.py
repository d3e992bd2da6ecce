"""What is printed of a finding: operations folded, and a picture also where no event of the trace is the violation."""

from __future__ import annotations

from io import StringIO

import pytest
from fake_engines import ChangedFactory, looks_wrong
from rich.console import Console

from settled.proofs.hunting.campaign import Hunt, Plan, Told
from settled.proofs.report.folding import folded
from settled.proofs.report.found_picture import picture_text
from settled.proofs.report.found_text import Teller


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", ""),
        ("a", "a"),
        ("a b", "a, b"),
        ("a b b b", "a, b ×3"),
        ("a b c b c b c d", "a, (b, c) ×3, d"),
        ("s s p s p s p", "s, (s, p) ×3"),
        ("a b a b a", "(a, b) ×2, a"),
    ],
)
def test_what_repeats_itself_is_told_once(words: str, text: str) -> None:
    assert folded(words.split()) == text


def test_a_long_list_that_does_not_repeat_itself_is_cut() -> None:
    words = [f"w{number}" for number in range(30)]
    assert folded(words, parts_max=2) == "w0, w1, ... (30 in all)"
    assert folded(words * 400, parts_max=30).count("w") == 30


def found(plan: Plan) -> list[Told]:
    told: list[Told] = []
    Hunt(ChangedFactory(looks_wrong), plan, told.append, lambda progress: None).run()
    return told


def test_a_finding_of_the_live_objects_has_a_picture_of_the_request() -> None:
    told = found(Plan(engine="reference", mix="full", workloads=1))
    text = picture_text(told[-1].finding)
    assert "step 0: schedule [0, " in text
    assert "no picture" not in text


def test_each_finding_is_printed_once_and_what_was_not_made_small_at_the_end() -> None:
    told = found(Plan(engine="reference", mix="full", workloads=1))
    out = StringIO()
    teller = Teller(Console(file=out, width=160, soft_wrap=True), None, is_quiet=False)
    for each in told:
        teller.tell(each)
    teller.tell_rest([told[0].finding])
    assert out.getvalue().count("reference violates single_owner") == 1
    assert "not made small" not in out.getvalue()
    late = Teller(Console(file=out, width=160, soft_wrap=True), None, is_quiet=False)
    late.tell(told[0])
    late.tell_rest([told[0].finding])
    assert "not made small" in out.getvalue()
