"""Graphs as text for Graphviz. networkx needs a further package for that; the format is a few lines."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx

Attributes = dict[str, str]


def quoted(text: str) -> str:
    """A DOT string: quotes, backslashes and line ends escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def dot_lines(graph: networkx.DiGraph[Any], name: str, *, edge_label: str, look: Callable[[Hashable], Attributes]) -> Iterator[str]:
    """The lines of a digraph. `edge_label` is the edge attribute that is shown; `look` gives the attributes of a node."""
    yield f"digraph {quoted(name)} {{"
    yield "  rankdir=LR; node [shape=box];"
    for node in graph.nodes:
        attributes = ", ".join(f"{key}={quoted(value)}" for key, value in sorted(look(node).items()))
        yield f"  {quoted(str(node))} [{attributes}];" if attributes else f"  {quoted(str(node))};"
    for source, target, label in graph.edges(data=edge_label):
        yield f"  {quoted(str(source))} -> {quoted(str(target))} [label={quoted(str(label))}];"
    yield "}"
