"use strict";
// The data of the page, as written by data.py, with the lookups that the pictures need. Positions count events from 0.

const Model = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const size = data.events.lines.length;

  const named = ({ columns, rows }) => rows.map((row) => Object.fromEntries(columns.map((name, place) => [name, row[place]])));
  const holdings = named(data.holdings);
  const parts = named(data.parts);
  const steps = data.steps.map(([step, begin, end]) => ({ step, begin, end, parts: [] }));
  const lanes = data.lanes.lanes.map((lane) => ({
    ...lane,
    bars: named({ columns: data.lanes.barColumns, rows: lane.bars }),
  }));

  const byBegin = new Map(steps.map((step) => [step.begin + ":" + step.step, step]));
  for (const part of parts) {
    const step = byBegin.get(part.begin + ":" + part.step);
    if (step) step.parts.push(part);
  }

  // Steps in flight at once get different numbers, the lowest that are free.
  const ends = [];
  for (const step of steps) {
    const free = ends.findIndex((end) => end <= step.begin);
    step.slot = free < 0 ? ends.length : free;
    ends[step.slot] = step.end;
  }

  const byBlock = d3.group(holdings, (holding) => holding.block);
  const byTable = d3.group(holdings, (holding) => holding.owner, (holding) => holding.group);
  const cachedByBlock = d3.group(data.cached.map(([block, begin, end]) => ({ block, begin, end })), (each) => each.block);
  const violationsAt = d3.group(data.violations.map((violation, number) => ({ ...violation, number })), (each) => each.position);
  const violationsOfBlock = d3.group(data.violations.filter((each) => each.block !== null), (each) => each.block);

  // Steps are processed in the order in which they are scheduled, so that those in flight are neighbours.
  const begins = steps.map((step) => step.begin);
  function inFlight(position) {
    const found = [];
    for (let place = d3.bisectRight(begins, position) - 1; place >= 0 && steps[place].end > position; place--) found.unshift(steps[place]);
    return found;
  }

  function stepsWithin(from, to) {
    let place = d3.bisectLeft(begins, from);
    while (place > 0 && steps[place - 1].end > from) place--;
    return steps.slice(place, d3.bisectRight(begins, to));
  }

  const counterAt = d3.bisector((each) => each[0]).right;
  function counters(owner, position) {
    const known = data.counters[owner];
    const place = known ? counterAt(known, position) - 1 : -1;
    return place < 0 ? null : { computed: known[place][1], inFlight: known[place][2], stale: known[place][3], settled: known[place][4] };
  }

  // What stands in a request's table of a group after the event at a position, by index; a generation behind a fence is left out.
  function table(owner, group, position) {
    const entries = new Map();
    for (const holding of byTable.get(owner)?.get(group) ?? []) {
      const isThere = holding.begin <= position && position < holding.end;
      if (isThere && (holding.ended === null || position < holding.ended)) entries.set(holding.index, holding.block);
    }
    return entries;
  }

  const holdersOf = (block, position) => (byBlock.get(block) ?? []).filter((each) => each.begin <= position && position < each.end);

  // The violations that say something of a step's, or of the next step's, block at a table index.
  function violationsOf(owner, group, step, index) {
    return data.violations.filter(
      (each) => each.owner === owner && each.group === group && each.index === index && (each.step === step || each.step === null),
    );
  }

  const usedBlocks = [...byBlock.keys()].filter((block) => block > 0).sort(d3.ascending);
  const nulls = nullCounts();

  // How many table entries are null, from which position on.
  function nullCounts() {
    const changes = new Map();
    for (const each of byBlock.get(0) ?? []) {
      changes.set(each.begin, (changes.get(each.begin) ?? 0) + 1);
      changes.set(each.end, (changes.get(each.end) ?? 0) - 1);
    }
    let count = 0;
    return [...changes].sort((a, b) => a[0] - b[0]).map(([position, change]) => ({ position, count: (count += change) }));
  }

  return {
    data, size, steps, lanes, byBlock, byTable, cachedByBlock, violationsAt, violationsOfBlock, usedBlocks, nulls,
    violations: data.violations, events: data.events, owners: data.owners,
    kind: (position) => data.events.kinds[data.events.kind[position]],
    inFlight, stepsWithin, counters, table, holdersOf, violationsOf,
  };
})();
