"""Masks from users' files: proved, refuted by the smallest case, refused with one line; and compiled for whoever serves them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from settled.model.disciplines import Rounding
from settled.model.kinds import SlidingWindow
from settled.proofs import mask_runs, user_masks
from settled.proofs.cli.main import cli
from settled.proofs.user_masks import Growth, MaskError, UserMask, compiled_reads, load_mask, smallest_growth, theorem_of

MASKS = Path(__file__).parents[2] / "docs" / "masks"
SHRINKS, GROWS = MASKS / "strided_sink.py", MASKS / "dilated.py"
HEAD = "from settled.model.algebra import both, either, negate\n"
FULL = HEAD + "def reads(query, token):\n    return token <= query\n"
WINDOW_MASK = HEAD + "def reads(query, token):\n    return both(token <= query, query - token < 3)\n"


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof of a mask ends with runs of it, which `tests/quality/test_user_masks.py` makes longer than the command does."""
    monkeypatch.setattr(mask_runs, "run_mask", partial(mask_runs.run_mask, seeds=range(4)))


def prove(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["prove", *(str(argument) for argument in arguments)])


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_mask_that_shrinks_is_proved_by_both_solvers() -> None:
    result = prove("--mask", SHRINKS, "--solver", "both", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == told["exit_code"] == 0
    assert {row["part"] for row in told["rows"]} == {"mask", "read_resident, write_owned (T3)", "rollback_resident (T4)", "tight (T5)"}
    assert {word for row in told["rows"] for word in row["claim"].values()} == {"proved"}
    (remark,) = told["theorems"]["mask"]["remarks"]
    assert remark.startswith("run on the reference: ")
    assert remark.endswith("nothing violated")


def test_a_run_that_violates_something_tells_in_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_runs, "compiled_reads", lambda mask: lambda query, token: query == token)  # the reference forgets the rest
    result = prove("--mask", SHRINKS, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == told["exit_code"] == 1
    assert "violated read_resident" in told["theorems"]["mask"]["remarks"][0]


def test_a_mask_that_does_not_shrink_is_refuted_by_its_smallest_case() -> None:
    result = prove("--mask", GROWS)
    assert result.exit_code == 1
    assert "needed-sets grow, smallest case: query 1 does not read token 0, but query 2 does" in result.output
    assert "T3" not in result.output.split("mask\n", 1)[1], "the theorems say nothing of it"
    assert json.loads(prove("--mask", GROWS, "--json").stdout)["theorems"]["mask"]["remarks"]


def test_the_smallest_case_is_smallest() -> None:
    reads = compiled_reads(load_mask(str(GROWS)))
    cases = [
        Growth(query, later, token)
        for later in range(12)
        for query in range(later + 1)
        for token in range(query)
        if reads(later, token) and not reads(query, token)
    ]
    assert smallest_growth(load_mask(str(GROWS))) == cases[0]
    assert smallest_growth(load_mask(str(SHRINKS))) is None


def test_the_compiled_mask_is_the_mask() -> None:
    reads = compiled_reads(load_mask(str(SHRINKS)))
    for query in range(30):
        for token in range(-2, 33):
            expected = 0 <= token <= query and (token % 4 == 0 or query - token < 8)
            assert reads(query, token) is expected
    window = compiled_reads(SlidingWindow(3))
    assert [token for token in range(10) if window(5, token)] == [3, 4, 5]


RULES = {
    "frees one token too many": "return both(last < basis - 7, negate(first < 4))",
    "frees what is in the window": "return last < basis",
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_that_frees_too_much_is_refuted(rule: str, tmp_path: Path) -> None:
    mask = "def reads(query, token):\n    return both(token <= query, either(token < 4, query - token < 9))\n"
    path = written(tmp_path, HEAD + mask + f"def frees(first, last, basis):\n    {rule}\n")
    result = prove("--mask", path, "--json")
    refuted = [row["obligation"] for row in json.loads(result.stdout)["rows"] if "refuted" in row["claim"].values()]
    assert result.exit_code == 1
    assert "the rule frees no more than the mask" in refuted


def test_a_rule_that_keeps_more_is_proved_and_remarked(tmp_path: Path) -> None:
    path = written(tmp_path, WINDOW_MASK + "def skipped_tokens(basis):\n    return basis - 3\n")
    result = prove("--mask", path)
    assert result.exit_code == 0
    assert "the rule keeps tokens that the mask lets go, smallest case: token 0 at p = 3" in result.output
    assert "T5" not in result.output, "what is kept for nothing is not said to be read"


def test_a_rule_that_keeps_too_much_fails_theorem_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim is about the rule: asked of one that keeps everything it is refuted."""
    monkeypatch.setattr(user_masks, "_smallest_kept", lambda mask: None)
    path = written(tmp_path, WINDOW_MASK + "def frees(first, last, basis):\n    return False\n")
    result = prove("--mask", path, "--json")
    refuted = [row["part"] for row in json.loads(result.stdout)["rows"] if "refuted" in row["claim"].values()]
    assert (result.exit_code, refuted) == (1, ["tight (T5)"])


def test_a_mask_is_one_formula_whatever_its_function_says_later(tmp_path: Path) -> None:
    text = "calls = []\ndef reads(query, token):\n    calls.append(1)\n    return both(token <= query, query - token < 3 * len(calls))\n"
    mask = load_mask(str(written(tmp_path, HEAD + text)))
    assert [token for token in range(12) if compiled_reads(mask)(9, token)] == [7, 8, 9]
    assert [token for token in range(12) if compiled_reads(mask)(9, token)] == [7, 8, 9]


def test_what_a_mask_prints_is_no_part_of_the_answer(tmp_path: Path) -> None:
    path = written(tmp_path, "print('loaded')\ndef reads(query, token):\n    print('called')\n    return token <= query\n")
    result = prove("--mask", path, "--json")
    assert json.loads(result.stdout)["exit_code"] == result.exit_code == 0
    assert result.stderr == "loaded\ncalled\n"


def test_a_mask_without_a_rule_is_freed_as_the_mask_allows(tmp_path: Path) -> None:
    mask = load_mask(str(written(tmp_path, FULL)))
    assert mask.name == "mine"
    assert mask.defines_frees is None
    assert {part.name for part in theorem_of(mask).parts} == {"mask", "read_resident, write_owned (T3)", "rollback_resident (T4)"}
    with pytest.raises(NotImplementedError):
        mask.frees_block(0, 3, 9, Rounding.CEIL)
    with pytest.raises(NotImplementedError):
        mask.skipped_tokens(9)


NAMED = {
    "Window": HEAD + "class Window:\n    def reads(self, query, token):\n        return both(token <= query, query - token < 4)\n",
    "window": HEAD + "def window(query, token):\n    return both(token <= query, query - token < 4)\n",
    "made": HEAD + "class W:\n    def reads(self, q, t):\n        return both(t <= q, q - t < 4)\nmade = W()\n",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_mask_is_a_class_an_object_or_a_function(name: str, tmp_path: Path) -> None:
    mask = load_mask(f"{written(tmp_path, NAMED[name])}:{name}")
    assert mask.name == name
    assert [token for token in range(12) if compiled_reads(mask)(9, token)] == [6, 7, 8, 9]


BAD = {
    "no such file": ("", "no such file"),
    "no mask": ("X = 1\n", "expected a function reads(query, token), found none"),
    "truth of a symbol": (
        "def reads(query, token):\n    return token <= query and token > 3\n",
        "TypeError: the truth of a symbolic term was asked",
    ),
    "no truth value": ("def reads(query, token):\n    return token\n", "TypeError: expected a truth value"),
    "wrong arity": ("def reads(query):\n    return query > 0\n", "TypeError: "),
    "not Python": ("def reads(\n", "SyntaxError: "),
    "fails when run": ("1 / 0\n", "ZeroDivisionError: division by zero"),
    "division by zero": ("def reads(query, token):\n    return token // 0 == query\n", "the divisor of // must be at least 1"),
    "exits when run": ("raise SystemExit(0)\n", "SystemExit: 0"),
    "exits when asked": ("import sys\ndef reads(query, token):\n    sys.exit()\n", "SystemExit: "),
    "a variable of its own": (
        HEAD
        + "from settled.model.algebra import int_variable\ndef reads(q, t):\n    return both(t <= q, q - t < int_variable('computed'))\n",
        "reads may speak of query, token only, not of 'computed'",
    ),
    "an unknown predicate": (
        "from settled.model.algebra import predicate\ndef reads(query, token):\n    return predicate('needed', query)\n",
        "reads may speak of query, token only, not of 'needed'",
    ),
    "division by a symbol": (
        "def reads(query, token):\n    return query // token == 1\n",
        "reads may divide by constants only, not by token",
    ),
    "bad rule": (FULL + "def frees(first, last, basis):\n    return last\n", "TypeError: expected a truth value"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_refused_with_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text) if text else tmp_path / "none.py"
    result = prove("--mask", path)
    assert result.exit_code == 2
    assert result.stdout == ""
    line, hint = result.stderr.splitlines()
    assert hint.startswith("  hint: --mask FILE")
    assert line.startswith(f"settled prove: {path}")
    assert message in line


def test_a_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MaskError, match="there is no 'other' in it"):
        load_mask(f"{written(tmp_path, FULL)}:other")


def test_theorems_named_beside_a_mask_are_proved_too() -> None:
    told = json.loads(prove("t1", "--mask", SHRINKS, "--json").stdout)
    assert set(told["theorems"]) == {"T1", "mask"}


def test_a_mask_is_exported_as_well(tmp_path: Path) -> None:
    assert prove("--mask", SHRINKS, "--export", tmp_path).exit_code == 0
    assert (tmp_path / "mask" / "mask" / "needed-sets-shrink.smt2").is_file()


def test_a_user_mask_never_reads_before_the_first_token() -> None:
    mask = UserMask("everything", lambda query, token: True)
    assert not compiled_reads(mask)(3, -1)
