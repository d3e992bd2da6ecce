"""One HTML page from a timeline: all scripts and styles inside, nothing loaded from anywhere.

What comes from a trace reaches the page as JSON in a script element that is no script, with each < > & of it written as an escape, so that
nothing in it can end the element; the scripts put it on the page as text only. The page's own policy allows its scripts by their hashes,
and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from string import Template
from typing import Any

from settled.model.trace_io import printable
from settled.proofs.showing.data import NOTHING, About, page_data
from settled.proofs.showing.timeline import Timeline

SCRIPTS = (
    "model.js",
    "theme.js",
    "canvas.js",
    "layout.js",
    "view.js",
    "frame.js",
    "lanes.js",
    "blocks.js",
    "timeline.js",
    "tokens.js",
    "panels.js",
    "search.js",
    "main.js",
)
LIBRARY, LICENCE = "d3.min.js", "d3.LICENSE"


def page_of(timeline: Timeline, about: About = NOTHING) -> str:
    """The text of the page."""
    return render(page_data(timeline, about), title=printable(f"{timeline.config.engine} · {timeline.source}"))


def render(data: dict[str, Any], *, title: str) -> str:
    """Fills the template."""
    scripts = [_asset(LIBRARY), *(_asset(name) for name in SCRIPTS)]
    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        policy=_policy(scripts),
        style=_asset("page.css"),
        licence=html.escape(_asset(LICENCE)),
        data=embedded(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def embedded(data: Any) -> str:
    """JSON that may stand in any element of an HTML page: ASCII, without a character that HTML gives a meaning."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: list[str]) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}; base-uri 'none'; form-action 'none'"


def _asset(name: str) -> str:
    return (files("settled.proofs.showing") / "assets" / name).read_text(encoding="utf-8")
