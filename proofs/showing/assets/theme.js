"use strict";
// Light and dark: the colours of the canvases are those of the style sheet.

const Theme = (() => {
  // Red is left out: it marks violations alone.
  const HUES = ["#3f7fbf", "#3a9e6b", "#a06cc4", "#b97d12", "#2aa1ac", "#8a8f2a", "#7a6ad8", "#b0763f", "#4492cc", "#6f8f6a"];
  const NAMES = ["paper", "panel", "ink", "dim", "rule", "accent", "bad", "bad-paper", "cached", "column", "good"];
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  let colours = {};
  let tints = new Map();

  function apply(forced) {
    root.dataset.theme = forced ?? chosen ?? (system.matches ? "dark" : "light");
    const style = getComputedStyle(root);
    colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
    tints = new Map();
  }

  // A request's colour, as a fill on which text is readable.
  function tint(owner, strength = 0.42) {
    const key = owner * 100 + strength;
    if (!tints.has(key)) tints.set(key, d3.interpolateRgb(colours.paper, HUES[owner % HUES.length])(strength));
    return tints.get(key);
  }

  function toggle() {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    apply();
  }

  apply();
  return {
    colour: (name) => colours[name], hue: (owner) => HUES[owner % HUES.length], tint, toggle, apply,
    onChange: (listener) => system.addEventListener("change", () => { apply(); listener(); }),
  };
})();
