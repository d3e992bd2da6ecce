"""Pictures as files: one function for every command that has a trace to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from settled.model.events import Event
from settled.model.monitor import ALL_PROPERTIES
from settled.model.properties import Contract, Property
from settled.model.trace_io import TraceError
from settled.proofs.folder import Folder, write_file
from settled.proofs.showing.data import About
from settled.proofs.showing.page import page_of
from settled.proofs.showing.perfetto import perfetto_of
from settled.proofs.showing.svg import svg_of
from settled.proofs.showing.timeline import Timeline, timeline_of


@dataclass(frozen=True, slots=True)
class Files:
    """Where pictures go; None: not wanted."""

    html: Path | None = None
    perfetto: Path | None = None
    svg: Path | None = None

    @property
    def wanted(self) -> list[Path]:
        return [path for path in (self.html, self.perfetto, self.svg) if path is not None]


def write_pictures(timeline: Timeline, files: Files) -> list[Path]:
    """Writes those that are wanted, each as a whole or not at all; a folder that is not there is made. Raises OSError."""
    makers: list[tuple[Path | None, Callable[[Timeline], str]]] = [
        (files.html, page_of),
        (files.perfetto, perfetto_of),
        (files.svg, svg_of),
    ]
    for path, make in makers:
        if path is not None:
            write_file(path, make(timeline))
    return files.wanted


class Pages:
    """A folder of pages, one for each finding, called as its other files are; made if it is not there. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)

    def write(
        self, name: str, events: Sequence[Event], contract: Contract | None, about: About, properties: Sequence[Property] = ALL_PROPERTIES
    ) -> Path | None:
        """The page of a trace whose lines count from 1, judged by those properties; None where nothing came to be traced.

        A trace that contradicts itself, as that of an engine that failed may, is shown as far as it goes.
        """
        timeline, about = _as_far_as_it_goes(list(enumerate(events, start=1)), name, contract, about, properties)
        if timeline is None:
            return None
        path = self.folder.path / f"{name}.html"
        self.folder.replace(path, page_of(timeline, about))
        return path


def _as_far_as_it_goes(
    events: list[tuple[int, Event]], name: str, contract: Contract | None, about: About, properties: Sequence[Property]
) -> tuple[Timeline | None, About]:
    if not events:
        return None, about
    try:
        return timeline_of(events, name, contract, properties), about
    except TraceError as error:
        until = [(line, event) for line, event in events if line < error.line]
        told = f"{about.sentence} The trace goes on with line {error.line}: {error.message}".strip()
        return (timeline_of(until, name, contract, properties) if until else None), replace(about, sentence=told)
