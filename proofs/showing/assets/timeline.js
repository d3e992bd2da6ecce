"use strict";
// The time line: an event a column, lanes for host and device, a row a block. Drawn anew for each change, only what is in sight.

const TimeLine = (() => {
  const FONT = '12px system-ui, "Segoe UI", Roboto, sans-serif', SMALL = '11px system-ui, "Segoe UI", Roboto, sans-serif';
  const HEIGHT_MIN = 240, READS_FROM = 1.5, LABELS_FROM = 52;  // pixels an event from which reads and labels are drawn
  const HEIGHT_SHARE = 0.62;  // of the window
  const canvas = document.getElementById("time");
  let context, rows, x, perEvent, from, to, height, hit;

  function draw() {
    rows = Layout.rows(View.state.blocks);
    height = Math.max(HEIGHT_MIN, Math.min(rows.height, Math.max(window.innerHeight * HEIGHT_SHARE, rows.top + 5 * Layout.BLOCK)));
    context = Canvas.begin(canvas, View.width(), height);
    x = View.x();
    [from, to] = x.domain();
    perEvent = x(1) - x(0);
    hit = [];
    View.state.scroll = Math.min(Math.max(View.state.scroll, 0), Math.max(0, rows.height - height));
    context.font = FONT;
    column();
    Canvas.clipped(context, Layout.GUTTER, rows.top, View.width(), height, blocks);
    Canvas.clipped(context, Layout.GUTTER, Layout.OVERVIEW, View.width(), rows.top, () => { axis(); host(); lanes(); nulls(); });
    names();
    overview();
  }

  const at = (position) => x(position + 0.5);
  const left = (begin) => Math.max(at(begin), Layout.GUTTER - 20);
  const right = (end) => Math.min(at(end), View.width() + 20);
  const isSeen = (begin, end) => end >= from - 1 && begin <= to;

  // ---- around the lanes ----------------------------------------------------------------------------------------------

  function column() {
    const wide = Math.max(perEvent, 3);
    context.fillStyle = Theme.colour("column");
    context.fillRect(Math.max(at(View.state.cursor) - wide / 2, Layout.GUTTER), Layout.OVERVIEW, wide, height);
  }

  function overview() {
    const scale = d3.scaleLinear([0, Model.size], [Layout.GUTTER, View.width() - 1]);
    context.fillStyle = Theme.colour("panel");
    context.fillRect(Layout.GUTTER, 0, View.width(), Layout.OVERVIEW);
    context.fillStyle = Theme.colour("column");
    context.fillRect(scale(from), 0, Math.max(scale(to) - scale(from), 2), Layout.OVERVIEW);
    context.fillStyle = Theme.colour("accent");
    for (const position of View.state.hits?.positions ?? []) context.fillRect(scale(position), Layout.OVERVIEW - 5, 1.5, 5);
    context.fillStyle = Theme.colour("bad");
    for (const position of Model.violationsAt.keys()) context.fillRect(scale(position) - 1, 1, 2, Layout.OVERVIEW - 2);
    context.fillStyle = Theme.colour("ink");
    context.fillRect(scale(View.state.cursor + 0.5), 0, 1, Layout.OVERVIEW);
  }

  function axis() {
    const y = Layout.OVERVIEW + Layout.AXIS;
    context.font = SMALL;
    context.textAlign = "center";
    const every = Math.max(1, Math.ceil(44 / perEvent));
    for (let position = Math.max(0, Math.floor(from)); position < Math.min(Model.size, to + 1); position++) {
      const isCursor = position === View.state.cursor, isWrong = Model.violationsAt.has(position);
      if (position % every && !isCursor && !(isWrong && perEvent > 10)) continue;
      context.fillStyle = Theme.colour(isWrong ? "bad" : isCursor ? "ink" : "dim");
      const near = !isCursor && Math.abs(position - View.state.cursor) * perEvent < 34;
      if (!near || perEvent >= 44) context.fillText(Model.events.lines[position], at(position), y - 6);
    }
    context.strokeStyle = Theme.colour("rule");
    Canvas.line(context, Layout.GUTTER, y, View.width(), y);
  }

  function names() {
    context.clearRect(0, 0, Layout.GUTTER - 1, height);
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const write = (text, y, colour = "dim") => {
      context.fillStyle = Theme.colour(colour);
      context.fillText(Canvas.fitted(context, text, Layout.GUTTER - 12), Layout.GUTTER - 8, y);
    };
    write("line", Layout.OVERVIEW + Layout.AXIS / 2, "dim");
    write(rows.host.label, rows.host.y + rows.host.height / 2, "ink");
    for (const row of rows.lanes) write(row.label, row.y + row.height / 2, "ink");
    if (rows.nulls) write(rows.nulls.label, rows.nulls.y + rows.nulls.height / 2);
    Canvas.clipped(context, 0, rows.top, Layout.GUTTER, height, () => {
      const violated = View.state.violation === null ? null : Model.violations[View.state.violation].block;
      for (const [block, y] of visibleBlocks()) {
        const isHit = View.state.hits?.blocks.has(block);
        write(`block ${block}`, y + Layout.BLOCK / 2, block === violated ? "bad" : isHit ? "accent" : "ink");
      }
    });
    context.strokeStyle = Theme.colour("rule");
    Canvas.line(context, Layout.GUTTER - 0.5, Layout.OVERVIEW, Layout.GUTTER - 0.5, height);
    Canvas.line(context, 0, rows.top - 3, View.width(), rows.top - 3);
    if (rows.height > height) {
      context.textAlign = "left";
      context.font = SMALL;
      if (View.state.scroll > 0) write("▲", rows.top + 6);
      if (View.state.scroll < rows.height - height) write("▼", height - 8);
    }
  }

  // ---- host and device -----------------------------------------------------------------------------------------------

  function host() {
    const { y } = rows.host;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const steps = Model.stepsWithin(from - 1, to);
    if (perEvent > 2) {
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
    context.font = FONT;
    const shown = perEvent >= 26 ? `${glyph} ${text}` : glyph;
    context.fillText(shown, at(position), y);
  }

  function other(position, kind, y) {
    const owner = Model.events.owner[position];
    context.fillStyle = owner === null ? Theme.colour("dim") : Theme.hue(owner);
    if (perEvent < LABELS_FROM) return context.fillRect(at(position) - Math.min(perEvent / 2, 2), y - 6, Math.max(Math.min(perEvent - 1, 4), 1), 12);
    context.font = SMALL;
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

  function lanes() {
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
    if (perEvent > 6) waits();
  }

  function drawBar(bar, x1, y, wide, tall) {
    const transfer = bar.kind === "load" || bar.kind === "store";
    context.fillStyle = bar.kind === "step" ? d3.interpolateRgb(Theme.colour("paper"), Theme.colour("accent"))(0.25)
      : d3.interpolateRgb(Theme.colour("paper"), Theme.colour("cached"))(transfer ? 0.4 : 0.25);
    context.fillRect(x1, y, wide, tall);
    context.strokeStyle = Theme.colour(bar.kind === "step" ? "accent" : "cached");
    if (wide > 4) context.strokeRect(x1 + 0.5, y + 0.5, wide - 1, tall - 1);
    if (wide > 30) {
      context.font = SMALL;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = Theme.colour("ink");
      const begin = Math.max(x1, Layout.GUTTER);
      context.fillText(Canvas.fitted(context, bar.label, x1 + wide - begin - 8), begin + 4, y + tall / 2 + 0.5);
    }
    hit.push({ x: x1, y, wide, tall, text: `${bar.label}\nfrom line ${lineOf(bar.begin)} to ${lineOf(bar.end)}` });
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
    context.font = SMALL;
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

  // ---- blocks --------------------------------------------------------------------------------------------------------

  function* visibleBlocks() {
    const first = Math.max(0, Math.floor(View.state.scroll / Layout.BLOCK));
    for (let row = first; row < rows.blocks.length; row++) {
      const y = rows.top + row * Layout.BLOCK - View.state.scroll;
      if (y > height) return;
      yield [rows.blocks[row], y];
    }
  }

  function blocks() {
    const places = new Map(visibleBlocks());
    for (const [block, y] of places) {
      context.strokeStyle = Theme.colour("rule");
      Canvas.line(context, Layout.GUTTER, y + Layout.BLOCK - 0.5, View.width(), y + Layout.BLOCK - 0.5);
      for (const each of Model.byBlock.get(block) ?? []) holding(each, y);
      for (const each of Model.cachedByBlock.get(block) ?? []) cached(each, y);
    }
    if (perEvent > READS_FROM) uses(places);
    for (const [block, y] of places) violations(block, y);
  }

  function holding(each, y) {
    if (!isSeen(each.begin, each.end)) return;
    const x1 = left(each.begin), x2 = Math.max(right(each.end), x1 + 1), top = y + 2, tall = Layout.BLOCK - 5;
    const isDimmed = View.state.hits && View.state.hits.owners.size && !View.state.hits.owners.has(each.owner);
    context.fillStyle = Theme.tint(each.owner, isDimmed ? 0.12 : 0.42);
    context.fillRect(x1, top, x2 - x1, tall);
    if (each.ended !== null && each.end - each.ended > 0) {
      Canvas.hatch(context, Math.max(at(each.ended), x1), top, x2 - Math.max(at(each.ended), x1), tall, Theme.colour("dim"));
    }
    if (x2 - x1 > 6) {
      context.fillStyle = Theme.hue(each.owner);
      context.fillRect(x1, top, 2, tall);
    }
    if (x2 - x1 > 26) {
      context.font = SMALL;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = Theme.colour("ink");
      const begin = Math.max(x1, Layout.GUTTER);
      context.fillText(Canvas.fitted(context, holderText(each), x2 - begin - 8), begin + 5, top + tall / 2 - 2);
    }
    hit.push({
      x: x1, y, wide: x2 - x1, tall: Layout.BLOCK,
      text: `block ${each.block}: ${holderText(each)}${each.group >= 0 ? ` of group ${each.group}` : ""}\nfrom line ${lineOf(each.begin)} to ${lineOf(each.end)}`
        + (each.ended === null ? "" : `\nits generation ended at line ${lineOf(each.ended)}`),
    });
  }

  const holderText = (each) => Model.owners[each.owner] + (each.index >= 0 ? ` [${each.index}]` : "");
  const lineOf = (position) => (position < Model.size ? Model.events.lines[position] : "the end");

  function cached(each, y) {
    if (!isSeen(each.begin, each.end)) return;
    const x1 = left(each.begin), x2 = Math.max(right(each.end), x1 + 1);
    context.fillStyle = Theme.colour("cached");
    context.fillRect(x1, y + 1, x2 - x1, 2.5);
  }

  // What the steps in flight read and write: a line for each, in the lower part of a block's row.
  function uses(places) {
    for (const step of Model.stepsWithin(from - 1, to)) {
      const isCurrent = step.begin <= View.state.cursor && View.state.cursor < step.end;
      context.globalAlpha = isCurrent ? 1 : 0.55;
      for (const part of step.parts) part.uses.forEach(([row, , reads, writes]) => {
        for (const [runs, tall] of [[reads, 1.5], [writes, 3]]) for (const [first, last] of runs) for (let index = first; index <= last; index++) {
          const y = places.get(Model.data.workerRows[row][index]);
          if (y === undefined) continue;
          const x1 = left(step.begin), x2 = Math.max(right(step.end), x1 + 1);
          context.fillStyle = Theme.colour(isCurrent ? "accent" : "dim");
          context.fillRect(x1, y + Layout.BLOCK - 3 - tall - (step.slot % 3) * 4, x2 - x1, tall);
        }
      });
      context.globalAlpha = 1;
    }
  }

  // The one that is told comes last, on top; where labels would cover each other, the first one stands.
  function violations(block, y) {
    const told = Model.violations[View.state.violation], all = Model.violationsOfBlock.get(block) ?? [];
    const seen = all.filter((each) => isSeen(each.begin, each.end));
    for (const each of seen) if (each !== told) violated(each, y);
    if (seen.includes(told)) violated(told, y);
    const taken = [];
    for (const each of seen.sort((one, other) => (other === told) - (one === told))) violatedLabel(each, y, taken);
  }

  function violated(each, y) {
    const x1 = left(each.begin), x2 = Math.max(right(each.end), x1 + 4), top = y + 1, tall = Layout.BLOCK - 3;
    const isTold = Model.violations[View.state.violation] === each;
    context.globalAlpha = isTold ? 0.26 : 0.1;
    context.fillStyle = Theme.colour("bad");
    context.fillRect(x1, top, x2 - x1, tall);
    context.globalAlpha = 1;
    context.strokeStyle = Theme.colour("bad");
    context.lineWidth = isTold ? 2.5 : 1;
    context.strokeRect(x1 + 0.5, top + 0.5, x2 - x1 - 1, tall - 1);
    context.lineWidth = 1;
    hit.push({ x: x1, y, wide: x2 - x1, tall: Layout.BLOCK, text: each.sentence });
  }

  function violatedLabel(each, y, taken) {
    const begin = Math.max(left(each.begin), Layout.GUTTER) + 5;
    const free = Math.min(right(each.end), ...taken.filter(([from_]) => from_ > begin).map(([from_]) => from_)) - 4;
    if (free - begin < 30 || taken.some(([from_, to_]) => from_ <= begin && begin < to_)) return;
    context.font = "bold " + SMALL;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = Theme.colour("bad");
    const text = Canvas.fitted(context, violatedText(each), free - begin);
    context.fillText(text, begin, y + Layout.BLOCK / 2 - 3);
    taken.push([begin, begin + context.measureText(text).width + 8]);
  }

  function violatedText(each) {
    const verb = each.property === "write_owned" ? "writes" : "reads";
    return each.step === null ? `next step ${verb} it` : `step ${each.step} ${verb} it`;
  }

  // ---- the mouse -----------------------------------------------------------------------------------------------------

  function positionAt(pixels) {
    return Math.min(Math.max(Math.floor(x.invert(pixels)), 0), Model.size - 1);
  }

  function overviewAt(pixels) {
    return Math.floor(d3.scaleLinear([Layout.GUTTER, View.width()], [0, Model.size]).clamp(true)(pixels));
  }

  function textAt(px, py) {
    const found = hit.findLast((each) => each.x <= px && px <= each.x + each.wide && each.y <= py && py <= each.y + each.tall);
    if (found && px >= Layout.GUTTER) return found.text;
    if (px < Layout.GUTTER || py < Layout.OVERVIEW) return "";
    const position = positionAt(px);
    return `line ${lineOf(position)}: ${Model.events.words[position]}`;
  }

  return { draw, canvas, positionAt, overviewAt, textAt };
})();
