"use strict";
// Where the rows of the time line stand, and how wide an event is. Lengths are in CSS pixels.

const Layout = (() => {
  const GUTTER = 104, OVERVIEW = 14, AXIS = 20, HOST = 44, BAR = 20, GAP = 6, BLOCK = 26, NULLS = 18;

  const HOLDER = 17, HOLDERS_MAX = 3;  // more for each further one that holds a block at the same time; that are drawn beside each other

  const holders = (block) => Math.min(Model.holdersAtOnce.get(block) ?? 1, HOLDERS_MAX);
  const tall = (block) => BLOCK + (holders(block) - 1) * HOLDER;

  // `blocks`: the ids that get a row; `tops`: where the row of each begins, below the top of the first.
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
    const tops = [0];
    for (const block of blocks) tops.push(tops.at(-1) + tall(block));
    return { host, lanes, nulls, top: y, blocks, tops, height: y + tops.at(-1) + 4 };
  }

  return { rows, holders, tall, GUTTER, OVERVIEW, AXIS, BAR, BLOCK };
})();
