"""Writes docs/reference.md from the code: `python docs/make_reference.py`. `tests/cli/test_reference.py` fails where it is stale."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from settled.model import events, trace_io
from settled.model.disciplines import DISCIPLINES, RIGHT, Discipline, FreeBasis, PruneFence, Rounding, StaleOutput
from settled.model.events import EVENT_BY_NAME
from settled.model.kinds import kind_of
from settled.model.properties import Contract, Property
from settled.model.specs import SPEC_BY_KIND, KVCacheSpec, MambaSpec
from settled.proofs.catalogue import THEOREMS
from settled.proofs.cli.main import COMMANDS, cli
from settled.proofs.refutations import CONSEQUENCES, REFUTATIONS

TARGET = Path(__file__).parent / "reference.md"
PARTS_OF_EVENTS = (
    events.ScheduledRequest,
    events.ProcessedRequest,
    events.After,
    events.CacheEntry,
    events.RequestState,
    events.UnprocessedStep,
    events.UnprocessedRequest,
    events.PendingJob,
)
_TOKENS = 16  # any valid number: only the kind is asked about


def reference() -> str:
    """The whole text."""
    parts = (_head(), _properties(), _contracts(), _disciplines(), _kinds(), _theorems(), _events(), _commands())
    return "\n".join(line for part in parts for line in [*part, ""]).rstrip() + "\n"


def _head() -> list[str]:
    return [
        "# Reference",
        "",
        "Written from the code by `python docs/make_reference.py`; do not edit. Lengths are in tokens unless they say blocks or steps.",
        "",
        "[Properties](#properties) · [Contracts](#contracts) · [Disciplines](#disciplines) · [Attention kinds](#attention-kinds) ·",
        "[Theorems](#theorems) · [Events](#events) · [Commands](#commands) · [Exit codes](#exit-codes)",
    ]


# ---- what is judged --------------------------------------------------------------------------------------------------


def _properties() -> list[str]:
    """With the disciplines that `settled refute` breaks each by."""
    rows = [(f"`{name}`", name.meaning, _codes(dict.fromkeys(_breaking(name)))) for name in Property]
    return ["## Properties", "", *_table(("property", "says", "broken by"), rows)]


def _breaking(name: Property) -> Iterator[str]:
    return (each.discipline.name for each in (*REFUTATIONS, *CONSEQUENCES) if each.violates is name)


def _contracts() -> list[str]:
    rows = [(f"`{contract}`", contract.meaning) for contract in Contract]
    return ["## Contracts", "", "What makes a free safe.", "", *_table(("contract", "says"), rows)]


def _disciplines() -> list[str]:
    rows = [(f"`{each.name}`", each.summary, "right" if each.is_right else _changes(each)) for each in DISCIPLINES.values()]
    told = ["## Disciplines", "", *_table(("discipline", "in words", "differs from `settled` in"), rows), ""]
    comments = {f.name: _one_line(type(getattr(RIGHT, f.name))) for f in fields(Discipline)[2:]} | _comments(Discipline)
    choices = [(f"`{f.name}`", _code(getattr(RIGHT, f.name)), comments.get(f.name, "")) for f in fields(Discipline)[2:]]
    told += ["The choices, and the right one of each:", "", *_table(("choice", "right", "says"), choices), ""]
    values = [(f"`{kind.__name__}.{each.name}`", _comments(kind)[each.name]) for kind in _ENUMERATIONS for each in kind]
    return [*told, *_table(("value", "says"), values)]


_ENUMERATIONS: tuple[type[StrEnum], ...] = (FreeBasis, Rounding, PruneFence, StaleOutput)


def _changes(discipline: Discipline) -> str:
    changed = [f.name for f in fields(Discipline)[2:] if getattr(discipline, f.name) != getattr(RIGHT, f.name)]
    return ", ".join(f"`{name}={getattr(discipline, name)}`" for name in changed)


def _comments(cls: type) -> dict[str, str]:
    """The comment beside each field, which may stand on the line below where the value is in brackets."""
    source = re.sub(r"\(\n\s*(.*?)\n\s*\)", r"\1", inspect.getsource(cls))
    return {name: comment.strip() for name, comment in re.findall(r"^    (\w+)\b[^#\n]*#(.*)$", source, re.MULTILINE)}


def _kinds() -> list[str]:
    rows = []
    for name, spec in SPEC_BY_KIND.items():
        own = [each for each in fields(spec) if each.name not in ("block_size", "cap")]
        rows.append((f"`{name}`", _one_line(spec), _codes(map(_field, own)), _is_judged(spec)))
    shared = _codes(map(_field, fields(KVCacheSpec)))
    about = f"A group of a trace's config: `kind`, then {shared} (the admission cap in blocks, if known), and what the kind adds."
    return ["## Attention kinds", "", about, "", *_table(("kind", "reads", "parameters", "judged"), rows)]


def _is_judged(spec: type[KVCacheSpec]) -> str:
    def known(**more: Any) -> bool:
        required: dict[str, Any] = {each.name: _TOKENS for each in fields(spec) if each.default is MISSING}
        return kind_of(spec(**{**required, **more}), prompt=1) is not None

    if spec is MambaSpec:
        judged = [mode for mode in ("none", "align", "all") if known(mode=mode)]
        return "modes " + ", ".join(f"`{mode}`" for mode in judged)
    return "yes" if known() else "no"


def _theorems() -> list[str]:
    rows = [
        (each.key, each.name, each.sentence, _codes(dict.fromkeys(killer.discipline.name for killer in each.killers)))
        for each in THEOREMS.values()
    ]
    return ["## Theorems", "", *_table(("theorem", "name", "says", "killed by"), rows)]


# ---- traces ----------------------------------------------------------------------------------------------------------


def _events() -> list[str]:
    about = [
        f"A trace is NDJSON, schema version {events.SCHEMA_VERSION}: one object a line, its key `event` first, `config` on the first line.",
        "Keys with a default may be left out. Events named `x_...` and unknown keys are left alone. `[[int]]` has a list for each group.",
    ]
    told = ["## Events", "", *about, ""]
    for name, cls in EVENT_BY_NAME.items():
        told += [f"- **`{name}`** {_codes(map(_field, fields(cls))) or 'has no keys'}", *_indented(_doc(cls))]
    told += ["", "Parts of events:", ""]
    for part in PARTS_OF_EVENTS:
        assert is_dataclass(part)
        told += [f"- **{part.__name__}** {_codes(map(_field, fields(part)))}", *_indented(_doc(part))]
    limits: dict[str, list[str]] = {}
    for name, (least, most, unit) in trace_io._LIMITS.items():
        limits.setdefault(f"{least} to {most} ({unit})", []).append(name)
    return [*told, "", "Limits of numbers:", "", *_table(("keys", "from, to"), [(_codes(names), limit) for limit, names in limits.items()])]


def _field(each: Field[Any]) -> str:
    if each.default is not MISSING:
        return f"{each.name}: {_type(str(each.type))} = {each.default!r}".replace("'", '"').replace("None", "null").replace("()", "[]")
    return f"{each.name}: {_type(str(each.type))}"


_TYPES = {
    "PerGroup": "[[int]]",
    "Job": "int | str",
    **{
        name: " | ".join(f'"{word}"' for word in getattr(events, name).__args__)
        for name in ("ReleaseCause", "ComputedCause", "FinishReason")
    },
}


def _type(annotation: str) -> str:
    for name, instead in _TYPES.items():
        annotation = re.sub(rf"\b{name}\b", instead, annotation)
    annotation = re.sub(r"Literal\[([^\]]*)\]", lambda match: match[1].replace(", ", " | "), annotation)
    annotation = re.sub(r"tuple\[([\w.]+), \.\.\.\]", r"[\1]", annotation)
    for name, instead in (("tuple[int, int, int]", "[int, int, int]"), ("None", "null"), ("dict", "map"), ("'", '"')):
        annotation = annotation.replace(name, instead)
    return annotation


# ---- the command line ------------------------------------------------------------------------------------------------


def _commands() -> list[str]:
    told = ["## Commands"]
    for name, summary in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        told += ["", *_command(f"settled {name}", command, summary)]
    ends = [("0", "holds"), ("1", "violated"), ("2", "bad input or usage"), ("3", "unknown"), ("130", "interrupted")]
    assert all(f"{code} {word}" in inspect.cleandoc(cli.help or "") for code, word in ends)
    return [*told, "", "## Exit codes", "", "Of every command; what they mean for one is said above.", "", *_table(("code", "says"), ends)]


def _command(name: str, command: click.Command, summary: str = "") -> list[str]:
    arguments = [each.make_metavar(click.Context(command)) for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.params if isinstance(each, click.Option) and "--help" not in each.opts]
    told = [f"### `{' '.join([name, *arguments, *(['[OPTION]...'] if options else [])])}`", ""]
    told += [summary, ""] if summary else []
    told += [*inspect.cleandoc(command.help or "").splitlines(), ""]
    told += _table(("option", "says"), [(_option(each), _says(each)) for each in options]) if options else []
    told = told[:-1] if told[-1] == "" else told
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        told += ["", *_command(f"{name} {each.name}", each)]
    return told


def _option(option: click.Option) -> str:
    if option.is_flag:
        return f"`{', '.join(option.opts)}`"
    metavar = "VALUE" if isinstance(option.type, click.Choice) else option.make_metavar(click.Context(cli))
    return f"`{', '.join(option.opts)} {metavar}`".replace("|", "\\|")


def _says(option: click.Option) -> str:
    choices = f" One of {_codes(option.type.choices)}." if isinstance(option.type, click.Choice) else ""
    default = f" Default: {option.default}." if option.show_default and option.default is not None else ""
    return f"{option.help or ''}{choices}{default}".strip()


# ---- text ------------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') if chr(92) not in cell else cell for cell in row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _code(value: object) -> str:
    return f"`{value}`"


def _doc(cls: type) -> str:
    """The docstring, unless it is the one that `dataclass` makes up."""
    text = cls.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{cls.__name__}(") else inspect.cleandoc(text)


def _one_line(cls: type) -> str:
    return " ".join(_doc(cls).split())


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]


def main() -> None:
    TARGET.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
