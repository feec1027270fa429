// The timeline of compute sets: a row of nodes and a row of their supersteps for each IPU.
"use strict";
function makeTimeline({ make, section, legend, colour, whole, seconds, short, inkOn, FURTHER }, canvases, tiles, chosen, describe) {
  const PHASES = ["sync", "exchange", "compute"];
  const SHADES = ["#2f6db3", ...FURTHER];
  const NARROW = 1.5; // nodes of fewer pixels share the column of a pixel
  const steps = tiles.steps, count = steps.name.length;
  let shades = []; // of the phases, read once for each drawing
  const length = (i) => steps.sync[i] + steps.exchange[i] + steps.compute[i];
  const end = count ? steps.start[count - 1] + length(count - 1) : 0;
  if (!end) return null;
  const ipus = [...new Set(steps.ipu)].sort((a, b) => a - b);
  const NODES = ipus.length > 4 ? 18 : 32, PHASE = NODES, GAP = 6; // heights of the rows
  const lane = new Map(ipus.map((ipu, k) => [ipu, k * (NODES + PHASE + GAP)]));
  const shade = (i) => SHADES[steps.type[i] % SHADES.length];

  // The last step that starts at or before `at`: views take no time and have the start of the step after them.
  function find(at) {
    let low = 0, high = count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (steps.start[middle] <= at) low = middle; else high = middle - 1;
    }
    return low;
  }

  // Draw phases from `x` on, each with its width in pixels.
  function drawPhases(pen, x, top, widths) {
    PHASES.forEach((_, k) => {
      pen.fillStyle = shades[k];
      pen.fillRect(x, top, widths[k], PHASE);
      x += widths[k];
    });
  }

  // Draw how much of a column each phase is, from the bottom up.
  function drawShares(pen, x, width, top, sums) {
    const all = sums[0] + sums[1] + sums[2];
    let below = top + PHASE;
    for (let k = 2; k >= 0 && all; k--) {
      const tall = sums[k] / all * PHASE;
      pen.fillStyle = shades[k];
      pen.fillRect(x, below - tall, width, tall);
      below -= tall;
    }
  }
  function drawWide(pen, i, x, width, view, scale) {
    const top = lane.get(steps.ipu[i]), sums = PHASES.map((phase) => steps[phase][i]);
    pen.fillStyle = shade(i);
    pen.fillRect(x, top, Math.max(0.5, width - 0.5), NODES);
    const left = Math.max(x, 0), room = Math.min(x + width, pen.canvas.clientWidth) - left - 6;
    if (room > 30) {
      const text = short(steps.name[i] || tiles.steps.types[steps.type[i]], Math.max(4, Math.floor(room / 6)));
      pen.fillStyle = inkOn(shade(i));
      if (pen.measureText(text).width <= room) pen.fillText(text, left + 3, top + NODES / 2);
    }
    const supersteps = Math.max(1, steps.supersteps[i]), each = length(i) / supersteps;
    if (each * scale < 6 && supersteps > 1) { drawShares(pen, x, width, top + NODES, sums); return; }
    const first = Math.max(0, Math.floor((view.from - steps.start[i]) / each));
    const last = Math.min(supersteps, Math.ceil((view.to - steps.start[i]) / each));
    for (let k = first; k < last; k++)
      drawPhases(pen, (steps.start[i] + k * each - view.from) * scale, top + NODES, sums.map((sum) => sum / supersteps * scale));
  }

  // Draw the nodes that are narrower than a pixel: the longest of each column, and the sums of their phases.
  function drawColumns(pen, columns) {
    for (const [key, { sums, longest }] of columns) {
      const x = Math.floor(key / ipus.length), top = (key % ipus.length) * (NODES + PHASE + GAP);
      pen.fillStyle = shade(longest);
      pen.fillRect(x, top, 1, NODES);
      drawShares(pen, x, 1, top + NODES, sums);
    }
  }

  function draw(pen, width, height, view) {
    canvases.drawTicks(pen, width, height, view, whole);
    shades = PHASES.map(colour);
    const scale = width / (view.to - view.from), columns = new Map();
    for (let i = find(view.from); i < count && steps.start[i] < view.to; i++) {
      const x = (steps.start[i] - view.from) * scale, wide = length(i) * scale;
      if (wide >= NARROW) { drawWide(pen, i, x, wide, view, scale); continue; }
      if (!wide || x < 0) continue;
      const key = Math.floor(x) * ipus.length + ipus.indexOf(steps.ipu[i]);
      const column = columns.get(key) || { sums: [0, 0, 0], longest: i };
      if (length(i) > length(column.longest)) column.longest = i;
      PHASES.forEach((phase, k) => { column.sums[k] += steps[phase][i]; });
      columns.set(key, column);
    }
    drawColumns(pen, columns);
    if (chosen.step !== null) {
      const x = (steps.start[chosen.step] - view.from) * scale, top = lane.get(steps.ipu[chosen.step]);
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, top + 1, Math.max(3, length(chosen.step) * scale), NODES + PHASE - 2);
    }
  }

  const made = canvases.windowed("timeline", "Timeline of the nodes and their supersteps", {
    height: ipus.length * (NODES + PHASE + GAP) + canvases.AXIS, end, least: Math.min(end, 20), draw, find, count,
    span: (i) => [steps.start[i], steps.start[i] + length(i)], chosen, describe,
  });

  const missed = make("span", { class: "note", "aria-live": "polite" });
  // Zoom to the next node whose name or operator contains the words.
  const seek = (words) => {
    const lower = words.toLowerCase(), start = chosen.step === null ? 0 : chosen.step + 1;
    for (let k = 0; lower && k < count; k++) {
      const i = (start + k) % count;
      if (!`${steps.name[i]} ${steps.types[steps.type[i]]}`.toLowerCase().includes(lower)) continue;
      missed.textContent = "";
      chosen.choose(i, "timeline");
      made.reveal(i, true);
      return;
    }
    missed.textContent = lower ? "no node has this" : "";
  };
  const search = make("input", { id: "timeline-search", type: "search", placeholder: "find a node, Enter for the next", "aria-label": "Find a node on the timeline",
    onkeydown: (event) => { if (event.key === "Enter") seek(event.target.value); } });
  const several = ipus.length > 1 ? ` Rows from the top: ${ipus.map((ipu) => `IPU ${ipu}`).join(", ")}.` : "";
  section("steps", "Timeline of compute sets", `${whole(end)} cycles (${seconds(end / tiles.clock_hz)}) of the busiest tile. Drag to zoom, double-click to see all; `
    + "with the keyboard + and − zoom, the arrows go from node to node, with Shift they move. The upper row has the nodes, a colour for each operator; the lower row "
    + "the phases of their supersteps. The phases of a node are averages: its cycles spread evenly over its supersteps." + several,
  make("div", { class: "bar" }, search, missed, make("span", { class: "grow" }), ...made.buttons), made.element, legend(PHASES.map((phase) => [phase, phase])), made.told);
}
