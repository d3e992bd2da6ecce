"""`settled check`: exit codes, text, JSON, files and standard input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from settled.model import events as ev
from settled.model.specs import CrossAttentionSpec
from settled.proofs.cli.check import check

TRACES = Path(__file__).parent.parent / "data" / "traces"
AFFECTED = str(TRACES / "v0.24.0-min-spec-reject.ndjson")
FIXED = str(TRACES / "v0.33.0-min-spec-reject.ndjson")


def _run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(check, list(arguments), input=given)


def test_a_fixed_release_holds() -> None:
    result = _run(FIXED)
    assert result.exit_code == 0
    assert "contract stream_order (the default without a KV consumer)" in result.output
    assert "holds (exit code 0)" in result.output


def test_an_affected_release_is_violated() -> None:
    result = _run(AFFECTED)
    assert result.exit_code == 1
    sentence = "step 3 of request A reads tokens 30 to 31 through index 1 of its table in group 0 (block 2), but A had released it"
    assert sentence in result.output


def test_the_default_contract_follows_the_consumer() -> None:
    affected = str(TRACES / "v0.24.0-connector-overwrite.ndjson")
    assert json.loads(_run(affected, "--json").output)["contract"] == "settled"
    assert json.loads(_run(AFFECTED, "--json").output)["contract"] == "stream_order"
    assert json.loads(_run(AFFECTED, "--json", "--contract", "settled").output)["contract"] == "settled"


def test_with_one_step_in_flight_the_order_of_the_stream_is_enough(tmp_path: Path) -> None:
    """A host that waits for each step may take in an abort before its output: the device is through with what that frees."""
    lines = (TRACES / "v0.24.0-connector-overwrite.ndjson").read_text(encoding="utf-8").splitlines(keepends=True)
    config = {**json.loads(lines[0]), "max_in_flight_steps": 1}
    path = tmp_path / "trace.ndjson"
    path.write_text(json.dumps(config) + "\n" + lines[1])
    result = _run(str(path))
    assert "contract stream_order (the default with one step in flight)" in result.output


def test_json_has_every_violation_field() -> None:
    result = _run(AFFECTED, "--json", "--contract", "settled")
    report = json.loads(result.output)
    assert (result.exit_code, report["exit_code"], report["complete"]) == (1, 1, True)
    read = report["properties"]["read_resident"]
    assert (read["verdict"], read["count"], read["causes"]) == ("violated", 5, {"freed[window]": 4, "reallocated[window]": 1})
    first = read["violations"][0]
    assert (first["line"], first["step"], first["request"], first["block"], first["needed"]) == (5, 1, "A", 1, [0, 15])
    assert (first["freed_by"], first["freed_at_line"], first["release_cause"]) == ("A", 5, "window")
    assert report["properties"]["held_bounded"]["verdict"] == "not checked"


def test_chosen_properties_only() -> None:
    result = _run(AFFECTED, "--json", "--property", "single_owner", "--property", "counters_symmetric")
    assert result.exit_code == 0
    assert list(json.loads(result.output)["properties"]) == ["single_owner", "counters_symmetric"]


def test_standard_input() -> None:
    result = _run("-", given=Path(AFFECTED).read_text(encoding="utf-8"))
    assert result.exit_code == 1
    assert result.output.startswith("<stdin>: vllm 0.24.0")


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda text: "", "<stdin>:1: the trace is empty: expected a config line"),
        (lambda text: text[: len(text) // 2], "not a JSON object (truncated?)"),
        (lambda text: text.split("\n", 1)[1], "<stdin>:1: the first event must be config, not add"),
        (lambda text: text.replace('"event":"add"', '"event":"join"'), "<stdin>:2: unknown event 'join'"),
        (lambda text: text.replace('"prompt_tokens":', '"prompt":'), "<stdin>:2: add: missing key `prompt_tokens`"),
        (lambda text: text.replace('"start":0', '"start":"0"'), "schedule: Expected `int`, got `str`"),
        (lambda text: text.replace('"num_blocks":', '"num_blocks":1,"x":'), "block 1 is out of range: expected 0 to 0"),
        (lambda text: text + "[]\n", "expected a JSON object, found list"),
    ],
)
def test_bad_input_is_one_clear_line(cut: Any, message: str) -> None:
    result = _run("-", given=cut(Path(AFFECTED).read_text(encoding="utf-8")))
    assert result.exit_code == 2
    line, *hint = result.stderr.splitlines()
    assert message in line
    assert [each[:8] for each in hint] in ([], ["  hint: "])
    assert result.stdout == ""


def test_a_file_that_is_not_there() -> None:
    result = _run("no/such/trace.ndjson")
    assert result.exit_code == 2
    assert "no/such/trace.ndjson: No such file or directory" in result.stderr


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.ndjson"
    path.write_bytes(b"\xff\xfe\x00\n")
    result = _run(str(path))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 2)


def test_unknown_is_exit_code_three(kit: Any) -> None:
    trace = kit.Builder(kit.FULL, CrossAttentionSpec(block_size=4)).add().allocate(1)
    trace.schedule(1, kit.entry(0, 4, [1], [])).process(1, kit.output()).finish().release({0: 1}, "finish").end(idle=True)
    result = _run("-", given=trace.text())
    assert result.exit_code == 3
    assert "holds for group 0" in result.output
    assert "note: group 1 (cross) is not modelled" in result.output
    result = _run("-", given=kit.Builder().put(ev.Gap(events=1)).text())
    assert result.exit_code == 3
    assert "the recorder lost events" in result.output


def test_a_trace_without_an_end_is_unknown_unless_it_is_violated() -> None:
    cut = _run("-", given="".join(Path(FIXED).read_text(encoding="utf-8").splitlines(keepends=True)[:-1]))
    assert cut.exit_code == 3
    assert "its tail was not judged" in cut.output
    assert "unknown (exit code 3)" in cut.output
    assert _run("-", given="".join(Path(AFFECTED).read_text(encoding="utf-8").splitlines(keepends=True)[:-1])).exit_code == 1


def test_names_in_a_trace_do_not_reach_the_terminal_raw(kit: Any) -> None:
    name = "\x1b[31mred\n"
    trace = kit.Builder().add(name).allocate(1, request=name).add("B").allocate(1, request="B").release({0: 9}, request=name)
    trace.put(ev.Hold(holder=name, kind="pin", blocks=(3,))).schedule(1, kit.entry(0, 4, [2], request=name)).end(idle=True)
    result = _run("-", given=trace.text())
    assert result.exit_code == 1
    assert "request \\x1b[31mred\\n was given" in _run("-", given=kit.Builder().add(name).allocate(0, request=name).text()).output
    assert "\x1b" not in result.output
    missing = _run("-", given=kit.Builder().allocate(1, request=name).text())
    assert missing.exit_code == 2
    assert missing.stderr.strip().isprintable()


def test_long_lists_are_cut_and_counted() -> None:
    affected = str(TRACES / "v0.24.0-fullswa-spec5.ndjson")
    result = _run(affected, "--contract", "settled", "--property", "read_resident")
    assert "... and 83 more" in result.output


def test_help_names_the_exit_codes() -> None:
    result = _run("--help")
    assert result.exit_code == 0
    assert "Exit code 0" in result.output
