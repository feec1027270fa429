// Canvases that are drawn anew for each width and colour scheme, and those with a window over time or nodes, which
// mouse, touch, buttons and keyboard move.
"use strict";
function makeCanvases({ make, redraws, colour, showTip }) {
  const FONT = "11px system-ui, sans-serif";
  const AXIS = 20; // pixels below a plot for its ticks
  const CLICK = 4; // a shorter drag in pixels is a click

  // A canvas that `draw(pen, width, height)` fills; `heightOf(width)` is its height. All in pixels of the page.
  function canvas(id, label, heightOf, draw) {
    const element = make("canvas", { id, class: "canvas", role: "img", tabindex: 0, "aria-label": label });
    const redraw = () => {
      const width = element.clientWidth, scale = devicePixelRatio || 1;
      if (!width) return; // not shown
      const height = heightOf(width);
      element.style.height = height + "px";
      element.width = Math.round(width * scale);
      element.height = Math.round(height * scale);
      const pen = element.getContext("2d");
      pen.scale(scale, scale);
      pen.font = FONT;
      pen.textBaseline = "middle";
      draw(pen, width, height);
      element.dataset.drawn = "yes";
    };
    redraws.push(redraw);
    setTimeout(redraw);
    return { element, redraw };
  }

  // Round numbers from `from` to `to`, at most `most` of them and at least `least` apart.
  function ticks(from, to, most, least = 1) {
    const rough = Math.max(least, (to - from) / most), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
    return found;
  }

  function drawTicks(pen, width, height, view, text) {
    pen.textAlign = "center";
    for (const at of ticks(view.from, view.to, Math.max(2, width / 110))) {
      const x = (at - view.from) / (view.to - view.from) * width;
      pen.fillStyle = colour("line");
      pen.fillRect(Math.round(x), 0, 1, height - AXIS + 4);
      pen.fillStyle = colour("soft");
      const half = pen.measureText(text(at)).width / 2;
      pen.fillText(text(at), Math.min(width - half, Math.max(half, x)), height - AXIS / 2);
    }
    pen.textAlign = "left";
  }

  // The step that several charts show. `choose` tells each watcher the chart in which it was chosen, and whether by a
  // click: the arrow keys choose too.
  function makeChoice() {
    const chosen = { step: null, watchers: [], choose(step, from = null, clicked = false) {
      chosen.step = step;
      for (const watcher of chosen.watchers) watcher(step, from, clicked);
    } };
    return chosen;
  }

  // A canvas with a window over 0 to `end`, at least `least` long. `draw(pen, width, height, view)` draws the window,
  // `find(at)` is the step at a place, `span(step)` where a step begins and ends, and `describe(step)` what to tell of it:
  // beside the mouse, and below the chart for the chosen one.
  function windowed(id, label, { height, end, least, draw, find, span, count, chosen, describe }) {
    const view = { from: 0, to: end };
    let drag = null;
    const { element, redraw } = canvas(id, label, () => height, (pen, width, tall) => {
      draw(pen, width, tall, view);
      if (drag) {
        pen.fillStyle = colour("accent");
        pen.globalAlpha = 0.25;
        pen.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), tall - AXIS);
        pen.globalAlpha = 1;
      }
    });
    const look = (from, to) => {
      const length = Math.min(end, Math.max(least, to - from));
      view.from = Math.min(Math.max(0, from), end - length);
      view.to = view.from + length;
      element.dataset.from = view.from;
      element.dataset.to = view.to;
      redraw();
    };
    const all = () => look(0, end);
    const move = (share) => look(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));
    // Zoom around a place, or the chosen step if it is in view, or the middle.
    const zoom = (factor, place) => {
      const [from, to] = chosen.step === null ? [-1, -1] : span(chosen.step);
      const middle = (from + to) / 2;
      const at = place ?? (view.from <= middle && middle <= view.to ? middle : (view.from + view.to) / 2);
      look(at - (at - view.from) * factor, at + (view.to - at) * factor);
    };
    // Move the window so that it contains a step, and zoom to it if `close`.
    const reveal = (step, close = false) => {
      const [from, to] = span(step), room = close ? Math.max(least, 4 * (to - from)) : view.to - view.from;
      if (close || from < view.from || to > view.to) look((from + to - room) / 2, (from + to + room) / 2);
    };
    const walk = (by) => {
      const next = chosen.step === null ? find(view.from) : chosen.step + by;
      if (next < 0 || next >= count) return;
      chosen.choose(next, id);
      reveal(next);
    };
    const x = (event) => event.clientX - element.getBoundingClientRect().left;
    const place = (pixels) => view.from + Math.min(1, Math.max(0, pixels / element.clientWidth)) * (view.to - view.from);
    const step = (event) => find(Math.min(place(x(event)), end * (1 - 1e-12)));

    element.style.touchAction = "pan-y";
    element.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      element.setPointerCapture(event.pointerId);
      drag = { from: x(event), to: x(event) };
      showTip(event, null);
    });
    element.addEventListener("pointermove", (event) => {
      if (drag) { drag.to = x(event); redraw(); } else showTip(event, describe(step(event)));
    });
    element.addEventListener("pointerup", (event) => {
      if (!drag) return;
      const { from, to } = drag;
      drag = null;
      if (Math.abs(to - from) < CLICK) chosen.choose(step(event), id, true);
      else look(place(Math.min(from, to)), place(Math.max(from, to)));
    });
    element.addEventListener("pointercancel", () => { drag = null; redraw(); });
    element.addEventListener("pointerleave", (event) => showTip(event, null));
    element.addEventListener("dblclick", all);
    // Without Ctrl the wheel scrolls the page.
    element.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, place(x(event)));
    }, { passive: false });
    const KEYS = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), Home: all,
      ArrowLeft: (event) => (event.shiftKey ? move(-0.25) : walk(-1)), ArrowRight: (event) => (event.shiftKey ? move(0.25) : walk(1)) };
    element.addEventListener("keydown", (event) => {
      if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      KEYS[event.key](event);
    });
    const button = (name, text, onclick) => make("button", { type: "button", "aria-label": `${name}: ${label}`, title: name, onclick }, text);
    const buttons = [button("Zoom in", "+", () => zoom(0.5)), button("Zoom out", "−", () => zoom(2)),
      button("Move left", "‹", () => move(-0.5)), button("Move right", "›", () => move(0.5)), button("Show all", "all", all)];
    const told = make("p", { id: id + "-told", class: "told", "aria-live": "polite" }, "Choose a node to read it.");
    chosen.watchers.push((i, from) => {
      told.setAttribute("aria-live", from === id ? "polite" : "off"); // only one chart reads the node out
      told.replaceChildren(...describe(i));
      if (from !== id) reveal(i);
      redraw();
    });
    element.dataset.from = 0;
    element.dataset.to = end;
    return { element, told, buttons, redraw, reveal };
  }

  return { canvas, windowed, makeChoice, ticks, drawTicks, AXIS };
}
