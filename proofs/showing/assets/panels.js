"use strict";
// What stands beside the pictures, in words. Everything from the trace is set as text.

const Panels = (() => {
  const NEARBY = 6;  // events before and after
  const WRONG_MAX = 2;  // violations in the panel of an event
  const SHOWN_MAX = 200;  // violations in the list at the end
  const byId = (id) => d3.select(document.getElementById(id));
  const { data } = Model;
  const EXIT = { 0: "holds", 1: "violated", 3: "unknown" };
  const CLASS = { violated: "bad", holds: "good" };

  function once() {
    byId("engine").text(data.engine);
    byId("source").text(`${data.source}, ${Model.size} events, contract ${data.contract.name}${data.contract.isDefault ? " (default)" : ""}`);
    byId("verdict").classed("violated", data.numViolations > 0 || data.finding !== null);
    const rows = byId("properties").select("tbody").selectAll("tr").data(data.verdict.properties).join("tr");
    rows.attr("title", (each) => [each.meaning, ...each.remarks].join("\n"));
    rows.append("td").text((each) => each.name);
    rows.append("td").attr("class", (each) => CLASS[each.verdict] ?? "unsure").text((each) => (each.count ? `${each.verdict} (${each.count})` : each.verdict));
    byId("about").text([`Contract ${data.contract.name}: ${data.contract.meaning}.`, `Device lanes: ${data.lanes.note}.`, ...data.groups.map((group, place) => `Group ${place}: ${group.text}.`), ...notes().map((text) => `Note: ${text}.`)].join(" "));
    options("owner", data.owners.map((name, number) => [number, name]).filter(([number]) => data.ownerIsRequest[number]));
    options("group", data.groups.map((group, number) => [number, `group ${number}: ${group.text}`]));
    options("rows", [["all", `all ${Model.usedBlocks.length} used`], ["request", "of the request"], ["violation", "of violations"]]);
    allViolations();
    legend();
  }

  // Of the trace, and of each property: a tooltip alone is not for everybody.
  const notes = () => [...new Set([...data.verdict.notes, ...data.verdict.properties.flatMap((each) => each.remarks.map((text) => `${each.name}: ${text}`))])];

  const options = (id, values) => byId(id).selectAll("option").data(values).join("option").attr("value", ([value]) => value).text(([, text]) => text);

  function allViolations() {
    const section = byId("all-violations");
    section.attr("hidden", Model.violations.length ? null : true);
    const more = data.numViolations > Model.violations.length ? `, the first ${Model.violations.length} of them kept in this page` : "";
    section.select("h2").text(`${data.numViolations} violation${data.numViolations === 1 ? "" : "s"}${more}`);
    const items = section.select("ol").selectAll("li").data(Model.violations.slice(0, SHOWN_MAX)).join("li");
    items.append("button").attr("type", "button").text((each) => `${each.property}: ${each.sentence}`).on("click", (_, each) => View.select(Model.violations.indexOf(each)));
  }

  // ---- what changes --------------------------------------------------------------------------------------------------

  function draw(state) {
    verdict(state);
    details(state);
    document.getElementById("owner").value = state.owner ?? "";
    document.getElementById("group").value = state.group;
    document.getElementById("rows").value = state.choice;
    byId("tokens-told").text(`after line ${Model.events.lines[state.cursor]}`);
  }

  function verdict(state) {
    const found = Model.violations[state.violation];
    const headline = byId("headline").text("");
    if (found) {
      headline.append("b").text(`${found.property} violated`);
      headline.append("span").text(` · ${meaning(found.property)}`);
    } else if (data.finding) {
      headline.append("b").text(`${data.finding.property} violated`);
      headline.append("span").text(" · told by no single event of the trace");
    } else {
      headline.append("b").text(EXIT[data.verdict.exitCode] ?? "");
      headline.append("span").text(data.verdict.exitCode === 0 ? " · nothing that this trace records is violated" : "");
    }
    const reason = data.verdict.reasons.length && !data.finding ? `Why: ${data.verdict.reasons.join("; ")}.` : null;
    byId("sentence").text([data.finding?.sentence, found?.sentence, reason].filter((each) => each).join(" — "));
    byId("why").text(found?.why ?? "");
    byId("number").text(found ? `violation ${state.violation + 1} of ${Model.violations.length}${data.numViolations > Model.violations.length ? ` kept, ${data.numViolations} in all` : ""}` : Model.violations.length ? `${Model.violations.length} violations` : "no violation");
    document.getElementById("previous").disabled = !Model.violations.length || state.violation === 0;
    document.getElementById("next").disabled = !Model.violations.length || state.violation === Model.violations.length - 1;
    const items = byId("chapters").selectAll("li").data(found?.chapters ?? []).join("li");
    items.classed("it", ([, , isIt]) => isIt).attr("aria-current", ([position]) => (position === state.cursor ? "step" : null));
    items.selectAll("button").data((each) => [each]).join("button").attr("type", "button").text("")
      .on("click", (_, [position]) => View.go(position))
      .each(function fill([position, text]) {
        d3.select(this).append("b").text(`line ${Model.events.lines[position] ?? "-"} `);
        d3.select(this).append("span").text(text);
      });
  }

  const meaning = (name) => data.verdict.properties.find((each) => each.name === name)?.meaning ?? "";

  function details({ cursor }) {
    const line = Model.events.lines[cursor], words = Model.events.words[cursor];
    byId("event-title").text(`line ${line}: ${Model.kind(cursor)}`);
    byId("event-words").text(words);
    byId("event-counters").text(countersText(cursor));
    const wrong = Model.violationsAt.get(cursor) ?? [];
    byId("event-violations").selectAll("li").data(wrong.length > WRONG_MAX ? [...wrong.slice(0, WRONG_MAX), null] : wrong).join("li")
      .text((each) => (each ? `✗ ${each.property}: ${each.sentence}` : `✗ and ${wrong.length - WRONG_MAX} more`));
    byId("event-json").text(shown(Model.events.json[cursor]));
    byId("spoken").text(`line ${line}: ${words}${wrong.length ? `; violated: ${wrong.map((each) => each.property).join(", ")}` : ""}`);
    nearby(cursor);
  }

  // Short lists in one line. What would turn the direction of writing is spelt, or a name could look like what it is not.
  function shown(json) {
    return JSON.stringify(JSON.parse(json), null, 1)
      .replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, inner) => `[${inner.replace(/\s+/g, " ")}]`)
      .replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
  }

  // Whom an event is about: of a step's requests the one that is shown.
  function ownerAt(cursor) {
    const shown = View.state.owner;
    const parts = Model.steps.find((step) => step.begin === cursor || step.end === cursor)?.parts ?? [];
    return parts.some((part) => part.owner === shown) ? shown : Model.events.owner[cursor];
  }

  function countersText(cursor) {
    const owner = ownerAt(cursor);
    if (owner === null) return "";
    const before = Model.counters(owner, cursor - 1), after = Model.counters(owner, cursor);
    if (!after) return "";
    const told = [["computed", "computed"], ["in flight", "inFlight"], ["stale", "stale"], ["settled", "settled"]].map(([name, key]) => {
      const was = before && before[key] !== after[key] ? `${before[key]} → ` : "";
      return `${name} ${was}${after[key]}`;
    });
    return `${Model.owners[owner]}: ${told.join(", ")}`;
  }

  function nearby(cursor) {
    const first = Math.max(0, Math.min(cursor - NEARBY, Model.size - 2 * NEARBY - 1));
    const positions = d3.range(first, Math.min(first + 2 * NEARBY + 1, Model.size));
    const items = byId("nearby").selectAll("li").data(positions).join((enter) => {
      const item = enter.append("li"), button = item.append("button").attr("type", "button");
      button.append("span");
      button.append("span");
      return item;
    });
    items.classed("now", (position) => position === cursor).classed("wrong", (position) => Model.violationsAt.has(position));
    items.select("button").on("click", (_, position) => View.go(position)).attr("aria-current", (position) => (position === cursor ? "true" : null));
    items.select("span:first-child").text((position) => Model.events.lines[position]);
    items.select("span:last-child").text((position) => Model.events.words[position]).attr("title", (position) => Model.events.words[position]);
  }

  // ---- legend --------------------------------------------------------------------------------------------------------

  function legend() {
    const signs = [
      ["on the device: from where the host enqueues it to where it knows that it is over", (c) => { c.fillStyle = d3.interpolateRgb(Theme.colour("paper"), Theme.colour("accent"))(0.25); c.fillRect(1, 2, 32, 12); c.strokeStyle = Theme.colour("accent"); c.strokeRect(1.5, 2.5, 31, 11); }],
      [`held by a request, ${data.groups.length > 1 ? "group" : ""}[table index]`, (c) => { c.fillStyle = Theme.tint(0); c.fillRect(1, 1, 32, 14); c.fillStyle = Theme.hue(0); c.fillRect(1, 1, 2, 14); }],
      ["held behind a fence: its generation is over", (c) => { c.fillStyle = Theme.tint(0); c.fillRect(1, 1, 32, 14); Canvas.hatch(c, 1, 1, 32, 14, Theme.colour("dim")); }],
      ["in the prefix cache", (c) => { c.fillStyle = Theme.colour("cached"); c.fillRect(1, 6, 32, 3); }],
      ["read by a step in flight", (c) => { c.fillStyle = Theme.colour("accent"); c.fillRect(1, 7, 32, 1.5); }],
      ["written by it", (c) => { c.fillStyle = Theme.colour("accent"); c.fillRect(1, 6, 32, 3.5); }],
      ["violated", (c) => { c.globalAlpha = 0.22; c.fillStyle = Theme.colour("bad"); c.fillRect(1, 1, 32, 14); c.globalAlpha = 1; c.strokeStyle = Theme.colour("bad"); c.strokeRect(1.5, 1.5, 31, 13); }],
      ["null entry", (c) => { Canvas.hatch(c, 1, 1, 32, 14, Theme.colour("rule")); c.fillStyle = Theme.colour("ink"); c.fillText("∅", 13, 12); }],
      ["schedule, process", (c) => { c.fillStyle = Theme.colour("accent"); c.fillText("▼", 3, 12); c.fillStyle = Theme.colour("ink"); c.fillText("▲", 20, 12); }],
    ];
    byId("legend").selectAll("li").data(signs).join((enter) => {
      const item = enter.append("li");
      item.append("canvas").attr("aria-hidden", "true");
      item.append("span").text(([text]) => text);
      return item;
    }).each(function sign([, draw]) {
      draw(Canvas.begin(this.querySelector("canvas"), 34, 16));
    });
  }

  return { once, draw, legend };
})();
