"use strict";
// Search: "block 7" or a number finds a block, "step 3" a step, anything else requests by a part of their names, or words of events.

const Search = (() => {
  const field = document.getElementById("query"), output = document.getElementById("hits");
  let place = -1;

  function find(query) {
    const text = query.trim().toLowerCase();
    if (!text) return null;
    const block = /^(?:block\s*)?(\d+)$/.exec(text), step = /^step\s*(\d+)$/.exec(text);
    const owners = new Set(), blocks = new Set();
    let positions = [];
    if (step) positions = Model.steps.filter((each) => each.step === Number(step[1])).flatMap((each) => [each.begin, each.end]);
    else {
      Model.owners.forEach((name, owner) => { if (name.toLowerCase().includes(text)) owners.add(owner); });
      if (block && !owners.size && Model.byBlock.has(Number(block[1]))) {
        blocks.add(Number(block[1]));
        positions = Model.byBlock.get(Number(block[1])).flatMap((each) => [each.begin, each.end]);
        positions.push(...(Model.violationsOfBlock.get(Number(block[1])) ?? []).map((each) => each.position));
      } else if (owners.size) positions = ofOwners(owners);
      else Model.events.words.forEach((words, position) => { if (words.toLowerCase().includes(text)) positions.push(position); });
    }
    positions = [...new Set(positions)].filter((position) => position < Model.size).sort(d3.ascending);
    return { positions, set: new Set(positions), owners, blocks };
  }

  // The events that are about a request, and the steps that it is in.
  function ofOwners(owners) {
    const positions = [];
    Model.events.owner.forEach((owner, position) => { if (owners.has(owner)) positions.push(position); });
    for (const step of Model.steps) if (step.parts.some((part) => owners.has(part.owner))) positions.push(step.begin, step.end);
    for (const owner of owners) for (const [, held] of Model.byTable.get(owner) ?? []) for (const each of held) positions.push(each.begin);
    return positions;
  }

  function changed() {
    View.state.hits = find(field.value);
    place = -1;
    tell();
    if (View.state.hits?.owners.size) {
      View.state.owner = [...View.state.hits.owners].find((owner) => Model.data.ownerIsRequest[owner]) ?? View.state.owner;
      if (View.state.choice === "request") View.choose("request");
    }
    const [block] = View.state.hits?.blocks ?? [];
    if (block !== undefined && !View.state.blocks.includes(block)) View.choose("all");
    const row = View.state.blocks.indexOf(block);
    if (row >= 0) View.state.scroll = Layout.rows(View.state.blocks).tops[row] - 3 * Layout.BLOCK;
    View.changed();
  }

  function go(direction) {
    const positions = View.state.hits?.positions ?? [];
    if (!positions.length) return;
    place = place < 0 && direction < 0 ? positions.length - 1 : (place + direction + positions.length) % positions.length;
    View.go(positions[place]);
    tell();
  }

  function tell() {
    const { hits } = View.state;
    if (!hits) output.textContent = "";
    else if (!hits.positions.length) output.textContent = "nothing";
    else output.textContent = place < 0 ? `${hits.positions.length} events` : `${place + 1} of ${hits.positions.length}`;
  }

  function attach() {
    field.addEventListener("input", changed);
    document.getElementById("search").addEventListener("submit", (event) => event.preventDefault());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") { field.value = ""; changed(); View.takeKeys(); }
    });
  }

  return { attach, focus: () => { field.focus(); field.select(); } };
})();
