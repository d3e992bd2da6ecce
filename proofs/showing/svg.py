"""The neighbourhood of a violation as one SVG image: host, steps in flight, transfers, blocks. A short trace is shown as a whole.

Light or dark follows the reader's system, where the image is looked at on its own or inlined; an image element follows it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree

from settled.model.events import Process, Schedule
from settled.model.monitor.report import EXIT_HOLDS
from settled.model.trace_io import printable
from settled.proofs.showing.data import reasons_of
from settled.proofs.showing.lanes import Bar, Lane, lanes_of
from settled.proofs.showing.story import Told, tell
from settled.proofs.showing.stretches import Stretch, stretches_of
from settled.proofs.showing.timeline import Timeline

EVENTS_MAX, BLOCKS_MAX = 32, 24  # that are shown; a trace with no more events is shown as a whole
GUTTER, COLUMN_MIN, WIDTH_MIN = 96, 34, 720  # pixels, as all lengths here
HEAD, HOST, BAR, BLOCK = 20, 40, 18, 22
CHARACTER, LINE, TITLE = 6.4, 7.0, 8.2  # of the small font, of sentences, of the bold title, on average

STYLE = """
text { font: 11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1b1f24; }
.paper { fill: #ffffff; } .rule { stroke: #d4d9df; } .dim { fill: #5c6570; } .end { text-anchor: end; } .mid { text-anchor: middle; }
.title { font-size: 13px; font-weight: 650; fill: #c4161c; } .line { font-size: 12px; }
.step { fill: #cfe0f1; stroke: #0b5cad; } .transfer { fill: #efe2b6; stroke: #9a7400; } .held { fill: #b9d0ea; }
.used { fill: #0b5cad; } .tag { fill: #fdecec; } .lost { fill: #c4161c; fill-opacity: .2; stroke: #c4161c; stroke-width: 2; }
.bad { fill: #c4161c; font-weight: 650; } .mark { stroke: #c4161c; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ed; } .paper { fill: #14171b; } .rule { stroke: #363d46; } .dim { fill: #9aa4af; } .title, .bad { fill: #ff6b6b; }
  .step { fill: #1d3a57; stroke: #6cb2ff; } .transfer { fill: #4a3f1a; stroke: #e3c04d; } .held { fill: #26425f; }
  .used { fill: #6cb2ff; } .tag { fill: #3a1d20; }
  .lost { fill: #ff6b6b; stroke: #ff6b6b; } .mark { stroke: #ff6b6b; }
}
"""


def svg_of(timeline: Timeline) -> str:
    """The text of the image. Without a violation, the beginning of the trace."""
    return _Drawing(timeline, tell(timeline, *timeline.violations[0]) if timeline.violations else None).draw()


@dataclass
class _Drawing:
    timeline: Timeline
    told: Told | None
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)  # by block
    root: ElementTree.Element = field(default_factory=lambda: ElementTree.Element("svg"))

    def draw(self) -> str:
        self.begin, self.end = self._range()
        count = self.end - self.begin
        self.width = max(WIDTH_MIN, GUTTER + count * COLUMN_MIN + 12)
        self.column = (self.width - GUTTER - 12) / count
        ElementTree.SubElement(self.root, "style").text = STYLE
        self.stretches = stretches_of(self.timeline)
        paper = self._add("rect", "paper", x=0, y=0, width=self.width, height=0)
        y = self._title()
        top = y
        y = self._heads(y)
        for lane in lanes_of(self.timeline).lanes:
            y = self._lane(lane, y)
        for block in self._blocks():
            y = self._block(block, y)
        if self.told is not None:
            x = self._x(self._at())
            self.root.append(ElementTree.Element("line", _plain("mark", x1=x, x2=x, y1=top + HEAD, y2=y)))
        height = y + 8
        paper.set("height", str(round(height)))
        for name, value in {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {round(self.width)} {round(height)}",
            "width": str(round(self.width)),
            "height": str(round(height)),
            "role": "img",
        }.items():
            self.root.set(name, value)
        ElementTree.indent(self.root)
        return ElementTree.tostring(self.root, encoding="unicode", xml_declaration=True) + "\n"

    # ---- what is shown -----------------------------------------------------------------------------------------------

    def _range(self) -> tuple[int, int]:
        """Positions, the last one not included."""
        size = len(self.timeline.events)
        if size <= EVENTS_MAX or self.told is None:
            return 0, min(size, EVENTS_MAX)
        places = [chapter.position for chapter in self.told.chapters]
        begin = max(0, min([*places, self._at()]) - 3)
        end = min(size, max([*places, self._at()]) + 3)
        if end - begin > EVENTS_MAX:  # what led to it matters more than what came after it
            begin, end = max(0, self._at() - EVENTS_MAX + 6), min(size, self._at() + 6)
        return begin, end

    def _at(self) -> int:
        assert self.told is not None
        at = self.timeline.position_of(self.told.violation.line)
        return self.told.position if at is None else at

    def _blocks(self) -> list[int]:
        """Those that are held in sight, the violated one and its neighbours first."""
        held = {each.block for each in self.timeline.owners.holdings if each.block and self._is_seen(each.begin, each.end)}
        violated = None if self.told is None else self.told.block
        if violated is None or len(held) <= BLOCKS_MAX:
            return sorted(held | ({violated} if violated else set()))[:BLOCKS_MAX]
        return sorted(sorted(held | {violated}, key=lambda block: (abs(block - violated), block))[:BLOCKS_MAX])

    def _is_seen(self, begin: int, end: int | None) -> bool:
        return begin < self.end and (end is None or end >= self.begin)

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def _add(self, tag: str, of: str, text: str = "", **attributes: float) -> ElementTree.Element:
        element = ElementTree.SubElement(self.root, tag, _plain(of, **attributes))
        if text:
            element.text = _xml_text(text)
        return element

    def _x(self, position: int | None) -> float:
        """The middle of an event's column, within the picture."""
        place = self.end if position is None else min(max(position + 0.5, self.begin), self.end)
        return GUTTER + (place - self.begin) * self.column if position is not None else GUTTER + (self.end - self.begin) * self.column

    def _title(self) -> float:
        engine = self.timeline.config.engine
        if self.told is None:
            holds = self.timeline.report.exit_code == EXIT_HOLDS
            title = f"{engine}: {'nothing is violated' if holds else 'unknown'}"
            reasons = [] if holds else reasons_of(self.timeline.report)
            lines = [line for note in reasons for line in _wrapped(f"{note}.", self._columns(LINE))]
        else:
            title = f"{engine}: {self.told.violation.property} violated"
            lines = list(_wrapped(self.told.violation.sentence(), self._columns(LINE)))
            lines += _wrapped(self.told.why, self._columns(LINE)) if self.told.why else []
        ElementTree.SubElement(self.root, "title").text = _xml_text(title)
        heads = list(_wrapped(_xml_text(title), self._columns(TITLE)))
        for number, line in enumerate(heads):
            self._add("text", "title" if self.told else "line", line, x=8, y=18 + 18 * number)
        for number, line in enumerate(lines):
            self._add("text", "line", line, x=8, y=18 * len(heads) + 18 + 16 * number)
        return 18 * len(heads) + 10 + 16 * len(lines)

    def _columns(self, character: float) -> int:
        """How many characters of a width a line takes."""
        return int((self.width - 16) / character)

    def _heads(self, y: float) -> float:
        self._add("text", "dim end", "line", x=GUTTER - 8, y=y + 14)
        self._add("text", "end", "host", x=GUTTER - 8, y=y + HEAD + 22)
        violated = {self.timeline.position_of(found.line) for _, found in self.timeline.violations}
        for position in range(self.begin, self.end):
            line, event = self.timeline.events[position]
            x = self._x(position)
            self._add("text", "bad mid" if position in violated else "dim mid", str(line), x=x, y=y + 14)
            if isinstance(event, Schedule | Process):
                sign = "▼ s" if isinstance(event, Schedule) else "▲ p"
                self._add("text", "mid", f"{sign}{event.step}", x=x, y=y + HEAD + 14)
            else:
                self._add("text", "dim mid", _cut(event.name, self.column), x=x, y=y + HEAD + 32)
        return y + HEAD + HOST

    def _lane(self, lane: Lane, y: float) -> float:
        seen = [bar for bar in lane.bars if self._is_seen(bar.begin, bar.end)]
        if not seen:
            return y
        height = lane.num_slots * BAR + 6
        self._add("text", "end", lane.name, x=GUTTER - 8, y=y + height / 2 + 2)
        for bar in seen:
            self._bar(bar, y + bar.slot * BAR)
        return y + height

    def _bar(self, bar: Bar, y: float) -> None:
        x1, x2 = self._x(bar.begin), self._x(bar.end)
        of = "transfer" if bar.kind in ("load", "store") else "step"
        self._add("rect", of, x=x1, y=y, width=max(x2 - x1, 2), height=BAR - 3)
        self._add("text", "", _cut(bar.label, x2 - x1 - 6), x=x1 + 4, y=y + 11.5)

    def _block(self, block: int, y: float) -> float:
        is_violated = self.told is not None and self.told.block == block
        self._add("text", "bad end" if is_violated else "end", f"block {block}", x=GUTTER - 8, y=y + 15)
        self._add("line", "rule", x1=GUTTER, x2=self.width - 12, y1=y + BLOCK, y2=y + BLOCK)
        taken = self._label() if is_violated else None
        for begin, end, holders in self.stretches.get(block, []):
            if self._is_seen(begin, end):
                self._held(self._x(begin), self._x(end if end < len(self.timeline.events) else None), ", ".join(holders), y, taken)
        self._uses(block, y)
        if taken is not None:
            self._lost(y, *taken)
        return y + BLOCK

    def _held(self, x1: float, x2: float, who: str, y: float, taken: tuple[str, float, float] | None) -> None:
        """The holders' names stand beside what is told of a violation, if it stands in this row."""
        self._add("rect", "held", x=x1, y=y + 2, width=max(x2 - x1, 1), height=BLOCK - 4)
        begin, end = x1 + 4, x2 - 2
        if taken is not None and begin < taken[1]:
            end = min(end, taken[1] - 4)
        elif taken is not None:
            begin = max(begin, taken[2] + 3)
        self._add("text", "", _cut(who, end - begin), x=begin, y=y + 12)

    def _uses(self, block: int, y: float) -> None:
        """A line for each step in flight that reads or writes the block."""
        for part in self.timeline.parts:
            if not self._is_seen(part.begin, part.end):
                continue
            for use in part.uses:
                row = self.timeline.rows.rows[use.row]
                runs = [*use.reads, *use.writes]
                if any(row[index] == block for first, last, _, _ in runs for index in range(first, last + 1)):
                    x1, x2 = self._x(part.begin), self._x(part.end)
                    self._add("rect", "used", x=x1, y=y + BLOCK - 5 - (part.step % 2) * 3, width=max(x2 - x1, 1), height=1.8)

    def _missed(self) -> tuple[float, float]:
        assert self.told is not None
        return self._x(self.told.begin), self._x(self.told.end if self.told.end < len(self.timeline.events) else None)

    def _label(self) -> tuple[str, float, float]:
        """What is told in the row of the violated block, and from where to where it stands."""
        assert self.told is not None
        x1, x2 = self._missed()
        text = _cut(self.told.label, max(x2 - x1, 90) - 6)
        return text, x1 + 3, x1 + 6 + len(text) * CHARACTER

    def _lost(self, y: float, label: str, begin: float, end: float) -> None:
        x1, x2 = self._missed()
        self._add("rect", "lost", x=x1, y=y + 1, width=max(x2 - x1, 6), height=BLOCK - 2)
        self._add("rect", "tag", x=begin, y=y + 3, width=end - begin, height=12)
        self._add("text", "bad", label, x=begin + 1, y=y + 12)


def _plain(of: str, **attributes: float) -> dict[str, str]:
    values = {name: str(round(value, 1)) for name, value in attributes.items()}
    return {"class": of, **values} if of else values


def _cut(text: str, room: float) -> str:
    """What fits, by the average width of a character."""
    fits = int(room / CHARACTER)
    return text if len(text) <= fits else f"{text[: fits - 1]}…" if fits > 2 else ""


def _wrapped(text: str, columns: int) -> Iterator[str]:
    """Between words, or within one that no line takes."""
    line = ""
    for word in (part for whole in text.split(" ") for part in _parts(whole, columns)):
        if line and len(line) + 1 + len(word) > columns:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def _parts(word: str, columns: int) -> list[str]:
    return [word[at : at + columns] for at in range(0, max(len(word), 1), columns)]


def _xml_text(text: str) -> str:
    """What XML can hold of a text: control characters escaped, surrogates too."""
    return re.sub("[\ufffe\uffff\ud800-\udfff]", "�", printable(text))
