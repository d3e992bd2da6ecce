"use strict";
// What both pictures need of a canvas.

const Canvas = (() => {
  const FACE = 'system-ui, "Segoe UI", Roboto, sans-serif';
  const [FONT, SMALL] = [12, 11].map((size) => `${size}px ${FACE}`);

  // A context in CSS pixels, sharp on any display, empty.
  function begin(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== tall) {
      canvas.width = wide;
      canvas.height = tall;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = Theme.colour("paper");
    context.fillRect(0, 0, width, height);
    return context;
  }

  function clipped(context, x1, y1, x2, y2, draw) {
    context.save();
    context.beginPath();
    context.rect(x1, y1, x2 - x1, y2 - y1);
    context.clip();
    draw();
    context.restore();
  }

  function line(context, x1, y1, x2, y2) {
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
    context.stroke();
  }

  function arrow(context, x, y1, y2) {
    const tip = y2 > y1 ? -5 : 5;
    line(context, x, y1, x, y2);
    context.beginPath();
    context.moveTo(x, y2);
    context.lineTo(x - 3, y2 + tip);
    context.lineTo(x + 3, y2 + tip);
    context.fill();
  }

  function hatch(context, x, y, wide, tall, colour) {
    if (wide < 2) return;
    clipped(context, x, y, x + wide, y + tall, () => {
      context.strokeStyle = colour;
      context.beginPath();
      for (let offset = -tall; offset < wide; offset += 6) {
        context.moveTo(x + offset, y + tall);
        context.lineTo(x + offset + tall, y);
      }
      context.stroke();
    });
  }

  // As much of a text as fits, with an ellipsis where it does not.
  function fitted(context, text, room) {
    if (room < 8) return "";
    if (context.measureText(text).width <= room) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(text.slice(0, middle) + "…").width <= room) low = middle;
      else high = middle - 1;
    }
    return low ? text.slice(0, low) + "…" : "";
  }

  return { FONT, SMALL, begin, clipped, line, arrow, hatch, fitted };
})();
