"use strict";
// The block table of one request at the cursor, along its tokens: what each step in flight reads and writes, what stands where, what counts
// as computed and what is settled.

const Tokens = (() => {
  const { FONT, SMALL } = Canvas;
  const LABELS = 104, RIGHT = 12, TOP = 34, TABLE = 34, STEP = 24, AROUND = 2;  // blocks around what matters
  const BLOCKS_MAX = 28, CELL_MIN = 14;  // pixels a block
  const canvas = document.getElementById("tokens");
  let context, scale, size, group, owner;

  function draw() {
    const { cursor, violation } = View.state;
    ({ owner, group } = View.state);
    size = Model.data.groups[group]?.blockSize ?? 1;
    const flying = owner === null ? [] : inFlight(cursor);
    const shown = violation === null ? null : Model.violations[violation];
    const needs = shown?.needed && shown.step === null && shown.owner === owner && shown.group === group && shown.position === cursor ? [shown] : [];
    const height = TOP + TABLE + STEP * Math.max(flying.length + needs.length, Model.data.depth) + 14;
    context = Canvas.begin(canvas, View.width(), height);
    if (owner === null) return nothing("no request");
    const table = Model.table(owner, group, cursor), counters = Model.counters(owner, cursor);
    const range = indices(table, flying, needs, counters);
    if (!range) return nothing(`${Model.owners[owner]} has no tokens here`);
    scale = d3.scaleLinear([range[0] * size, range[1] * size], [LABELS, View.width() - RIGHT]);
    heads(range);
    const lost = new Map();
    flying.forEach((part, row) => stepRow(part, TOP + TABLE + 6 + row * STEP, table, lost));
    needs.forEach((each, row) => needRow(each, TOP + TABLE + 6 + (flying.length + row) * STEP, lost));
    cells(range, table, lost);
    if (counters) marks(counters, height);
    return undefined;
  }

  function nothing(text) {
    context.font = FONT;
    context.fillStyle = Theme.colour("dim");
    context.fillText(text, LABELS, TOP + 14);
  }

  const inFlight = (cursor) => Model.inFlight(cursor).flatMap((step) => step.parts.filter((part) => part.owner === owner));

  // The table indices to show: all of a short table, else what is used and held, at most as many as are wide enough.
  function indices(table, flying, needs, counters) {
    const used = [...table].filter(([, block]) => block > 0).map(([index]) => index);
    for (const part of flying) {
      for (const runs of part.uses[group]?.slice(2) ?? []) for (const [first, last] of runs) used.push(first, last);
      used.push(Math.floor(part.start / size), Math.floor((part.scheduled + part.tokens - 1) / size));
    }
    for (const each of needs) used.push(each.index);
    if (counters) used.push(Math.floor(counters.settled / size));
    if (!used.length) return null;
    const most = Math.max(4, Math.min(BLOCKS_MAX, Math.floor((View.width() - LABELS - RIGHT) / CELL_MIN)));
    let [low, high] = [d3.min(used), d3.max(used) + 1];
    if (high + 1 <= most) return [0, Math.max(high + 1, 4)];
    low = Math.max(0, Math.min(low - AROUND, high + 1 - 4));
    return [Math.max(low, high + 1 - most), high + 1];
  }

  function heads([first, end]) {
    context.font = SMALL;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const wide = scale(size) - scale(0), every = Math.max(1, Math.ceil(46 / wide));
    context.fillStyle = Theme.colour("dim");
    for (let index = first; index < end; index++) {
      if (index % every === 0) context.fillText(Canvas.fitted(context, `${index * size}`, wide * every), scale(index * size) + 1, TOP - 8);
    }
    context.textAlign = "right";
    context.fillText("token", LABELS - 8, TOP - 8);
    context.font = FONT;
    context.fillStyle = Theme.colour("ink");
    context.fillText(Canvas.fitted(context, `table of ${Model.owners[owner]}`, LABELS - 12), LABELS - 8, TOP + TABLE / 2);
  }

  function cells([first, end], table, lost) {
    context.textAlign = "center";
    context.textBaseline = "middle";
    const top = d3.max(table.keys()) ?? -1;
    for (let index = first; index < end; index++) {
      const x1 = scale(index * size), wide = scale((index + 1) * size) - x1, block = table.get(index);
      const isLost = lost.has(index);
      context.strokeStyle = Theme.colour("rule");
      if (block > 0) {
        context.fillStyle = isLost ? Theme.colour("bad-paper") : Theme.tint(owner);
        context.fillRect(x1, TOP, wide, TABLE);
      } else if (block === 0 || index <= top) {
        Canvas.hatch(context, x1, TOP, wide, TABLE, Theme.colour("rule"));
      }
      context.strokeRect(x1 + 0.5, TOP + 0.5, wide, TABLE);
      if (isLost) {
        context.strokeStyle = Theme.colour("bad");
        context.lineWidth = 2.5;
        context.strokeRect(x1 + 1.5, TOP + 1.5, wide - 3, TABLE - 3);
        context.lineWidth = 1;
      }
      context.fillStyle = Theme.colour(isLost ? "bad" : "ink");
      context.font = isLost ? "bold " + FONT : FONT;
      const text = block > 0 ? `${wide > 56 ? "block " : ""}${block}` : block === 0 || index <= top ? "∅" : "";
      if (text) context.fillText(Canvas.fitted(context, text, wide - 2), x1 + wide / 2, TOP + TABLE / 2 - (isLost && wide > 60 ? 6 : 0));
      if (isLost && wide > 60) {
        context.font = SMALL;
        const texts = lost.get(index), fitting = texts.find((each) => context.measureText(each).width <= wide - 4);
        context.fillText(fitting ?? Canvas.fitted(context, texts.at(-1), wide - 4), x1 + wide / 2, TOP + TABLE / 2 + 8);
      }
    }
  }

  function stepRow(part, y, table, lost) {
    const [row, , reads, writes] = part.uses[group] ?? [0, 0, [], []];
    label(`step ${part.step}`, y);
    for (const [first, last, low, high] of reads) {
      bar(low, Math.min(high + 1, part.start), y, "reads", 0.22);
      for (let index = first; index <= last; index++) {
        const found = Model.violationsOf(owner, group, part.step, index);
        const block = Model.data.workerRows[row][index];
        if (found.length && table.get(index) !== block) miss(index, found[0], y, lost, block);
      }
    }
    for (const [, , low, high] of writes) bar(low, Math.min(high + 1, part.start + part.tokens - part.drafts), y, "", 0.6);
    if (part.drafts) bar(part.start + part.tokens - part.drafts, part.start + part.tokens, y, "drafts", 0.4);
    const told = Model.violations[View.state.violation];
    for (const found of [told, ...Model.violations.filter((each) => each !== told)].reverse()) {
      if (found && found.owner === owner && found.group === group && found.step === part.step && found.needed && View.state.cursor >= found.begin) need(found, y, lost);
    }
    const interval = (from) => `[${from}, ${from + part.tokens})`;
    context.font = SMALL;
    context.textAlign = "left";
    context.fillStyle = Theme.colour("dim");
    const end = scale(part.start + part.tokens) + 6, text = part.scheduled === part.start ? interval(part.start) : `truly ${interval(part.start)}, scheduled ${interval(part.scheduled)}`;
    if (View.width() - end > 60) context.fillText(Canvas.fitted(context, text, View.width() - end - 4), end, y + STEP / 2 - 2);
  }

  function needRow(each, y, lost) {
    label("next step", y);
    need(each, y, lost);
  }

  function miss(index, found, y, lost, block) {
    if (View.state.cursor >= found.begin) lost.set(index, holderNow(block));
  }

  // Where the missed block is now, in longer and shorter words.
  function holderNow(block) {
    if (!block) return ["no block"];
    const held = Model.holdersOf(block, View.state.cursor)[0];
    if (!held) return [`block ${block} is free`, `${block} is free`];
    const holder = Model.holderText(held);
    return [`block ${block} went to ${holder}`, `${block}: ${holder}`];
  }

  function need(each, y, lost) {
    const [low, high] = each.needed, x1 = scale(low), x2 = Math.max(scale(high + 1), x1 + 4);
    context.fillStyle = Theme.colour("bad");
    context.fillRect(x1, y + 1, x2 - x1, STEP - 8);
    context.fillStyle = Theme.colour("paper");
    context.font = "bold " + SMALL;
    context.textAlign = "center";
    context.fillText(x2 - x1 > 40 ? each.verb : x2 - x1 > 7 ? "!" : "", (x1 + x2) / 2, y + STEP / 2 - 2.5);
    if (!lost.has(each.index)) lost.set(each.index, holderNow(each.block));
  }

  function bar(low, end, y, text, strength) {
    if (end <= low) return;
    const x1 = Math.max(scale(low), LABELS), x2 = scale(end);
    context.fillStyle = d3.interpolateRgb(Theme.colour("paper"), Theme.colour("accent"))(strength);
    context.fillRect(x1, y + 1, x2 - x1, STEP - 8);
    context.font = SMALL;
    context.textAlign = "center";
    context.fillStyle = Theme.colour("ink");
    if (x2 - x1 > 36 && text) context.fillText(Canvas.fitted(context, text, x2 - x1 - 4), (x1 + x2) / 2, y + STEP / 2 - 2.5);
  }

  function label(text, y) {
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = Theme.colour("ink");
    context.fillText(text, LABELS - 8, y + STEP / 2 - 2);
  }

  // Where the settled and the computed tokens end. Beside each other, settled to the left; in one text where these would overlap.
  function marks({ computed, settled }, height) {
    context.font = "bold " + SMALL;
    context.textBaseline = "middle";
    const isTight = Math.abs(scale(computed) - scale(settled)) < 4;
    const all = isTight ? [mark(settled, `settled = computed = ${computed}`, "good", true)]
      : [mark(settled, `settled ${settled}`, "good", true), mark(computed, `computed ${computed}`, "dim", false)];
    const seen = all.filter((each) => each.at >= LABELS - 1 && each.at <= View.width());
    for (const { at, colour } of seen) {
      context.strokeStyle = Theme.colour(colour);
      context.setLineDash(colour === "dim" ? [4, 3] : []);
      Canvas.line(context, at, 14, at, height - 4);
      context.setLineDash([]);
    }
    const isCrowded = seen.length === 2 && seen[0].x < seen[1].x + seen[1].wide && seen[1].x < seen[0].x + seen[0].wide;
    context.textAlign = "left";
    for (const { x, text, colour } of isCrowded ? [{ ...placed(seen[0].at, seen.map((each) => each.text).join(", "), true), colour: "ink" }] : seen) {
      context.fillStyle = Theme.colour(colour);
      context.fillText(text, x, 9);
    }
  }

  const mark = (tokens, text, colour, isBefore) => ({ ...placed(scale(tokens), text, isBefore), colour });

  // Before or after a mark, as is wanted; within the picture.
  function placed(at, text, isBefore) {
    const wide = context.measureText(text).width;
    return { at, text, wide, x: Math.min(Math.max(isBefore ? at - 4 - wide : at + 4, 2), View.width() - 2 - wide) };
  }

  return { draw, canvas };
})();
