"""Writes what `settled prove` decides as SMT-LIB scripts, one a query, so that any solver can be asked again.

`T3/part/obligation.smt2` for what a theorem proves and covers, `T3/killed-by-ceil/part/obligation.smt2` for its killers, and
`found/...` for the check of the invariant that Spacer finds; that search itself asks Horn clauses, which are no such script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from settled.model.disciplines import RIGHT
from settled.model.search.induction import Obligation, with_covers
from settled.model.smtlib import script
from settled.proofs import found
from settled.proofs.catalogue import THEOREMS
from settled.proofs.folder import naming
from settled.proofs.theorem import Theorem


class Exported(NamedTuple):
    """An obligation, where it goes (folder names, not yet tidied), what it belongs to, and the answer that is expected."""

    folders: tuple[str, ...]
    title: str
    obligation: Obligation
    expected: str


def export(keys: Sequence[str], folder: Path, theorems: Mapping[str, Theorem] = THEOREMS) -> int:
    """Writes every obligation of the theorems (or of `found`) under `folder`; returns how many. Raises OSError."""
    written: set[Path] = set()
    for key in keys:
        for query in _of_found() if key == "found" else _of_theorem(theorems[key]):
            path = folder.joinpath(*query.folders, f"{_slug(query.obligation.name)}.smt2")
            assert path not in written, f"two obligations would be written to {path}"
            written.add(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            comment = f"{query.title}: {query.obligation.name}\nexpected: {query.expected}"
            with naming(path):
                path.write_text(script(query.obligation.query(), comment=comment), encoding="utf-8")
    return len(written)


def _of_theorem(theorem: Theorem) -> Iterator[Exported]:
    title = f"{theorem.key} {theorem.name}"
    for part in theorem.parts:
        yield from _proved((theorem.key, _slug(part.name)), f"{title}, {part.name}", part.build(part.discipline))
    for killer in theorem.killers:
        name = killer.discipline.name
        stated = {obligation.name: obligation for obligation in theorem.part(killer.part).build(killer.discipline)}
        folders = (theorem.key, f"killed-by-{_slug(name)}", _slug(killer.part))
        yield Exported(folders, f"{title}, {killer.part}", stated[killer.obligation], f"sat: refuted under {name}")


def _of_found() -> Iterator[Exported]:
    system = found.core(RIGHT)
    return _proved(("found",), "Spacer's invariant", found.verify(system, found.ask_spacer(system).conjuncts))


def _proved(folders: tuple[str, ...], title: str, obligations: Sequence[Obligation]) -> Iterator[Exported]:
    for obligation in with_covers(obligations):
        yield Exported(folders, title, obligation, "sat: it can happen" if obligation.is_cover else "unsat: proved")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
