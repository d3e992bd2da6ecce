"use strict";
// What one drawing of the time line has in common: the canvas, the scale, what is in sight, and what the mouse may point at.

const Frame = (() => {
  const HEIGHT_MIN = 240, HEIGHT_SHARE = 0.62;  // of the canvas, in pixels; of the window
  const canvas = document.getElementById("time");
  const frame = { canvas, begin, at, left, right, isSeen, lineOf, visibleBlocks, point };

  function begin() {
    const rows = Layout.rows(View.state.blocks), x = View.x();
    const height = Math.max(HEIGHT_MIN, Math.min(rows.height, Math.max(window.innerHeight * HEIGHT_SHARE, rows.top + 5 * Layout.BLOCK)));
    const [from, to] = x.domain();
    View.state.scroll = Math.min(Math.max(View.state.scroll, 0), Math.max(0, rows.height - height));
    Object.assign(frame, { rows, x, height, from, to, perEvent: x(1) - x(0), pointed: [], context: Canvas.begin(canvas, View.width(), height) });
    return frame;
  }

  // An event stands in the middle of its column; a span is cut off just out of sight.
  function at(position) { return frame.x(position + 0.5); }
  function left(position) { return Math.max(at(position), Layout.GUTTER - 20); }
  function right(position) { return Math.min(at(position), View.width() + 20); }
  function isSeen(from, end) { return end >= frame.from - 1 && from <= frame.to; }
  function lineOf(position) { return position < Model.size ? Model.events.lines[position] : "the end"; }

  // Blocks that have a row in sight, with the top of the row.
  function* visibleBlocks() {
    const { rows, height } = frame;
    for (let row = Math.max(0, d3.bisectRight(rows.tops, View.state.scroll) - 1); row < rows.blocks.length; row++) {
      const y = rows.top + rows.tops[row] - View.state.scroll;
      if (y > height) return;
      yield [rows.blocks[row], y];
    }
  }

  // `text` is made when it is needed.
  function point(x, y, wide, tall, text) {
    frame.pointed.push({ x, y, wide, tall, text });
  }

  return frame;
})();
