"use strict";
// The lower part of the time line, a row a block: who holds it, whether it is in the prefix cache, which steps in flight use it, and where
// that is violated.

const Blocks = (() => {
  const USES_FROM = 1.5;  // pixels an event from which uses are drawn
  const HOLDERS_MAX = 3, USES_MAX = 3;  // that are drawn beside each other
  const { at, left, right, isSeen, lineOf } = Frame;
  let context, perEvent, from, to;

  function draw() {
    ({ context, perEvent, from, to } = Frame);
    const places = new Map(Frame.visibleBlocks());
    for (const [block, y] of places) {
      context.strokeStyle = Theme.colour("rule");
      Canvas.line(context, Layout.GUTTER, y + Layout.BLOCK - 0.5, View.width(), y + Layout.BLOCK - 0.5);
      for (const each of distinct(Model.byBlock.get(block) ?? [])) holding(each, y);
      for (const each of distinct(Model.cachedByBlock.get(block) ?? [])) cached(each, y);
    }
    if (perEvent > USES_FROM) uses(places);
    for (const [block, y] of places) violations(block, y);
  }

  // Of spans in the order of their beginnings those in sight; of what is no wider than a pixel one for each pixel.
  function* distinct(spans) {
    let last = -1;
    for (const each of spans) {
      if (each.begin > to) return;
      if (each.end < from - 1) continue;
      const pixel = Math.floor(at(each.begin));
      if ((each.end - each.begin) * perEvent < 1 && pixel === last) continue;
      last = pixel;
      yield each;
    }
  }

  function holding(each, y) {
    const slots = Math.min(Model.holdersAtOnce.get(each.block), HOLDERS_MAX), slot = Math.min(each.slot, slots - 1);
    const tall = (Layout.BLOCK - 5) / slots, top = y + 2 + slot * tall;
    const x1 = left(each.begin), x2 = Math.max(right(each.end), x1 + 1);
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
      context.font = slots > 1 ? Canvas.TINY : Canvas.SMALL;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = Theme.colour("ink");
      const begin = Math.max(x1, Layout.GUTTER);
      context.fillText(Canvas.fitted(context, holderText(each), x2 - begin - 8), begin + 5, top + tall / 2 - (slots > 1 ? 0 : 2));
    }
    Frame.point(x1, top, x2 - x1, tall, () => holdingText(each));
  }

  function holdingText(each) {
    const where = each.group >= 0 ? ` of group ${each.group}` : "";
    const ended = each.ended === null ? "" : `\nits generation ended at line ${lineOf(each.ended)}`;
    return `block ${each.block}: ${holderText(each)}${where}\nfrom line ${lineOf(each.begin)} to ${lineOf(each.end)}${ended}`;
  }

  const holderText = (each) => Model.owners[each.owner] + (each.index >= 0 ? ` [${each.index}]` : "");

  function cached(each, y) {
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
          context.fillRect(x1, y + Layout.BLOCK - 3 - tall - (step.slot % USES_MAX) * 4, x2 - x1, tall);
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
    Frame.point(x1, y, x2 - x1, Layout.BLOCK, () => each.sentence);
  }

  function violatedLabel(each, y, taken) {
    const begin = Math.max(left(each.begin), Layout.GUTTER) + 5;
    const free = Math.min(right(each.end), ...taken.filter(([from_]) => from_ > begin).map(([from_]) => from_)) - 4;
    if (free - begin < 30 || taken.some(([from_, to_]) => from_ <= begin && begin < to_)) return;
    context.font = "bold " + Canvas.SMALL;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const text = Canvas.fitted(context, each.label, free - begin), wide = context.measureText(text).width;
    context.fillStyle = Theme.colour("bad-paper");
    context.fillRect(begin - 2, y + 4, wide + 4, 13);
    context.fillStyle = Theme.colour("bad");
    context.fillText(text, begin, y + Layout.BLOCK / 2 - 3);
    taken.push([begin, begin + wide + 8]);
  }

  return { draw };
})();
