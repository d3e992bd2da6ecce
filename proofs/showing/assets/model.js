"use strict";
// The data of the page, as written by data.py, with the lookups that the pictures need. Positions count events from 0.

const Model = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const size = data.events.lines.length;

  const holdings = data.holdings.map(([block, owner, group, index, begin, end, ended]) => ({ block, owner, group, index, begin, end, ended }));
  const parts = data.parts.map(([step, owner, begin, end, scheduled, start, tokens, drafts, uses]) => (
    { step, owner, begin, end, scheduled, start, tokens, drafts, uses }));
  const steps = data.steps.map(([step, begin, end]) => ({ step, begin, end, parts: [] }));
  const lanes = data.lanes.lanes.map((lane) => ({
    ...lane, bars: lane.bars.map(([begin, end, slot, kind, label, step]) => ({ begin, end, slot, kind, label, step })),
  }));

  const byBegin = new Map(steps.map((step) => [step.begin + ":" + step.step, step]));
  for (const part of parts) {
    const step = byBegin.get(part.begin + ":" + part.step);
    if (step) step.parts.push(part);
  }

  // Spans in the order of their beginnings: those that overlap get different slots, the lowest that are free. Returns how many there are.
  function layOut(spans) {
    const ends = [];
    for (const span of spans) {
      const free = ends.findIndex((end) => end <= span.begin);
      span.slot = free < 0 ? ends.length : free;
      ends[span.slot] = span.end;
    }
    return ends.length;
  }

  const byBlock = d3.group(holdings, (holding) => holding.block);
  const byTable = d3.group(holdings, (holding) => holding.owner, (holding) => holding.group);
  const cachedByBlock = d3.group(data.cached.map(([block, begin, end]) => ({ block, begin, end })), (each) => each.block);
  layOut(steps);
  const holdersAtOnce = new Map([...byBlock].filter(([block]) => block > 0).map(([block, spans]) => [block, layOut(spans)]));
  for (const spans of cachedByBlock.values()) spans.sort((one, other) => one.begin - other.begin);
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

  // Whether a request holds a block, or has a step in flight.
  function isThere(owner, position) {
    for (const [, holdings] of byTable.get(owner) ?? []) {
      if (holdings.some((each) => each.block > 0 && each.begin <= position && position < each.end)) return true;
    }
    return inFlight(position).some((step) => step.parts.some((part) => part.owner === owner));
  }

  // Who it is, and where in whose table; the group where there are several.
  const holderText = ({ owner, group, index }) => (index < 0 ? data.owners[owner] : `${data.owners[owner]} ${data.groups.length > 1 ? `g${group}` : ""}[${index}]`);

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
    const changes = new Int32Array(size + 1), counts = [];
    for (const { begin, end } of byBlock.get(0) ?? []) {
      changes[begin] += 1;
      changes[end] -= 1;
    }
    let count = 0;
    changes.forEach((change, position) => {
      if (change) counts.push({ position, count: (count += change) });
    });
    return counts;
  }

  return {
    data, size, steps, lanes, byBlock, byTable, cachedByBlock, violationsAt, violationsOfBlock, usedBlocks, nulls, holdersAtOnce,
    violations: data.violations, events: data.events, owners: data.owners,
    kind: (position) => data.events.kinds[data.events.kind[position]],
    inFlight, isThere, stepsWithin, counters, table, holdersOf, holderText, violationsOf,
  };
})();
