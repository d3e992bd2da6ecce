"use strict";
// Where the rows of the time line stand, and how wide an event is. Lengths are in CSS pixels.

const Layout = (() => {
  const GUTTER = 104, OVERVIEW = 14, AXIS = 20, HOST = 44, BAR = 20, GAP = 6, BLOCK = 26, NULLS = 18;

  // `blocks`: the ids that get a row.
  function rows(blocks) {
    let y = OVERVIEW + AXIS;
    const host = { y, height: HOST, label: "host" };
    y += HOST + GAP;
    const lanes = Model.lanes.map((lane) => {
      const row = { y, height: lane.slots * BAR + 4, label: lane.name, lane };
      y += row.height + GAP;
      return row;
    });
    const nulls = Model.nulls.length ? { y, height: NULLS, label: "null entries" } : null;
    if (nulls) y += NULLS + GAP;
    return { host, lanes, nulls, top: y, blocks, blockHeight: BLOCK, height: y + blocks.length * BLOCK + 4 };
  }

  return { rows, GUTTER, OVERVIEW, AXIS, BAR, BLOCK };
})();
