"""DOT text: quoted so that any label survives."""

from __future__ import annotations

import networkx

from settled.proofs.graphs.dot import dot_lines, quoted


def test_quotes_backslashes_and_line_ends_are_escaped() -> None:
    assert quoted('a "b" \\ c\nd') == '"a \\"b\\" \\\\ c\\nd"'


def test_a_graph_is_written_with_labels_and_looks() -> None:
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_edge("r0", "the pool", reason='lacks "2"')
    lines = list(dot_lines(graph, "waits", edge_label="reason", look=lambda node: {"color": "red"} if node == "r0" else {}))
    assert lines == [
        'digraph "waits" {',
        "  rankdir=LR; node [shape=box];",
        '  "r0" [color="red"];',
        '  "the pool";',
        '  "r0" -> "the pool" [label="lacks \\"2\\""];',
        "}",
    ]
