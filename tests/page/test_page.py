"""The page as text: whole, closed to the network, and harmless whatever a trace says."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hostile import MARKUP, hostile_trace
from traces import recorded

from settled.proofs.showing.data import About, page_data
from settled.proofs.showing.page import LIBRARY, LICENCE, SCRIPTS, embedded, page_of
from settled.proofs.showing.timeline import timeline_of

ASSETS = files("settled.proofs.showing") / "assets"
D3_SHA256 = "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1"  # of d3@7.9.2's dist/d3.min.js on npm


class Reader(HTMLParser):
    """Tags with their attributes, and what scripts and the title hold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside[-1]][-1] += data


@pytest.fixture(scope="module")
def hostile() -> str:
    return page_of(timeline_of(hostile_trace(), f"source {MARKUP}"))


def test_what_a_trace_says_is_text(hostile: str) -> None:
    ordinary = Reader(page_of(timeline_of(recorded("v0.25.1-min-spec-reject"), "recorded")))
    read = Reader(hostile)
    assert [tag for tag, _ in read.tags] == [tag for tag, _ in ordinary.tags]
    assert MARKUP in read.texts["title"][0]
    data = json.loads(read.texts["script"][0])
    assert data["owners"][0] == MARKUP
    assert MARKUP not in hostile
    assert not set("\u2028\u202e\x1b") & set(hostile)


def test_what_is_embedded_has_no_character_of_html() -> None:
    text = embedded({"<&>": [MARKUP, "\u2028\ud800", 1.5, None]})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"<&>": [MARKUP, "\u2028\ud800", 1.5, None]}


def test_the_page_needs_nothing_from_outside(hostile: str) -> None:
    read = Reader(hostile)
    assert not [attributes for _, attributes in read.tags if {"src", "href", "srcset", "action"} & set(attributes)]
    assert not re.search(r"@import|url\(", (ASSETS / "page.css").read_text(encoding="utf-8"))
    assert not [
        name
        for name in SCRIPTS
        if re.search(r"https?:|fetch\(|XMLHttp|innerHTML|\.html\(|eval\(", (ASSETS / name).read_text(encoding="utf-8"))
    ]


def test_only_scripts_with_known_hashes_run(hostile: str) -> None:
    read = Reader(hostile)
    (policy,) = [attributes["content"] for tag, attributes in read.tags if tag == "meta" and "http-equiv" in attributes]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.split("script-src")[1]
    scripts = read.texts["script"][1:]
    assert len(scripts) == 1 + len(SCRIPTS)
    for script in scripts:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy


def test_the_library_is_the_official_build_with_its_notice(hostile: str) -> None:
    assert hashlib.sha256((ASSETS / LIBRARY).read_bytes()).hexdigest() == D3_SHA256
    notice = (ASSETS / LICENCE).read_text(encoding="utf-8")
    assert "Permission to use, copy, modify, and/or distribute this software" in notice
    assert Reader(hostile).texts["pre"][-1].strip() == notice.strip()


def test_every_script_of_the_folder_is_used() -> None:
    assert {path.name for path in ASSETS.iterdir()} == {*SCRIPTS, LIBRARY, LICENCE, "page.html", "page.css"}


def test_every_element_that_a_script_names_is_there() -> None:
    """In the template; what scripts make themselves has no id."""
    ids = set(re.findall(r'id="([\w-]+)"', (ASSETS / "page.html").read_text(encoding="utf-8")))
    named = {
        name
        for script in SCRIPTS
        for name in re.findall(r'(?:byId|element|getElementById|options)\("([\w-]+)"', (ASSETS / script).read_text(encoding="utf-8"))
    }
    assert len(named) > 15
    assert named <= ids


def test_a_page_begins_with_what_it_is_about() -> None:
    timeline = timeline_of(recorded("v0.25.1-connector-overwrite"), "recorded")
    told = [each["property"] for each in page_data(timeline)["violations"]]
    assert page_data(timeline)["first"] == 0 == told.index("read_resident")
    wanted = page_data(timeline, About("write_owned", "", "so it is"))
    assert (wanted["first"], wanted["finding"]) == (told.index("write_owned"), None)
    other = page_data(timeline, About("engine_fault", "KeyError", "it failed"))
    assert (other["first"], other["finding"]) == (0, {"property": "engine_fault", "sentence": "it failed"})


def test_the_same_trace_makes_the_same_page() -> None:
    first, second = (page_of(timeline_of(recorded("v0.25.1-swa-decode"), "recorded")) for _ in range(2))
    assert first == second


# ---- colours ---------------------------------------------------------------------------------------------------------

TEXT_MIN, SIGN_MIN = 4.5, 3.0  # contrasts; source: WCAG 2.2, success criteria 1.4.3 and 1.4.11
TINT, TOLD = 0.42, 0.26  # how much of a request's colour a held block has, of red what a violation covers


def themes() -> dict[str, dict[str, tuple[float, ...]]]:
    """Colours of the style sheet by theme and name."""
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    told = {}
    for theme, start in (("light", ":root {"), ("dark", ':root[data-theme="dark"] {')):
        block = style.split(start)[1].split("}")[0]
        told[theme] = {name: rgb(value) for name, value in re.findall(r"--([\w-]+): (#\w{6})", block)}
        red, green, blue, share = map(float, re.search(r"--column: rgba\(([^)]+)\)", block)[1].split(","))  # type: ignore[index]
        told[theme] |= {f"{below} column": mixed(told[theme][below], (red, green, blue), share) for below in ("paper", "panel")}
    return told


def rgb(text: str) -> tuple[float, ...]:
    return tuple(int(text[place : place + 2], 16) for place in (1, 3, 5))


def mixed(below: tuple[float, ...], above: tuple[float, ...], share: float) -> tuple[float, ...]:
    return tuple(one + (other - one) * share for one, other in zip(below, above, strict=True))


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Relative luminances against each other; source: WCAG 2.2."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [value / 255 / 12.92 if value / 255 <= 0.04045 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_signs_stand_out(theme: str) -> None:
    colours = themes()[theme]
    hues = [rgb(value) for value in re.findall(r'"(#\w{6})"', (ASSETS / "theme.js").read_text(encoding="utf-8"))]
    tints = [mixed(colours["paper"], hue, TINT) for hue in hues]
    texts = [
        *((name, below) for name in ("ink", "dim", "bad") for below in ("paper", "panel", "bad-paper", "paper column", "panel column")),
        *((name, below) for name in ("good",) for below in ("paper", "panel", "bad-paper")),
        ("paper", "bad"),
    ]
    low = [(name, below) for name, below in texts if contrast(colours[name], colours[below]) < TEXT_MIN]
    assert low == []
    assert len(hues) == 10
    assert min(contrast(colours["ink"], tint) for tint in tints) >= TEXT_MIN
    assert min(contrast(colours["ink"], mixed(tint, colours["bad"], TOLD)) for tint in tints) >= TEXT_MIN
    assert min(contrast(colours["paper"], hue) for hue in hues) >= SIGN_MIN
    assert min(contrast(colours[name], tint) for name in ("accent", "dim") for tint in tints) >= SIGN_MIN
    assert min(contrast(colours[name], colours["paper"]) for name in ("accent", "cached", "bad")) >= SIGN_MIN
