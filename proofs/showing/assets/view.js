"use strict";
// What is looked at: the cursor, the violation, the request whose tokens are shown, the zoom. Everything that changes goes through here.

const View = (() => {
  const state = { cursor: 0, violation: null, owner: null, group: 0, hits: null, blocks: [], choice: "all", scroll: 0 };
  const listeners = [];
  const COLUMNS_MIN = 6;  // events that fill the width at the closest zoom
  let width = 800;
  let transform = d3.zoomIdentity;
  let canvas = null;

  const base = () => d3.scaleLinear([0, Math.max(Model.size, 1)], [Layout.GUTTER, width]);
  const x = () => transform.rescaleX(base());
  const scaleMax = () => Math.max(1, Model.size / COLUMNS_MIN);

  const zoom = d3.zoom().on("zoom", (event) => {
    transform = event.transform;
    if (event.sourceEvent?.type === "mousemove") scrollBy(-event.sourceEvent.movementY);
    changed();
  }).filter((event) => !event.button && !(event.type === "wheel" && event.shiftKey) && event.type !== "dblclick");

  function attach(element) {
    canvas = d3.select(element);
    canvas.call(zoom);
  }

  function resize(pixels) {
    width = Math.max(pixels, Layout.GUTTER + 100);
    zoom.scaleExtent([1, scaleMax()]).extent([[Layout.GUTTER, 0], [width, 1]]).translateExtent([[Layout.GUTTER, 0], [width, 1]]);
    if (canvas) canvas.call(zoom.transform, transform);
  }

  // Shows the events from one position to before another.
  function show(from, to) {
    const k = Math.min(Math.max(Model.size / Math.max(to - from, COLUMNS_MIN), 1), scaleMax()), half = Model.size / k / 2;
    const middle = base()(Math.min(Math.max((from + to) / 2, half), Model.size - half));
    canvas.call(zoom.transform, d3.zoomIdentity.translate((Layout.GUTTER + width) / 2 - k * middle, 0).scale(k));
  }

  function scaleBy(factor) {
    const at = x()(state.cursor + 0.5);
    canvas.call(zoom.scaleBy, factor, [Math.min(Math.max(at, Layout.GUTTER), width), 0]);
  }

  // Keeps the cursor in sight, without a change of scale.
  function reveal() {
    const [from, to] = x().domain(), count = to - from;
    if (state.cursor < from + count * 0.04 || state.cursor + 1 > to - count * 0.04) show(state.cursor + 0.5 - count / 2, state.cursor + 0.5 + count / 2);
  }

  function go(position) {
    state.cursor = Math.min(Math.max(position, 0), Model.size - 1);
    follow();
    reveal();
    changed();
  }

  // Once the request that is shown has nothing left, that of the event is more telling.
  function follow() {
    const owner = Model.events.owner[state.cursor];
    if (owner === null || owner === state.owner || Model.isThere(state.owner, state.cursor)) return;
    state.owner = owner;
    if (state.choice === "request") choose("request");
  }

  function select(number) {
    const found = Model.violations[number];
    if (!found) return;
    state.violation = number;
    state.cursor = found.position;
    if (found.owner !== null) [state.owner, state.group] = [found.owner, found.group ?? state.group];
    choose(state.choice);
    focus();
  }

  // The violation with what led to it and what follows.
  function focus() {
    const found = Model.violations[state.violation];
    if (!found) return show(0, Model.size);
    const places = found.chapters.map(([position]) => position).concat(found.begin, Math.min(found.end, Model.size - 1));
    const from = d3.min(places), to = d3.max(places) + 1, margin = Math.max(2, (to - from) * 0.15);
    show(Math.max(from - margin, 0), Math.min(to + margin, Model.size));
    state.scroll = 0;
    changed();
  }

  function nextViolation(direction) {
    if (!Model.violations.length) return;
    const there = state.violation ?? (direction > 0 ? -1 : Model.violations.length);
    select(Math.min(Math.max(there + direction, 0), Model.violations.length - 1));
  }

  // Which blocks get a row: all that are used, those of the request that is shown, or those of violations. That of the violation comes first.
  function choose(choice) {
    state.choice = choice;
    const of = new Set();
    if (choice === "request") for (const [, holdings] of Model.byTable.get(state.owner) ?? []) for (const each of holdings) of.add(each.block);
    if (choice === "violation") for (const each of Model.violations) if (each.block) of.add(each.block);
    const told = Model.violations[state.violation]?.block, rest = Model.usedBlocks.filter((block) => block !== told && (choice === "all" || of.has(block)));
    state.blocks = told ? [told, ...rest] : rest;
    state.scroll = 0;
    changed();
  }

  function scrollBy(pixels) {
    state.scroll += pixels;
  }

  function changed() {
    for (const listener of listeners) listener(state);
  }

  return {
    state, x, attach, resize, show, scaleBy, go, select, focus, nextViolation, choose, changed,
    scrollBy: (pixels) => { scrollBy(pixels); changed(); },
    takeKeys: () => canvas.node().focus({ preventScroll: true }),
    width: () => width,
    onChange: (listener) => listeners.push(listener),
  };
})();
