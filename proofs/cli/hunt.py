"""`settled hunt`: an engine under random workloads, watched by the monitor."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from settled.model.properties import Contract
from settled.proofs.cli.numbers import Count, Seconds
from settled.proofs.cli.refusal import Choice, Refusal, Undecided
from settled.proofs.cli.summary_options import summary_options
from settled.proofs.cli.trace_input import check_outputs
from settled.proofs.found_properties import MEANING, OF_INSPECTIONS
from settled.proofs.hunting.mixes import DEFAULT_MIX, MIXES

WORKLOADS_DEFAULT = 500
AUTO = "auto"


class OneEngine(click.Command):
    """Whoever names two engines is told how several releases are hunted."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if type(error) is click.UsageError:  # not one of an option: an argument too many
                error.hint = "one engine a hunt; releases of one beside each other: --releases X,Y"  # type: ignore[attr-defined]
            raise


@click.command(cls=OneEngine)
@click.argument("engine", metavar="ENGINE")
@click.option("--seconds", type=Seconds(), help="End after N seconds.")
@click.option("--workloads", type=Count(min=0), help=f"End after N workloads. Default: {WORKLOADS_DEFAULT}, unless --seconds is given.")
@click.option("--seed", type=Count(min=0), default=0, show_default=True, help="The same mix and seed draw the same workloads.")
@click.option("--mix", type=Choice(list(MIXES)), default=DEFAULT_MIX, show_default=True, help="What is drawn.")
@click.option(
    "--contract",
    type=Choice([AUTO, *(contract.value for contract in Contract)]),
    default=AUTO,
    show_default=True,
    help="What makes a free safe. auto: settled with a KV consumer, stream_order without.",
)
@click.option(
    "--property",
    "properties",
    type=Choice(list(MEANING)),
    multiple=True,
    help="Violations of this alone are findings; may be given several times. Default: all. admission_gate, cache_truthful and "
    "transfer_terminates are told by live objects of vLLM, in one workload of 16.",
)
@click.option(
    "--corpus",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep findings in DIR: a trace, a JSON file and a picture each, and of vLLM a script.",
)
@click.option(
    "--html", "pages", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write each finding to DIR as a page."
)
@click.option("--number", type=Count(min=0), help="Run this one workload of the mix and seed, as printed with a finding.")
@click.option(
    "--workload",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Run the one workload of FILE, the JSON file of a finding.",
)
@click.option("--releases", "names", metavar="X,Y,...", help="Hunt in these releases of ENGINE, and print release by property.")
@click.option("--install", "installs", is_flag=True, help="Install those releases first that are not installed; newest is one, too.")
@summary_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def hunt(
    engine: str,
    seconds: float | None,
    workloads: int | None,
    seed: int,
    mix: str,
    contract: str,
    properties: tuple[str, ...],
    folder: Path | None,
    pages: Path | None,
    number: int | None,
    path: Path | None,
    names: str | None,
    installs: bool,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Run an engine under random workloads, and judge every event.

    ENGINE is vllm or tokenspeed, the unmodified scheduler that is installed, vllm==RELEASE, or reference==DISCIPLINE. The first violation
    of each property, cause and kind is made small, drawn, and printed with the command that shows it again; with --corpus it is kept, and
    an interrupt loses nothing. What the engine raises, and requests that never finish, are findings too, unless --property names others.
    Exit code 0: nothing is violated. 1: something is. 2: bad input, or the harness failed. 3: nothing was run, not all of it could be
    judged, or what --property names was checked in no workload.
    """
    from settled.proofs.folder import CorpusError, read_json
    from settled.proofs.hunting.campaign import Plan
    from settled.proofs.hunting.corpus import workload_in
    from settled.proofs.hunting.engines import VLLM, EngineError, parse_engine
    from settled.proofs.hunting.faults import HarnessError
    from settled.proofs.hunting.releases import plans_for
    from settled.proofs.hunting.workloads import MixError
    from settled.proofs.report import hunting
    from settled.proofs.report.summary import SummaryFiles
    from settled.reference.engines.environments.pip import InstallError, UnknownVersionError
    from settled.reference.engines.environments.recipes import RequestError

    if installs and names is None:
        raise click.UsageError("--install goes with --releases")
    if number is not None and path is not None:
        raise click.UsageError("--number and --workload are one workload each: give one of them")
    if number is not None or path is not None:
        if workloads is not None or seconds is not None:
            raise click.UsageError("--number and --workload are one workload: give no --workloads and no --seconds")
        workloads = 1
    elif workloads is None and seconds is None:
        workloads = WORKLOADS_DEFAULT
    check_outputs(path, (junit, markdown), called="the workload")
    summaries = SummaryFiles(junit, markdown)
    try:
        asked = parse_engine(engine)
        if names is not None and asked.release:
            raise click.UsageError(f"--releases says which releases: give {asked.name} alone")
        inspected = [name for name in properties if name in OF_INSPECTIONS and asked.name != VLLM]
        if inspected:
            raise click.UsageError(f"{inspected[0]} is told by vLLM's live objects alone: hunt vllm for it")
        plan = Plan(
            engine=str(asked),
            mix=mix,
            seed=seed,
            first=number or 0,
            workloads=workloads,
            seconds=seconds,
            contract=None if contract == AUTO else Contract(contract),
            workload=read_json(path, workload_in) if path is not None else None,
            path=str(path or ""),
            properties=tuple(dict.fromkeys(properties)),
        )
        if names is not None:
            from settled.proofs.report import releases

            plans = plans_for(plan, _releases(engine, names, installs))
            sys.exit(releases.run(plans, folder=folder, pages=pages, as_json=as_json, summaries=summaries))
        sys.exit(hunting.run(plan, folder=folder, pages=pages, as_json=as_json, summaries=summaries))
    except EngineError as error:
        raise Refusal(error, error.hint or "settled hunt --help") from error
    except (CorpusError, HarnessError, MixError, RequestError, UnknownVersionError) as error:
        raise Refusal(error) from error
    except InstallError as error:
        raise Undecided(error) from error


_EXAMPLES = {"reference": "settled,optimistic", "vllm": "0.25.1,newest", "tokenspeed": "newest"}


def _releases(engine: str, names: str, installs: bool) -> list[str]:
    """Versions that are installed, in the order given. Raises UsageError, EngineError, RequestError, InstallError."""
    from settled.proofs.hunting.engines import REFERENCE, parse_engine
    from settled.reference.engines.environments.installed import installed_release, installed_releases
    from settled.reference.engines.environments.installing import Installer
    from settled.reference.engines.environments.recipes import RequestError, parse_request, recipe_named

    wanted = [name.strip() for name in names.split(",")]
    if not all(wanted):
        raise click.UsageError(f"--releases {names!r}: expected releases with a comma between each two, such as {_EXAMPLES[engine]}")
    if engine == REFERENCE:
        if installs:
            raise click.UsageError("--install is of releases: the reference's are disciplines, and all here")
        return [parse_engine(f"{engine}=={name}").release for name in wanted]
    project = recipe_named(engine).project
    requests = [parse_request(f"{project}=={name}") for name in wanted]
    if installs:
        installer = Installer(lambda line: click.echo(line, err=True))
        return [installer.install(request).version for request in requests]
    here = installed_releases(recipe_named(engine).engine)
    if not here:
        raise RequestError(f"no release of {project} is installed", f"settled engines install {project}; or give --install")
    try:
        return [installed_release(engine, request.version or here[-1].version).version for request in requests]
    except RequestError as error:
        raise RequestError(str(error), f"{error.hint}; or give --install") from error
