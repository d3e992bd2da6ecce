"""A finding in the terminal: told once, when it is as small as it gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from settled.proofs.hunting.campaign import Told
from settled.proofs.hunting.corpus import HuntCorpus, reproducing_commands
from settled.proofs.hunting.finding import Finding, rank
from settled.proofs.hunting.script import script_for
from settled.proofs.report.folding import folded
from settled.proofs.report.found_picture import events_of, picture_of, picture_text
from settled.proofs.report.signs import signs_for
from settled.proofs.showing.data import About
from settled.proofs.showing.writing import Pages


@dataclass
class Teller:
    """Prints findings, and keeps them in the corpus as soon as they are found. `is_quiet`: prints nothing."""

    console: Console
    corpus: HuntCorpus | None
    is_quiet: bool
    has_pictures: bool = True
    pages: Pages | None = None
    kept: dict[str, Path] = field(default_factory=dict)  # by the finding's name
    _printed: set[str] = field(default_factory=set)

    def tell(self, told: Told) -> None:
        """Prints it before it is written: a disk may be full."""
        finding = told.finding
        if told.is_shrunk:
            self._print(finding)
        if self.corpus is not None:
            path = self.corpus.write(finding, picture=picture_text(finding), script=script_for(finding), is_shrunk=told.is_shrunk)
            if path is not None:
                self.kept[finding.name] = path
            if path is not None and told.is_shrunk:
                self._say("".join(f"  {escape(command)}\n" for command in reproducing_commands(finding, path)).rstrip())
        if self.pages is not None:
            page = self.pages.write(
                finding.name, events_of(finding), finding.contract, About(finding.key.property, finding.key.cause, finding.sentence)
            )
            if page is not None and told.is_shrunk:
                self._say(f"  shown in {escape(str(page))}")

    def tell_rest(self, findings: Iterable[Finding]) -> None:
        """Those for which there was no time to make them small, what matters most first."""
        for finding in sorted(findings, key=lambda each: rank(each.key)):
            if finding.name not in self._printed:
                self._print(finding, ", not made small")

    def _print(self, finding: Finding, more: str = "") -> None:
        self._printed.add(finding.name)
        key, steps = finding.key, f"{finding.steps} scheduled step{'s' * (finding.steps != 1)}"
        of_kind = f", {key.kind}" if key.kind else ""
        self._say(
            f"[bold red]{escape(finding.engine)}[/] violates [bold]{key.property}[/] ({escape(key.cause)}{escape(of_kind)}) "
            f"in workload {finding.number}: {steps}{more}"
        )
        signs = signs_for(self.console.encoding)
        if self.has_pictures:
            self._say(f"  {escape(finding.sentence)}")
            if not self.is_quiet:
                self.console.print(picture_of(finding, width=self.console.width, signs=signs))
            done = [type(each).__name__.lower() for each in finding.done]
            self._say(f"  {escape(folded(done, times=signs.times))}")
        self._say(f"  {escape(finding.command)}")

    def _say(self, text: str) -> None:
        if not self.is_quiet:
            self.console.print(text)
