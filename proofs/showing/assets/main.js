"use strict";
// Puts the parts together: keys, mouse, resizing, printing; then the first violation, or the whole trace.

const Main = (() => {
  const ROWS_MANY = 24;  // from here on the blocks of one request are easier to read
  const SHOWN_FIRST = 80;  // events, where nothing is violated
  const element = (id) => document.getElementById(id);
  let isDue = false;

  // At most one drawing a frame, whatever happens in between.
  function drawSoon() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; draw(); });
  }

  function draw() {
    TimeLine.draw();
    Tokens.draw();
    Panels.draw(View.state);
  }

  function resized() {
    View.resize(element("time").clientWidth || element("time").parentElement.clientWidth);
    draw();
  }

  function themeChanged() {
    Panels.legend();
    draw();
  }

  const atCursor = () => Model.inFlight(View.state.cursor)[0] ?? Model.steps.find((step) => step.end === View.state.cursor);
  const KEYS = {
    ArrowLeft: () => View.go(View.state.cursor - 1),
    ArrowRight: () => View.go(View.state.cursor + 1),
    ArrowUp: () => View.scrollBy(-2 * Layout.BLOCK),
    ArrowDown: () => View.scrollBy(2 * Layout.BLOCK),
    Home: () => View.go(0),
    End: () => View.go(Model.size - 1),
    n: () => View.nextViolation(1),
    N: () => View.nextViolation(-1),
    "[": () => { const step = atCursor(); if (step) View.go(step.begin); },
    "]": () => { const step = atCursor(); if (step) View.go(step.end); },
    "+": () => View.scaleBy(1.5),
    "=": () => View.scaleBy(1.5),
    "-": () => View.scaleBy(1 / 1.5),
    0: () => View.show(0, Model.size),
    v: () => View.focus(),
    t: () => { Theme.toggle(); themeChanged(); },
    "/": () => Search.focus(),
    "?": () => toggleKeys(),
  };

  function toggleKeys() {
    const list = element("keys");
    list.hidden = !list.hidden;
    element("help").setAttribute("aria-expanded", String(!list.hidden));
  }

  function pressed(event) {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  }

  // The arrow keys are the page's again once something was chosen with the mouse, or after Escape; who chooses by keys goes on choosing.
  function leaveAfterChoice(select) {
    let isByMouse = false;
    select.addEventListener("pointerdown", () => { isByMouse = true; });
    select.addEventListener("keydown", (event) => { isByMouse = false; if (event.key === "Escape") View.takeKeys(); });
    select.addEventListener("change", () => { if (isByMouse) View.takeKeys(); });
  }

  function attachMouse() {
    const canvas = TimeLine.canvas, tip = element("tip");
    canvas.addEventListener("click", (event) => {
      View.go(event.offsetY < Layout.OVERVIEW ? TimeLine.overviewAt(event.offsetX) : TimeLine.positionAt(event.offsetX));
    });
    canvas.addEventListener("mousemove", (event) => {
      tip.textContent = TimeLine.textAt(event.offsetX, event.offsetY);
      tip.hidden = !tip.textContent || event.buttons > 0;
      tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - 320)}px`;
      tip.style.top = `${event.clientY + 16}px`;
    });
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    canvas.addEventListener("wheel", (event) => {
      if (!event.shiftKey) return;
      event.preventDefault();
      View.scrollBy(event.deltaY || event.deltaX);
    }, { passive: false });
  }

  function attach() {
    document.addEventListener("keydown", pressed);
    element("previous").addEventListener("click", () => View.nextViolation(-1));
    element("next").addEventListener("click", () => View.nextViolation(1));
    element("fit").addEventListener("click", () => View.show(0, Model.size));
    element("focus").addEventListener("click", () => View.focus());
    element("theme").addEventListener("click", KEYS.t);
    element("help").addEventListener("click", toggleKeys);
    element("owner").addEventListener("change", (event) => { View.state.owner = Number(event.target.value); View.choose(View.state.choice); });
    element("group").addEventListener("change", (event) => { View.state.group = Number(event.target.value); View.changed(); });
    element("rows").addEventListener("change", (event) => View.choose(event.target.value));
    window.addEventListener("resize", resized);
    Theme.onChange(themeChanged);
    window.addEventListener("beforeprint", () => { Theme.apply("light"); themeChanged(); });
    window.addEventListener("afterprint", () => { Theme.apply(); themeChanged(); });
    attachMouse();
    for (const each of document.querySelectorAll("select")) leaveAfterChoice(each);
    Search.attach();
  }

  function start() {
    Panels.once();
    View.attach(TimeLine.canvas);
    attach();
    View.state.blocks = Model.usedBlocks;
    View.state.owner = Model.data.ownerIsRequest.indexOf(true);
    if (View.state.owner < 0) View.state.owner = null;
    View.resize(element("time").parentElement.clientWidth);
    View.onChange(drawSoon);
    if (Model.usedBlocks.length > ROWS_MANY) View.state.choice = "request";
    if (Model.violations.length) View.select(Model.data.first);
    else {
      View.go(Model.data.finding ? Model.size - 1 : Model.steps[0]?.begin ?? 0);
      View.choose(View.state.choice);
      const end = Math.max(View.state.cursor + 1, Math.min(Model.size, SHOWN_FIRST));
      View.show(end - SHOWN_FIRST, end);
    }
    draw();
    document.documentElement.dataset.ready = "yes";
  }

  start();
  return { draw };
})();
