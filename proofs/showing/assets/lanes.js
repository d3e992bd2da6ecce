"use strict";
// The upper part of the time line: the host's events, a lane for each stream of the device, and how many table entries are null.

const Lanes = (() => {
  const LABELS_FROM = 52, NAMES_FROM = 26, MARKS_FROM = 2, WAITS_FROM = 6;  // pixels an event from which these are drawn
  const { at, left, right, isSeen, lineOf } = Frame;
  let context, rows, perEvent, from, to, height;

  function draw() {
    ({ context, rows, perEvent, from, to, height } = Frame);
    host();
    streams();
    nulls();
  }

  function host() {
    const { y } = rows.host;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const steps = Model.stepsWithin(from - 1, to);
    if (perEvent > MARKS_FROM) {
      for (const step of steps) mark(step.begin, y + 11, "▼", `s${step.step}`, "accent");
      for (const step of steps) if (step.end < Model.size) mark(step.end, y + 11, "▲", `p${step.step}`, "ink");
    }
    let last = -10;
    for (let position = Math.max(0, Math.floor(from) - 1); position < Math.min(Model.size, to + 1); position++) {
      const kind = Model.kind(position), isWrong = Model.violationsAt.has(position);
      if (kind !== "schedule" && kind !== "process" && (at(position) - last > 1 || isWrong)) {
        last = at(position);
        other(position, kind, y + 32);
      }
      if (isWrong) wrong(position, y - 1);
      if (View.state.hits?.set.has(position)) underline(position, y + rows.host.height - 2);
    }
  }

  function mark(position, y, glyph, text, colour) {
    if (!isSeen(position, position)) return;
    context.fillStyle = Theme.colour(colour);
    context.font = Canvas.FONT;
    const shown = perEvent >= NAMES_FROM ? `${glyph} ${text}` : glyph;
    context.fillText(shown, at(position), y);
  }

  function other(position, kind, y) {
    const owner = Model.events.owner[position];
    context.fillStyle = owner === null ? Theme.colour("dim") : Theme.hue(owner);
    if (perEvent < LABELS_FROM) return context.fillRect(at(position) - Math.min(perEvent / 2, 2), y - 6, Math.max(Math.min(perEvent - 1, 4), 1), 12);
    context.font = Canvas.SMALL;
    context.fillStyle = Theme.colour("ink");
    context.fillText(kind, at(position), y);
    return undefined;
  }

  function wrong(position, y) {
    context.fillStyle = Theme.colour("bad");
    const wide = Math.min(Math.max(perEvent, 6), 26) / 2;
    context.beginPath();
    context.moveTo(at(position) - wide / 2, y - 1);
    context.lineTo(at(position) + wide / 2, y - 1);
    context.lineTo(at(position), y + 6);
    context.fill();
    context.fillRect(at(position) - 0.5, y, 1, height);
  }

  function underline(position, y) {
    context.fillStyle = Theme.colour("accent");
    context.fillRect(at(position) - Math.max(perEvent / 2 - 1, 1), y, Math.max(perEvent - 2, 2), 2);
  }

  function streams() {
    rows.lanes.forEach((row) => {
      let last = -1;
      for (const bar of row.lane.bars) {
        if (!isSeen(bar.begin, bar.end)) continue;
        const x1 = left(bar.begin), x2 = Math.max(right(bar.end), x1 + 2);
        if (x2 - x1 < 3 && x2 - last < 1) continue;
        last = x2;
        drawBar(bar, x1, row.y + 2 + bar.slot * Layout.BAR, x2 - x1, Layout.BAR - 3);
      }
    });
    if (perEvent > WAITS_FROM) waits();
  }

  function drawBar(bar, x1, y, wide, tall) {
    const transfer = bar.kind === "load" || bar.kind === "store";
    context.fillStyle = bar.kind === "step" ? d3.interpolateRgb(Theme.colour("paper"), Theme.colour("accent"))(0.25)
      : d3.interpolateRgb(Theme.colour("paper"), Theme.colour("cached"))(transfer ? 0.4 : 0.25);
    context.fillRect(x1, y, wide, tall);
    context.strokeStyle = Theme.colour(bar.kind === "step" ? "accent" : "cached");
    if (wide > 4) context.strokeRect(x1 + 0.5, y + 0.5, wide - 1, tall - 1);
    if (wide > 30) {
      context.font = Canvas.SMALL;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = Theme.colour("ink");
      const begin = Math.max(x1, Layout.GUTTER);
      context.fillText(Canvas.fitted(context, bar.label, x1 + wide - begin - 8), begin + 4, y + tall / 2 + 0.5);
    }
    Frame.point(x1, y, wide, tall, () => `${bar.label}\nfrom line ${lineOf(bar.begin)} to ${lineOf(bar.end)}`);
  }

  // Down from what is waited for to what waits.
  function waits() {
    context.strokeStyle = context.fillStyle = Theme.colour("dim");
    for (const [lane, of, toLane, to_] of Model.data.lanes.waits) {
      const source = Model.lanes[lane].bars[of], target = Model.lanes[toLane].bars[to_];
      if (!isSeen(target.begin, target.begin) || source.end <= target.begin) continue;
      const y1 = rows.lanes[lane].y + source.slot * Layout.BAR + Layout.BAR, y2 = rows.lanes[toLane].y + target.slot * Layout.BAR + 2;
      Canvas.arrow(context, at(target.begin) + 4, y1, y2);
    }
  }

  function nulls() {
    if (!rows.nulls) return;
    const { y, height: tall } = rows.nulls, most = d3.max(Model.nulls, (each) => each.count) || 1;
    const scale = d3.scaleLinear([0, most], [0, tall - 2]);
    context.font = Canvas.SMALL;
    context.textAlign = "left";
    context.textBaseline = "middle";
    Model.nulls.forEach((each, place) => {
      const end = Model.nulls[place + 1]?.position ?? Model.size;
      if (!each.count || !isSeen(each.position, end)) return;
      const x1 = left(each.position), x2 = right(end);
      context.fillStyle = Theme.colour("rule");
      context.fillRect(x1, y + tall - scale(each.count), Math.max(x2 - x1, 1), scale(each.count));
      if (x2 - x1 > 24) {
        context.fillStyle = Theme.colour("ink");
        context.fillText(`∅ ${each.count}`, Math.max(x1, Layout.GUTTER) + 3, y + tall / 2);
      }
    });
  }

  return { draw };
})();
