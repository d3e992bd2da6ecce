"use strict";
// The lower part of the time line, a row a block: who holds it, whether it is in the prefix cache, which steps in flight use it, and where
// that is violated.

const Blocks = (() => {
  const USES_FROM = 1.5;  // pixels an event from which uses are drawn
  const USES_MAX = 3;  // that are drawn beside each other
  const { at, left, right, isSeen, lineOf } = Frame;
  let context, perEvent, from, to;

  function draw() {
    ({ context, perEvent, from, to } = Frame);
    const places = new Map(Frame.visibleBlocks());
    const labels = new Map([...places.keys()].map((block) => [block, labelsOf(block)]));
    for (const [block, y] of places) {
      context.strokeStyle = Theme.colour("rule");
      Canvas.line(context, Layout.GUTTER, y + Layout.tall(block) - 0.5, View.width(), y + Layout.tall(block) - 0.5);
      for (const each of distinct(Model.byBlock.get(block) ?? [])) holding(each, y, labels.get(block));
      for (const each of distinct(Model.cachedByBlock.get(block) ?? [])) cached(each, y);
    }
    if (perEvent > USES_FROM) uses(places);
    for (const [block, y] of places) violations(block, y, labels.get(block));
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

  function holding(each, y, labels) {
    const slots = Layout.holders(each.block), slot = Math.min(each.slot, slots - 1);
    const tall = (Layout.tall(each.block) - 5) / slots, top = y + 2 + slot * tall;
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
      context.font = Canvas.SMALL;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = Theme.colour("ink");
      const [begin, end] = slot ? [Math.max(x1, Layout.GUTTER) + 5, x2] : beside(labels, Math.max(x1, Layout.GUTTER) + 5, x2);
      context.fillText(Canvas.fitted(context, Model.holderText(each), end - begin - 3), begin, top + tall / 2 - (slots > 1 ? 0 : 2));
    }
    Frame.point(x1, top, x2 - x1, tall, () => holdingText(each));
  }

  // What labels leave free of a span, to say there who holds the block: from its beginning, or after what stands there.
  function beside(labels, begin, end) {
    for (const label of labels) {
      if (label.begin > begin) return [begin, Math.min(end, label.begin - 2)];
      begin = Math.max(begin, label.end);
    }
    return [begin, end];
  }

  function holdingText(each) {
    const where = each.group >= 0 ? ` of group ${each.group}` : "";
    const ended = each.ended === null ? "" : `\nits generation ended at line ${lineOf(each.ended)}`;
    return `block ${each.block}: ${Model.holderText(each)}${where}\nfrom line ${lineOf(each.begin)} to ${lineOf(each.end)}${ended}`;
  }

  function cached(each, y) {
    const x1 = left(each.begin), x2 = Math.max(right(each.end), x1 + 1);
    context.fillStyle = Theme.colour("cached");
    context.fillRect(x1, y + 1, x2 - x1, 2.5);
  }

  // What the steps in flight read and write: a line for each, in the lower part of a block's row.
  function uses(places) {
    for (const step of Model.stepsWithin(from - 1, to)) {
      const isCurrent = step.begin <= View.state.cursor && View.state.cursor < step.end;
      for (const part of step.parts) part.uses.forEach(([row, , reads, writes]) => {
        for (const [runs, tall] of [[reads, 1.5], [writes, 3]]) for (const [first, last] of runs) for (let index = first; index <= last; index++) {
          const block = Model.data.workerRows[row][index], y = places.get(block);
          if (y === undefined) continue;
          const x1 = left(step.begin), x2 = Math.max(right(step.end), x1 + 1);
          context.fillStyle = Theme.colour(isCurrent ? "accent" : "dim");
          context.fillRect(x1, y + Layout.tall(block) - 3 - tall - (step.slot % USES_MAX) * 4, x2 - x1, tall);
        }
      });
    }
  }

  const seenOf = (block) => (Model.violationsOfBlock.get(block) ?? []).filter((each) => isSeen(each.begin, each.end));

  // The one that is told comes last, on top.
  function violations(block, y, labels) {
    const told = Model.violations[View.state.violation], seen = seenOf(block);
    for (const each of seen) if (each !== told) violated(each, y);
    if (seen.includes(told)) violated(told, y);
    for (const { begin, end, text } of labels) {
      labelled();
      context.fillStyle = Theme.colour("bad-paper");
      context.fillRect(begin - 2, y + 4, end - begin - 4, 13);
      context.fillStyle = Theme.colour("bad");
      context.fillText(text, begin, y + Layout.BLOCK / 2 - 3);
    }
  }

  // What stands in a block's row about its violations, from left to right; the one that is told takes its place first.
  function labelsOf(block) {
    const told = Model.violations[View.state.violation], taken = [];
    labelled();
    for (const each of seenOf(block).sort((one, other) => (other === told) - (one === told))) label(each, taken);
    return taken.sort((one, other) => one.begin - other.begin);
  }

  function labelled() {
    context.font = "bold " + Canvas.SMALL;
    context.textAlign = "left";
    context.textBaseline = "middle";
  }

  function violated(each, y) {
    const x1 = left(each.begin), x2 = Math.max(right(each.end), x1 + 4), top = y + 1, tall = Layout.tall(each.block) - 3;
    const isTold = Model.violations[View.state.violation] === each;
    context.globalAlpha = isTold ? 0.26 : 0.1;
    context.fillStyle = Theme.colour("bad");
    context.fillRect(x1, top, x2 - x1, tall);
    context.globalAlpha = 1;
    context.strokeStyle = Theme.colour("bad");
    context.lineWidth = isTold ? 2.5 : 1;
    context.strokeRect(x1 + 0.5, top + 0.5, x2 - x1 - 1, tall - 1);
    context.lineWidth = 1;
    Frame.point(x1, y, x2 - x1, Layout.tall(each.block), () => each.sentence);
  }

  // Where two would cover each other, the first one stands.
  function label(each, taken) {
    const begin = Math.max(left(each.begin), Layout.GUTTER) + 5;
    const room = Math.min(right(each.end), ...taken.filter((other) => other.begin > begin).map((other) => other.begin)) - 4 - begin;
    if (room < 30 || taken.some((other) => other.begin <= begin && begin < other.end)) return;
    const text = Canvas.fitted(context, each.label, room);
    taken.push({ begin, end: begin + context.measureText(text).width + 8, text });
  }

  return { draw };
})();
