"""What a test is judged by: its marker, then the command line, then the configuration file."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from settled.model.properties import Contract, Property

E_COLUMNS = 4  # pytest's margin before each line of an error
TRACES = "settled-traces"
_OPTIONS = ("contract", "properties")

_Name = TypeVar("_Name", bound=StrEnum)


class WrongNameError(ValueError):
    """A marker or option names no contract or property; the message says what is expected."""


class Asked(NamedTuple):
    """`contract`: None for the one that follows from the configuration. `folder`: where traces of failed tests go. `test`: the test's id.

    `columns`: how wide pictures are at most.
    """

    contract: Contract | None
    properties: tuple[Property, ...]
    folder: Path
    test: str
    columns: int


def asked_of_session(config: pytest.Config) -> tuple[Contract | None, tuple[Property, ...]]:
    """What options and configuration say. Raises WrongNameError."""
    contract = config.option.settled_contract or config.getini("settled_contract")
    properties = config.option.settled_properties or config.getini("settled_properties")
    return _contract(contract, "settled contract"), _properties(properties, "settled property")


def asked_of(item: pytest.Item, *, columns: int) -> Asked:
    """For one test, whose failure is printed `columns` wide. Raises WrongNameError."""
    contract, properties = asked_of_session(item.config)
    for mark in reversed(list(item.iter_markers("settled"))):  # the closest comes last, and goes before the others
        if mark.args or not set(mark.kwargs) <= set(_OPTIONS):
            given = ", ".join([*map(repr, mark.args), *mark.kwargs])
            raise WrongNameError(f"marker settled: expected contract=NAME and properties=[NAME, ...], not {given}")
        contract = _contract(mark.kwargs.get("contract"), "marker settled, contract") or contract
        given_properties = mark.kwargs.get("properties")
        if given_properties is not None:
            properties = _properties(given_properties, "marker settled, properties")
    return Asked(contract, properties, _folder(item.config), id_of(item), columns - E_COLUMNS)


def id_of(item: pytest.Item) -> str:
    """As pytest makes it: xdist appends the test's group to it, in its workers alone."""
    return item.nodeid if item.parent is None else f"{item.parent.nodeid}::{item.name}"


def _contract(name: str | None, where: str) -> Contract | None:
    return _member(Contract, name, where) if name else None


def _properties(names: Iterable[str], where: str) -> tuple[Property, ...]:
    """All if none is named."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise WrongNameError(f"{where}: expected a list of names, not {names!r}")
    return tuple([_member(Property, name, where) for name in names]) or tuple(Property)


def _member(kind: type[_Name], name: Any, where: str) -> _Name:
    try:
        return kind(name)
    except ValueError:
        raise WrongNameError(f"{where}: {name!r} is none; expected one of {', '.join(kind)}") from None


def _folder(config: pytest.Config) -> Path:
    """The command line counts from where pytest was called, the configuration from the root directory."""
    if config.option.settled_traces:
        return config.invocation_params.dir / str(config.option.settled_traces)
    return config.rootpath / str(config.getini("settled_traces") or TRACES)
