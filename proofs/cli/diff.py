"""`settled diff`: the reference against real KV buffers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from settled.model.properties import Contract
from settled.proofs.cli.numbers import Count
from settled.proofs.cli.refusal import Choice, Refusal, UnknownNameError
from settled.proofs.cli.trace_input import check_outputs

WORKLOADS_DEFAULT = {"cpu": 100, "cuda": 3}


@click.command()
@click.argument("rows", nargs=-1, metavar="[ROW]...")
@click.option(
    "--device",
    type=Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where the buffers are; cuda has not run on a device yet.",
)
@click.option("--workloads", type=Count(min=1), help="Of each row.  [default: 100, on a CUDA device 3]")
@click.option("--seed", type=Count(min=0), default=0, show_default=True, help="Of the first workload.")
@click.option("--tags-only", is_flag=True, help="Compare what is read, and compute no attention output.")
@click.option("--exhaustive", is_flag=True, help="Every order of small logs, against what the detector says of them.")
@click.option(
    "--trace",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A recorded trace of any engine, in place of the rows.",
)
@click.option(
    "--contract",
    type=Choice([contract.value for contract in Contract]),
    help="Of --trace: what makes a free safe. Default: settled with a KV consumer, stream_order without.",
)
@click.option(
    "--op-log", "log_path", type=click.Path(path_type=Path, dir_okay=False), help="Of --trace: write what it is lowered to, as NDJSON."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def diff(
    rows: tuple[str, ...],
    device: str,
    workloads: int | None,
    seed: int,
    tags_only: bool,
    exhaustive: bool,
    path: Path | None,
    contract: str | None,
    log_path: Path | None,
    as_json: bool,
) -> None:
    """Run the reference on real KV buffers: each discipline's workloads as an op log, searched for races, replayed in several orders.

    ROW is a row of the table, or a word of it: a discipline, a family of workloads, a way in which a worker orders the device. Right rows
    must be clean in every order, outputs bit-identical to contiguous memory; broken ones must show their fault. Exit code 0: each row is
    as it must be. 1: one is not. 2: bad input, or torch is missing. 3: too few workloads to show a fault that must show.

    With --device cuda each workload also runs on the device, in natural timing and in the orders that the CPU tries: digests, counts and
    first wrong positions must be the CPU's, garbled or not, and right outputs bit-identical to contiguous memory on the device.
    With --trace: 0 if nothing races and nothing is read wrong in any order that is tried, 3 if it has no step, 1 otherwise.
    With --exhaustive nothing may be garbled in some orders only without a race (1), and every kind of race must garble something (3).
    """
    if path is not None and (rows or exhaustive):
        raise click.UsageError("--trace is of one trace: give no rows, and not --exhaustive")
    if path is not None and (workloads is not None or tags_only):
        raise click.UsageError("--workloads and --tags-only are of rows: give no --trace")
    if exhaustive and tags_only:
        raise click.UsageError("--exhaustive compares tags alone in any case: leave --tags-only out")
    if (contract is not None or log_path is not None) and path is None:
        raise click.UsageError("--contract and --op-log go with --trace")
    if device == "cuda" and (path is not None or exhaustive or tags_only):
        raise click.UsageError("--device cuda goes with rows alone: give no --trace, no --exhaustive, no --tags-only")
    check_outputs(path, (log_path,))
    if not exhaustive:
        from settled.proofs.cli.missing import need

        need("torch", "real KV buffers")
    if path is not None:
        from settled.proofs.report import on_buffers

        sys.exit(on_buffers.run(path, Contract(contract) if contract else None, seed=seed, log_path=log_path, as_json=as_json))
    from settled.proofs.differential.rows import ROWS

    workloads = workloads or WORKLOADS_DEFAULT[device]
    wanted = [row for row in ROWS if not rows or any(row.name == each or each in row.name.split("/") for each in rows)]
    for each in rows:
        if not any(row.name == each or each in row.name.split("/") for row in ROWS):
            words = [word for row in ROWS for word in row.name.split("/")]
            raise UnknownNameError("row", each, [row.name for row in ROWS], words=words)
    if exhaustive:
        from settled.proofs.report import crossing

        sys.exit(crossing.run(wanted, logs=workloads, seed=seed, as_json=as_json))
    if device == "cuda":
        from settled.reference.device.cuda.absence import why_absent

        missing = why_absent()
        if missing:
            raise Refusal(f"no CUDA device: {missing}", _hint_for(missing))
        from settled.proofs.report import on_device

        sys.exit(on_device.run(wanted, workloads=workloads, seed=seed, as_json=as_json))
    from settled.proofs.report import differing

    sys.exit(differing.run(wanted, workloads=workloads, seed=seed, tags_only=tags_only, as_json=as_json))


def _hint_for(missing: str) -> str:
    if missing.endswith("not installed"):
        return "pip install 'settled[cuda]'"
    if missing.startswith("no C compiler"):
        return "install gcc or clang, or name one by CC; --device cpu needs none"
    if missing.startswith("no headers of Python"):
        return "install python3-dev, on some systems python3-devel; --device cpu needs none"
    return "--device cpu needs none; nvidia-smi says whether the driver sees a device"
