"""`settled fuzz`: the reference under random decisions, watched by the monitor."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from settled.model.disciplines import DISCIPLINES, Discipline
from settled.model.properties import Contract
from settled.proofs.cli.numbers import Count, Seconds
from settled.proofs.cli.refusal import Choice, Refusal, UnknownNameError
from settled.proofs.cli.summary_options import summary_options
from settled.proofs.cli.trace_input import check_outputs

RUNS_DEFAULT = 500


@click.command()
@click.option(
    "--discipline", "names", multiple=True, metavar="NAME", help="What the engine does; may be given several times. Default: settled."
)
@click.option(
    "--contract",
    type=Choice([contract.value for contract in Contract]),
    default=Contract.SETTLED.value,
    show_default=True,
    help="What makes a free safe.",
)
@click.option("--runs", type=Count(min=0), help=f"End after N runs. Default: {RUNS_DEFAULT}, unless --seconds is given.")
@click.option("--seconds", type=Seconds(), help="End after N seconds.")
@click.option("--seed", type=Count(min=0), default=0, show_default=True, help="The same seed and runs find the same.")
@click.option(
    "--corpus",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run the findings kept in DIR first, and keep new ones there: a trace and a JSON file each.",
)
@click.option(
    "--html", "pages", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write each finding to DIR as a page."
)
@click.option("--jobs", type=Count(min=1), default=1, show_default=True, help="Processes.")
@click.option("--case", "numbers", metavar="HEX", help="Run this one case, as printed with a finding.")
@summary_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def fuzz(
    names: tuple[str, ...],
    contract: str,
    runs: int | None,
    seconds: float | None,
    seed: int,
    folder: Path | None,
    pages: Path | None,
    jobs: int,
    numbers: str | None,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Run the reference engine under random decisions, and judge every event.

    Each run is a configuration near its boundaries and a list of decisions. The first violation of each property, cause and kind is made
    small and printed with the command that shows it again; with --corpus it is kept, and an interrupt loses nothing. Exit code 0: nothing
    is violated. 1: something is, or a kept finding still is. 2: bad input, or a folder that cannot be written. 3: nothing was run, or not
    all of it could be judged.
    """
    from settled.proofs.folder import CorpusError
    from settled.proofs.report import fuzzing
    from settled.proofs.report.summary import SummaryFiles

    disciplines = [_discipline(name) for name in dict.fromkeys(names or ("settled",))]
    check_outputs(None, (junit, markdown))
    runs_asked = runs is not None
    if runs is None and seconds is None:
        runs = RUNS_DEFAULT
    if numbers is not None:
        if len(disciplines) > 1:
            raise click.UsageError("--case runs under one discipline")
        if runs_asked or seconds is not None or folder or pages or junit or markdown:
            raise click.UsageError("--case is one run, told here: give no --runs, --seconds, --corpus, --html, --junit, --markdown")
        sys.exit(fuzzing.run_one(disciplines[0], Contract(contract), _bytes_of(numbers), as_json=as_json))
    try:
        sys.exit(
            fuzzing.run(
                disciplines,
                Contract(contract),
                runs=runs,
                seconds=seconds,
                seed=seed,
                folder=folder,
                pages=pages,
                jobs=jobs,
                as_json=as_json,
                summaries=SummaryFiles(junit, markdown),
            )
        )
    except CorpusError as error:
        raise Refusal(error) from error


def _discipline(name: str) -> Discipline:
    if name.lower() not in DISCIPLINES:
        raise UnknownNameError("discipline", name, DISCIPLINES)
    return DISCIPLINES[name.lower()]


def _bytes_of(numbers: str) -> bytes:
    try:
        return bytes.fromhex(numbers)
    except ValueError:
        raise click.UsageError(f"--case {numbers!r}: expected hexadecimal digits, two a number") from None
