"""`settled engines`: light environments for releases of real engines."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from settled.proofs.cli.refusal import Refusal, Undecided


@click.group()
def engines() -> None:
    """Install releases of real engines, each a folder, all of one engine in one environment of packages.

    They lie in the folder that SETTLED_HOME names, or else in the platform's cache. pip brings them, under the user's own configuration.
    Exit code: each command's help says it.
    """


@engines.command()
@click.argument("releases", metavar="NAME==VERSION...", nargs=-1, required=True)
def install(releases: tuple[str, ...]) -> None:
    """Install releases: vllm==0.25.1, or vllm==newest, or vllm, which is the same; tokenspeed-scheduler likewise.

    vLLM comes without its compiled code, which a scheduler does not need. What is installed stays as it is. Exit code 0: all are
    installed. 2: a name or version that does not exist, or a folder that cannot be written. 3: no network, or a release failed to install.
    """
    _reporting(lambda: _install(releases))


@engines.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def list_(as_json: bool) -> None:
    """Say which releases are installed, where, and whether each can be imported. Exit code 0: all can. 3: one cannot, or none is here."""
    from settled.proofs.report import engines as report
    from settled.reference.engines.environments.recipes import RequestError

    try:
        sys.exit(report.list_engines(as_json=as_json))
    except RequestError as error:
        raise Refusal(error) from error


@engines.command()
@click.argument("releases", metavar="NAME==VERSION...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Everything, the environments too.")
def remove(releases: tuple[str, ...], everything: bool) -> None:
    """Remove releases; with --all everything that was installed. Exit code 0, or 2 for one that is not installed."""
    if bool(releases) == everything:
        raise click.UsageError("name releases, or give --all")
    _reporting(lambda: _remove(releases, everything))


def _reporting(do: Callable[[], None]) -> None:
    from settled.reference.engines.environments.pip import InstallError, UnknownVersionError
    from settled.reference.engines.environments.recipes import RequestError

    try:
        do()
    except (RequestError, UnknownVersionError) as error:
        raise Refusal(error) from error
    except InstallError as error:
        raise Undecided(error) from error


def _install(releases: tuple[str, ...]) -> None:
    from settled.reference.engines.environments.installing import Installer
    from settled.reference.engines.environments.recipes import parse_request

    requests = [parse_request(text) for text in dict.fromkeys(releases)]
    installer = Installer(click.echo)
    for request in requests:
        installer.install(request)


_HINT_REMOVE = "settled engines list tells which are installed"


def _remove(releases: tuple[str, ...], everything: bool) -> None:
    from settled.reference.engines.environments.installed import NotInstalledError, installed_release
    from settled.reference.engines.environments.installing import uninstall, uninstall_all
    from settled.reference.engines.environments.recipes import RequestError, parse_request

    if everything:
        uninstall_all(click.echo)
    requests = [parse_request(text) for text in releases]
    if any(request.version is None for request in requests):
        raise RequestError("remove takes a version: NAME==VERSION", _HINT_REMOVE)
    try:
        named = [installed_release(request.recipe.engine, str(request.version)) for request in requests]
    except NotInstalledError as error:
        raise RequestError(str(error), _HINT_REMOVE) from error
    for release in dict.fromkeys(named):
        uninstall(release, click.echo)
