"""What `settled diff --trace` prints: a recorded trace on real buffers, its races and its first wrong token."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from settled.model.events import Config
from settled.model.monitor import default_contract
from settled.model.properties import Contract
from settled.model.trace_io import TraceError, read_trace
from settled.proofs.cli.refusal import Refusal
from settled.proofs.differential.one import Outcome, judge
from settled.proofs.folder import naming
from settled.proofs.report.console import make_console
from settled.proofs.runner import Exit
from settled.reference.device.foresight import LoweringError
from settled.reference.device.log_io import write_log
from settled.reference.device.lowering import lower
from settled.reference.device.payload import Numbers
from settled.reference.device.tags import TagError
from settled.reference.device.worker import RIGHT_WORKER, TOLD_OF_NULLS


def run(path: Path, contract: Contract | None, *, seed: int, log_path: Path | None, as_json: bool) -> Exit:
    """`contract` None: the default of the trace's configuration. `seed`: of the random order. `log_path`: where the op log is written.

    Raises OSError where it cannot be, Refusal for a trace that cannot be lowered.
    """
    try:
        with path.open("rb") as lines:
            events = [event for _, event in read_trace(lines, str(path))]
        config = events[0]
        assert isinstance(config, Config)
        contract = contract or default_contract(config)
        log = lower(events)
        outcome = judge(events, contract, RIGHT_WORKER, seed=seed, numbers=Numbers())
        told = judge(events, contract, TOLD_OF_NULLS, seed=seed, numbers=Numbers())
    except (LoweringError, TagError) as error:
        raise Refusal(f"{path}: {error}") from error
    except TraceError as error:
        raise Refusal(error) from error
    if log_path is not None:
        with naming(log_path), log_path.open("w", encoding="utf-8") as out:
            write_log(log, out)
    code = Exit.VIOLATED
    if _is_clean(outcome) and _is_clean(told):
        code = Exit.HOLDS if outcome.steps else Exit.UNKNOWN  # nothing was run
    if as_json:
        facts = {"trace": str(path), "contract": contract.value, "assumptions": log.assumptions}
        workers = {"rows_only_grow": _as_dict(outcome), "told_of_nulls": _as_dict(told)}
        click.echo(json.dumps({**facts, **workers, "exit_code": int(code)}, indent=1))
        return code
    console = make_console()
    console.print(f"{path}: {config.engine}, {outcome.steps} steps, {outcome.ops} ops, contract {contract}", markup=False)
    for assumed in log.assumptions:
        console.print(f"  assumed: {assumed}", markup=False)
    _print(console, "a worker whose rows only grow, as vLLM's", outcome)
    _print(console, "a worker that uploads the scheduler's tables, null entries included", told)
    console.print(f"exit code {int(code)}", markup=False)
    return code


def _is_clean(outcome: Outcome) -> bool:
    return not (outcome.early_frees or outcome.races or outcome.garbled or outcome.contradictions)


def _print(console: Console, worker: str, outcome: Outcome) -> None:
    wrong = ", ".join(outcome.garbled) or "in no order that was tried"
    console.print(
        f"{worker}: {outcome.early_frees} frees come too early, {outcome.races} accesses race; "
        f"wrong: {wrong} ({outcome.compared} outputs compared with contiguous memory)",
        markup=False,
    )
    for line in filter(None, (outcome.first_race, outcome.first_garbled, *outcome.contradictions)):
        console.print(f"  {line}", markup=False)


def _as_dict(outcome: Outcome) -> dict[str, object]:
    return {
        "steps": outcome.steps,
        "ops": outcome.ops,
        "early_frees": outcome.early_frees,
        "races": outcome.races,
        "garbled": list(outcome.garbled),
        "outputs_compared": outcome.compared,
        "first_race": outcome.first_race,
        "first_garbled": outcome.first_garbled,
        "contradictions": outcome.contradictions,
    }
