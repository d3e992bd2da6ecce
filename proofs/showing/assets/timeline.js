"use strict";
// The time line: an event a column, lanes for host and device, a row a block. Drawn anew for each change, only what is in sight.

const TimeLine = (() => {
  const { canvas, at } = Frame;
  const LABEL = 44;  // pixels that a line number takes
  let context, rows, perEvent, from, to, height;

  function draw() {
    ({ context, rows, perEvent, from, to, height } = Frame.begin());
    column();
    Canvas.clipped(context, Layout.GUTTER, rows.top, View.width(), height, Blocks.draw);
    Canvas.clipped(context, Layout.GUTTER, Layout.OVERVIEW, View.width(), rows.top, () => { axis(); Lanes.draw(); });
    names();
    overview();
  }

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
    context.font = Canvas.SMALL;
    context.textAlign = "center";
    const every = Math.max(1, Math.ceil(LABEL / perEvent));
    for (let position = Math.max(0, Math.floor(from)); position < Math.min(Model.size, to + 1); position++) {
      const isCursor = position === View.state.cursor, isWrong = Model.violationsAt.has(position);
      if (position % every && !isCursor && !(isWrong && perEvent > 10)) continue;
      context.fillStyle = Theme.colour(isWrong ? "bad" : isCursor ? "ink" : "dim");
      const near = !isCursor && Math.abs(position - View.state.cursor) * perEvent < LABEL - 10;
      if (!near || perEvent >= LABEL) context.fillText(Model.events.lines[position], at(position), y - 6);
    }
    context.strokeStyle = Theme.colour("rule");
    Canvas.line(context, Layout.GUTTER, y, View.width(), y);
  }

  function names() {
    context.clearRect(0, 0, Layout.GUTTER - 1, height);
    context.font = Canvas.FONT;
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
      for (const [block, y] of Frame.visibleBlocks()) {
        const isHit = View.state.hits?.blocks.has(block);
        write(`block ${block}`, y + Layout.tall(block) / 2, block === violated ? "bad" : isHit ? "accent" : "ink");
      }
    });
    context.strokeStyle = Theme.colour("rule");
    Canvas.line(context, Layout.GUTTER - 0.5, Layout.OVERVIEW, Layout.GUTTER - 0.5, height);
    Canvas.line(context, 0, rows.top - 3, View.width(), rows.top - 3);
    if (rows.height > height) {
      context.textAlign = "left";
      context.font = Canvas.SMALL;
      if (View.state.scroll > 0) write("▲", rows.top + 6);
      if (View.state.scroll < rows.height - height) write("▼", height - 8);
    }
  }

  // ---- the mouse -----------------------------------------------------------------------------------------------------

  function positionAt(pixels) {
    return Math.min(Math.max(Math.floor(Frame.x.invert(pixels)), 0), Model.size - 1);
  }

  function overviewAt(pixels) {
    return Math.floor(d3.scaleLinear([Layout.GUTTER, View.width()], [0, Model.size]).clamp(true)(pixels));
  }

  function textAt(px, py) {
    const found = Frame.pointed.findLast((each) => each.x <= px && px <= each.x + each.wide && each.y <= py && py <= each.y + each.tall);
    if (found && px >= Layout.GUTTER) return found.text();
    if (px < Layout.GUTTER || py < Layout.OVERVIEW) return "";
    const position = positionAt(px);
    return `line ${Frame.lineOf(position)}: ${Model.events.words[position]}`;
  }

  return { draw, canvas, positionAt, overviewAt, textAt };
})();
