// Draws the report of a profile out of its document, with what base.js has.
"use strict";
(() => {
  const { page, plain, short, split, whole, percent, kib, colour, seconds, make, breakable, section, table, scrolled, fitting, chart } = report;
  const nodes = page.nodes;
  const count = nodes.name.length;
  const total = nodes.name.map((_, i) => nodes.compute[i] + nodes.exchange[i] + nodes.sync[i]);
  const CAUSES = ["compute", "exchange", "sync"];
  const MAX_BARS = 600; // more cannot be told apart: neighbours share a bar until one zooms in
  const PAGE_ROWS = 100;
  const NAMED = 5;
  const MEMORY = ["weights", "live"]; // those with a colour of their own
  const FURTHER = ["#7d5ba6", "#c0647c", "#3d8f9c", "#a0703c", "#6b8e23", "#9a6fb0", "#4f6d8f", "#b08d2f"];

  // Texts

  const shared = nodes.name.reduce((found, name) => {
    while (!name.startsWith(found)) found = found.slice(0, found.slice(0, -1).lastIndexOf("/") + 1);
    return found;
  }, count ? nodes.name[0].slice(0, nodes.name[0].lastIndexOf("/") + 1) : "");
  // A name in at most `most` characters: its last part, the parts in which it differs from `others` (layers are named
  // alike), and as many more from its end as there is room for.
  function label(name, most, others) {
    const cut = (each) => split(each.slice(shared.length)).reverse();
    const parts = cut(name), rest = others.map(cut), places = [...parts.keys()];
    const differing = places.filter((k) => k === 0 || rest.some((each) => !each.includes(parts[k])));
    const text = (kept) => parts.map((part, k) => (kept.has(k) ? part : "…")).reverse().join("").replace(/…+/g, "…");
    let kept = new Set();
    for (const k of [...differing, ...places]) {
      const more = new Set([...kept, k]);
      if (text(more).length > most) break;
      kept = more;
    }
    return kept.size ? text(kept) : "…" + parts[0].slice(1 - most);
  }

  // Black or white, whichever has more contrast on a shade #rrggbb by the formula of WCAG.
  function inkOn(shade) {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(shade.slice(at, at + 2), 16) / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
  }

  function macs(value) {
    for (const [unit, scale] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
      if (value >= scale) return +(value / scale).toPrecision(3) + " " + unit;
    return value ? String(value) : "";
  }

  // Charts

  const wide = (name, values, more) => ({ type: "bar", orientation: "h", name: plain(name), x: values, ...more });

  // Nodes in the window, each a bar, or several in one where there are more than can be told apart.
  function bars(range) {
    const first = range ? Math.max(0, Math.ceil(range[0] - 0.5)) : 0;
    const last = range ? Math.min(count - 1, Math.floor(range[1] + 0.5)) : count - 1;
    const width = Math.max(1, Math.ceil((last - first + 1) / MAX_BARS));
    const found = [];
    for (let start = first; start <= last; start += width) {
      const end = Math.min(last, start + width - 1);
      let dearest = start;
      const sums = { compute: 0, exchange: 0, sync: 0 };
      for (let i = start; i <= end; i++) {
        if (total[i] > total[dearest]) dearest = i;
        for (const cause of CAUSES) sums[cause] += nodes[cause][i];
      }
      found.push({ start, end, dearest, sums, at: (start + end) / 2, width: end - start + 1 });
    }
    return found;
  }

  function describe(i) {
    const lines = [`<b>${plain(short(nodes.name[i], 60))}</b>`, `${plain(nodes.types[nodes.type[i]])}, ${plain(short(nodes.plans[nodes.plan[i]], 70))}`,
      `${whole(total[i])} cycles (${percent(total[i] / page.cycles)}), ${seconds(total[i] / page.clock_hz)}`,
      CAUSES.map((cause) => `${cause} ${whole(nodes[cause][i])}`).join(", ")];
    if (nodes.macs[i]) lines.push(`${macs(nodes.macs[i])} MACs, ${percent(nodes.macs[i] / (total[i] * page.peak_macs))} of the peak rate`);
    return lines.join("<br>");
  }

  const describeBar = (bar) => (bar.width === 1 ? describe(bar.dearest)
    : `<b>${bar.width} nodes, ${bar.start + 1} to ${bar.end + 1}</b>; the dearest:<br>${describe(bar.dearest)}`);

  const dearest = () => [...total.keys()].sort((a, b) => total[b] - total[a] || a - b);

  const pen = document.createElement("canvas").getContext("2d");

  // The text of a node beside a line up from its bar, moved so that the plot, `room` pixels wide, holds it.
  function nameBar(i, text, bar, from, to, height, room) {
    const gap = 3;
    pen.font = "11px system-ui, sans-serif";
    const width = pen.measureText(text).width + 2 * gap;
    const at = room * (bar.at - from) / (to - from);
    const over = Math.max(0, at + width - room); // right of the plot
    const shift = over && at >= width ? -width : -Math.min(over, at);
    return { x: bar.at, y: height, text: plain(text), showarrow: false, xanchor: "left", xshift: shift + (shift ? -1 : gap - 1), borderpad: 0,
      bgcolor: colour("card"), font: { size: 11, color: colour("ink") }, captureevents: true, name: String(i) };
  }

  function drawNodes(range, width) {
    const shown = bars(range);
    const text = shown.map(describeBar);
    const traces = CAUSES.map((cause) => ({
      type: "bar", name: cause, x: shown.map((bar) => bar.at), width: shown.map((bar) => bar.width * (count > 60 ? 1 : 0.8)),
      y: shown.map((bar) => bar.sums[cause]), marker: { color: colour(cause), line: { width: 0 } },
      customdata: shown.map((bar) => bar.dearest), hovertext: text, hovertemplate: "%{hovertext}<extra></extra>",
    }));
    const top = Math.max(1, ...shown.map((bar) => CAUSES.reduce((sum, cause) => sum + bar.sums[cause], 0)));
    const placed = dearest().filter((i) => shown.some((bar) => bar.start <= i && i <= bar.end)).slice(0, NAMED)
      .sort((a, b) => a - b);
    const [from, to] = range || [-0.6, count - 0.4];
    const shapes = [], annotations = [];
    const names = placed.map((i) => nodes.name[i]);
    placed.forEach((i, place) => {
      const bar = shown.find((each) => each.start <= i && i <= each.end);
      const height = CAUSES.reduce((sum, cause) => sum + bar.sums[cause], 0);
      const above = top * (1.06 + 0.08 * (NAMED - 1 - place));
      shapes.push({ type: "line", x0: bar.at, x1: bar.at, y0: height, y1: above, line: { color: colour("soft"), width: 1 } });
      annotations.push(nameBar(i, label(nodes.name[i], 34, names), bar, from, to, above, width - 80));
    });
    return { traces, height: 380, layout: { annotations, shapes, bargap: 0, margin: { l: 60, r: 12, t: 8, b: 40 },
      xaxis: { title: { text: "node, in order of execution" }, range: [-0.6, count - 0.4], showgrid: false },
      yaxis: { title: { text: "cycles" }, range: [0, 1.42 * top], tickformat: "," , fixedrange: true } } };
  }

  function drawTypes() {
    const types = page.types.filter((each) => each[2] + each[3] + each[4]).slice(0, 14).reverse();
    const names = types.map((each) => plain(short(each[0], 28)) + ` (${each[1]})`);
    const sums = types.map((each) => each[2] + each[3] + each[4]);
    const traces = CAUSES.map((cause, k) => wide(cause, types.map((each) => each[2 + k]), {
      y: names, marker: { color: colour(cause) }, customdata: types.map((each) => each[0]),
      hovertext: types.map((each, i) => `<b>${names[i]}</b><br>${cause} ${whole(each[2 + k])} of ${whole(sums[i])} cycles; all of them ${percent(sums[i] / page.cycles)} of the time`),
      hovertemplate: "%{hovertext}<extra></extra>" }));
    const annotations = sums.map((sum, i) => ({ x: sum, y: names[i], text: percent(sum / page.cycles), showarrow: false, xanchor: "left", xshift: 4 }));
    return { traces, height: 50 + 26 * types.length, layout: { annotations, showlegend: false, xaxis: { tickformat: ",", range: [0, 1.15 * Math.max(1, ...sums)] }, yaxis: { showgrid: false } } };
  }

  // One bar of parts, as shares of `limit`, or of their sum if there is none. The memory's colours are named in its table.
  function drawShares(parts, colours, format, width, limit) {
    const sum = parts.reduce((all, part) => all + part[1], 0);
    const all = limit || sum, longest = Math.max(all, sum);
    const traces = parts.map(([name, value]) => wide(name, [value], { y: [""], marker: { color: colours(name) },
      text: [value / longest * width > 60 ? percent(value / all) : ""], textposition: "inside", insidetextanchor: "middle", textangle: 0,
      constraintext: "none", insidetextfont: { color: inkOn(colours(name)) },
      hovertemplate: `<b>${plain(name)}</b><br>${plain(format(value))}, ${percent(value / all)}${limit ? " of the tile" : ""}<extra></extra>` }));
    const shapes = limit ? [{ type: "line", x0: limit, x1: limit, y0: 0, y1: 1, yref: "paper", line: { color: colour("bad"), width: 2, dash: "dash" } }] : [];
    const annotations = limit ? [{ x: limit, y: 1, yref: "paper", yanchor: "bottom", xanchor: limit >= sum / 2 ? "right" : "left", showarrow: false,
      text: `a tile has ${format(limit)}`, font: { color: colour("bad"), size: 11 } }] : [];
    const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => part * longest);
    return { traces, height: limit ? 130 : 190, layout: { shapes, annotations, showlegend: !limit, margin: { l: 20, r: 20, t: 22, b: 30 },
      legend: { orientation: "h", y: -0.35, yanchor: "top", x: 0, traceorder: "normal" },
      xaxis: { range: [0, 1.02 * longest], showgrid: false, tickvals: marks, ticktext: marks.map((mark) => (limit ? kib(mark) : `${100 * mark / sum}%`)), fixedrange: true },
      yaxis: { showticklabels: false, fixedrange: true } } };
  }

  const causeColour = (name) => colour(name) || colour("soft");
  const memoryColour = (name) => (MEMORY.includes(name) ? colour(name)
    : FURTHER[Object.keys(page.memory.held).filter((each) => !MEMORY.includes(each)).indexOf(name) % FURTHER.length]);

  function drawMemory(range) {
    const shown = bars(range);
    const fullest = shown.map((bar) => {
      let most = bar.start;
      for (let i = bar.start; i <= bar.end; i++) if (nodes.live[i] > nodes.live[most]) most = i;
      return most;
    });
    const stays = (i) => page.memory.staying[nodes.ipu.length ? nodes.ipu[i] : 0] || 0;
    const layers = [["what stays: weights, code", "weights", stays], ["live tensors", "live", (i) => Math.max(0, nodes.live[i] - nodes.copies[i])],
      ["copies", "copies", (i) => Math.min(nodes.live[i], nodes.copies[i])]];
    const traces = layers.map(([name, shade, read]) => ({
      type: "bar", name, x: shown.map((bar) => bar.at), width: shown.map((bar) => bar.width), y: fullest.map((i) => read(i) / 1024),
      marker: { color: colour(shade), line: { width: 0 } }, customdata: fullest,
      hovertext: fullest.map((i) => `<b>${plain(short(nodes.name[i], 60))}</b><br>${plain(nodes.types[nodes.type[i]])}<br>` +
        layers.map(([each, , of]) => `${each} ${kib(of(i))}`).join("<br>") + `<br>together ${kib(stays(i) + nodes.live[i])}`),
      hovertemplate: "%{hovertext}<extra></extra>" }));
    const tile = page.memory.tile / 1024, peak = page.memory.peak / 1024;
    const shapes = [{ type: "line", x0: 0, x1: 1, xref: "paper", y0: tile, y1: tile, line: { color: colour("bad"), width: 1.5, dash: "dash" } }];
    const annotations = [{ x: 0, xref: "paper", y: tile, yanchor: "bottom", xanchor: "left", showarrow: false, text: `a tile has ${whole(tile)} KiB`, font: { color: colour("bad"), size: 11 } }];
    return { traces, height: 300, layout: { shapes, annotations, bargap: 0, xaxis: { title: { text: "node, in order of execution" }, range: [-0.6, count - 0.4], showgrid: false },
      yaxis: { title: { text: "KiB of a tile" }, range: [0, 1.15 * Math.max(tile, peak)], tickformat: ",", fixedrange: true } } };
  }

  function drawBatches(read, label) {
    const lines = [...new Set(page.batches.points.map((each) => each.line))];
    const shades = [colour("a"), colour("b"), ...FURTHER];
    const traces = lines.map((line, k) => {
      const mine = page.batches.points.filter((each) => each.line === line);
      return { type: "scatter", mode: "lines+markers", name: plain(line), showlegend: lines.length > 1, x: mine.map((each) => each.batch), y: mine.map(read),
        line: { color: shades[k % shades.length] }, marker: { size: 9, symbol: mine.map((each) => (each.fits ? "circle" : "x")), color: mine.map((each) => (each.fits ? shades[k % shades.length] : colour("bad"))) },
        hovertext: mine.map((each) => `<b>batch ${each.batch}</b>, ${plain(line)}<br>latency ${each.latency_text}<br>${whole(each.rate)} samples/s<br>${kib(each.peak)} of a tile: ${each.fits ? "fits" : "does not fit"}`),
        hovertemplate: "%{hovertext}<extra></extra>" };
    });
    const sizes = [...new Set(page.batches.points.map((each) => each.batch))];
    return { traces, height: 270, layout: { xaxis: { type: "log", title: { text: "batch size" }, tickvals: sizes, ticktext: sizes.map(String) }, yaxis: { title: { text: label }, rangemode: "tozero", tickformat: "," } } };
  }

  function drawComparison() {
    const types = page.comparison.types.filter((each) => each[2] || each[3])
      .sort((one, two) => two[2] + two[3] - one[2] - one[3]).slice(0, 14).reverse();
    const names = types.map((each) => plain(short(each[1], 28)));
    const traces = [["B", 3, "b"], ["A", 2, "a"]].map(([name, place, shade]) => wide(name, types.map((each) => each[place] || 0), {
      y: names, marker: { color: colour(shade) }, hovertemplate: `<b>%{y}</b><br>${name}: %{x:,} cycles<extra></extra>`, customdata: types.map((each) => each[1]) }));
    return { traces, height: 80 + 34 * types.length, layout: { barmode: "group", bargroupgap: 0.05, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left", traceorder: "reversed" }, xaxis: { tickformat: ",", title: { text: "cycles" } }, yaxis: { showgrid: false } } };
  }

  // The table of nodes

  const COLUMNS = [
    ["#|", (i) => i, (i) => i + 1],
    ["node", (i) => nodes.name[i]],
    ["operator", (i) => nodes.types[nodes.type[i]]],
    ["cycles|", (i) => total[i], (i) => whole(total[i])],
    ["share|", (i) => total[i], (i) => percent(total[i] / page.cycles)],
    ...CAUSES.map((cause) => [cause + "|", (i) => nodes[cause][i], (i) => whole(nodes[cause][i])]),
    ["MACs|", (i) => nodes.macs[i], (i) => macs(nodes.macs[i])],
    ["of peak|", (i) => nodes.macs[i] / (total[i] || 1), (i) => (nodes.macs[i] ? percent(nodes.macs[i] / (total[i] * page.peak_macs)) : "")],
    ["tiles|", (i) => nodes.tiles[i]],
    ["steps|", (i) => nodes.steps[i]],
    ["live|", (i) => nodes.live[i], (i) => kib(nodes.live[i])],
    ...(nodes.ipu.length ? [["IPU|", (i) => nodes.ipu[i]]] : []),
    ["plan", (i) => nodes.plans[nodes.plan[i]]],
  ];
  const list = { sort: 0, up: true, from: 0, selected: null, type: null, words: "", order: [] };
  const parts = {};

  function arrange() {
    const words = list.words.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (i) => {
      if (list.type !== null && nodes.types[nodes.type[i]] !== list.type) return false;
      const text = `${nodes.name[i]} ${nodes.types[nodes.type[i]]} ${nodes.plans[nodes.plan[i]]}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const key = COLUMNS[list.sort][1];
    const compare = (a, b) => { const x = key(a), y = key(b); return x < y ? -1 : x > y ? 1 : 0; };
    list.order = [...total.keys()].filter(matches).sort((a, b) => (list.up ? compare(a, b) : compare(b, a)) || a - b);
    list.from = Math.min(list.from, Math.max(0, Math.floor((list.order.length - 1) / PAGE_ROWS) * PAGE_ROWS));
  }

  function show() {
    const rows = list.order.slice(list.from, list.from + PAGE_ROWS).map((i) => {
      const cells = COLUMNS.map(([name, key, text]) => make("td", { class: name.endsWith("|") ? "n" : "text" }, breakable((text || key)(i))));
      return make("tr", { "data-node": i, tabindex: 0, "aria-selected": i === list.selected,
        onclick: () => select(i, false), onkeydown: (event) => { if (event.key === "Enter") select(i, false); } }, ...cells);
    });
    parts.body.replaceChildren(...rows);
    const last = Math.min(list.order.length, list.from + PAGE_ROWS);
    parts.told.textContent = list.order.length ? `${whole(list.from + 1)} to ${whole(last)} of ${whole(list.order.length)} nodes` : "no node has this";
    parts.before.disabled = !list.from;
    parts.after.disabled = last >= list.order.length;
    parts.type.hidden = list.type === null;
    parts.type.textContent = `operator: ${short(list.type || "", 30)} ✕`;
    parts.heads.forEach((head, k) => head.setAttribute("aria-sort", k === list.sort ? (list.up ? "ascending" : "descending") : "none"));
  }

  const refresh = () => { arrange(); show(); };

  // Show a node in the table and what is known of it below; filters that hide it go.
  function select(i, move = true) {
    list.selected = i;
    if (!list.order.includes(i)) { list.words = ""; list.type = null; parts.search.value = ""; arrange(); }
    list.from = Math.floor(list.order.indexOf(i) / PAGE_ROWS) * PAGE_ROWS;
    show();
    const lines = [make("b", {}, breakable(nodes.name[i])), ` · ${nodes.types[nodes.type[i]]} · ${whole(total[i])} cycles (${percent(total[i] / page.cycles)}, ${seconds(total[i] / page.clock_hz)}) · `,
      CAUSES.map((cause) => `${cause} ${whole(nodes[cause][i])}`).join(", ") + ` · ${nodes.tiles[i]} tiles, ${nodes.steps[i]} supersteps · ${kib(nodes.live[i])} live on a tile, ${kib(nodes.copies[i])} of it copies · `,
      make("code", {}, nodes.plans[nodes.plan[i]])];
    parts.detail.replaceChildren(...lines);
    parts.detail.hidden = false;
    if (move) parts.body.querySelector(`[data-node="${i}"]`).scrollIntoView({ block: "center" });
  }

  function showType(type) {
    list.type = type;
    list.from = 0;
    refresh();
    document.getElementById("all-nodes").scrollIntoView();
  }

  function makeNodes() {
    const sortBy = (k) => { list.up = list.sort === k ? !list.up : !COLUMNS[k][0].endsWith("|") || k === 0; list.sort = k; list.from = 0; refresh(); };
    parts.heads = COLUMNS.map(([name], k) => make("th", { scope: "col", class: name.endsWith("|") ? "n" : "" },
      make("button", { type: "button", onclick: () => sortBy(k) }, name.replace("|", ""))));
    parts.body = make("tbody");
    parts.search = make("input", { id: "search", type: "search", placeholder: "search nodes, operators, plans", "aria-label": "Search nodes",
      oninput: (event) => { list.words = event.target.value; list.from = 0; refresh(); } });
    parts.type = make("button", { id: "type", type: "button", onclick: () => { list.type = null; refresh(); } });
    parts.told = make("span", { id: "told", class: "note", "aria-live": "polite" });
    const turn = (by) => () => { list.from += by; show(); };
    parts.before = make("button", { type: "button", "aria-label": "Previous page", onclick: turn(-PAGE_ROWS) }, "‹");
    parts.after = make("button", { type: "button", "aria-label": "Next page", onclick: turn(PAGE_ROWS) }, "›");
    parts.detail = make("p", { id: "detail", hidden: "" });
    const left = nodes.left_out ? ` The ${whole(nodes.left_out)} cheapest are not listed: they would make this file too large.` : "";
    section("all-nodes", "Nodes", "Those that take time; views take none. Cycles are the busiest tile's, bytes a tile's." + left,
      make("div", { class: "bar" }, parts.search, parts.type, make("span", { class: "grow" }), parts.told, parts.before, parts.after),
      scrolled(make("table", { id: "nodes" }, make("thead", {}, make("tr", {}, ...parts.heads)), parts.body)), parts.detail);
    refresh();
  }

  // Sections

  function makeSummary() {
    const sum = page.latency.flatMap(([name, text], k) => [k ? make("span", { class: "sign" }, "+") : null,
      make("div", { class: "figure" }, make("b", {}, text), make("span", {}, name))]);
    const used = make("b", { class: page.fits ? "good" : "bad" }, kib(page.memory.peak));
    const memory = make("div", { class: "figure", id: "fits" }, used, make("span", {}, `of ${kib(page.memory.tile)} of a tile: ${page.fits ? "fits" : "does not fit"}`));
    const warnings = page.warnings.length ? make("ul", { class: "warnings" }, ...page.warnings.map((text) => make("li", {}, text))) : null;
    section("summary", "Summary", null,
      make("div", { class: "sum", id: "latency" }, ...sum, make("span", { class: "sign" }, "="),
        make("div", { class: "figure total" }, make("b", {}, page.latency_text), make("span", {}, "latency of a call"))),
      make("div", { class: "figures" }, ...page.figures.map(([label, value]) => make("div", { class: "figure" }, make("b", {}, value), make("span", {}, label))), memory),
      make("p", { class: "error", id: "error" }, page.error[0].toUpperCase() + page.error.slice(1) + "."), warnings);
  }

  function makeTime() {
    if (!count) return;
    section("time", "Where the time goes", "Cycles of the busiest tile. Drag to zoom, double-click to see all; click a bar to see its node in the table.",
      chart("chart-nodes", "Cycles of each node in order", drawNodes, { onclick: (point) => select(point.customdata), onzoom: true }),
      make("div", { class: "pair" },
        make("div", {}, make("h3", {}, "By operator type"), make("p", { class: "note" }, "With the number of nodes; click to list them."),
          chart("chart-types", "Cycles by operator type", drawTypes, { onclick: (point) => showType(point.customdata) })),
        make("div", {}, make("h3", {}, "What all tiles do"), make("p", { class: "note" }, "Every cycle of every tile has one cause."),
          chart("chart-causes", "Cycles of all tiles by cause", (_, width) => drawShares(Object.entries(page.causes), causeColour, (value) => whole(value) + " cycles", width), { still: true }))));
  }

  function makeMemory() {
    const held = Object.entries(page.memory.held);
    const at = page.memory.node ? ` It is fullest while ${page.memory.node} runs.` : "";
    const keyed = (name) => make("span", {}, make("span", { class: "part", style: `background: ${memoryColour(name)}` }), name);
    const alive = page.memory.alive.map(([name, size]) => [name, kib(size), percent(size / page.memory.tile)]);
    const beside = page.memory.io_tile ? make("p", { class: "note" }, `An I/O tile needs ${kib(page.memory.io_tile)}.`) : null;
    const ipus = page.memory.ipus.length > 1 ? table(["IPU|", "cycles|", "peak of a tile|", "fits"],
      page.memory.ipus.map(([number, cycles, peak, fits]) => [number, whole(cycles), kib(peak), fitting(fits)]), "ipus") : null;
    section("memory", "What fills the fullest tile", "At its peak, by what it holds." + at,
      chart("chart-memory", "Memory of the fullest tile", (_, width) => drawShares(held, memoryColour, kib, width, page.memory.tile), { still: true }), beside,
      make("div", { class: "pair" }, ...[
        table(["what it holds", "a tile|", "of the tile|"], [...held.map(([name, size]) => [keyed(name), kib(size), percent(size / page.memory.tile)]),
          ["peak", kib(page.memory.peak), percent(page.memory.peak / page.memory.tile)]], "held"),
        alive.length ? table(["live at the peak", "a tile|", "of the tile|"], alive, "alive") : null].filter(Boolean)),
      count ? make("h3", {}, "While the nodes run") : null,
      count ? chart("chart-live", "Memory of a tile while each node runs", drawMemory, { onclick: (point) => select(point.customdata), onzoom: true }) : null, ipus);
  }

  function makeBatches() {
    const several = page.batches.points.length > 1;
    if (!several && !page.batches.missing) return;
    section("batches", "Other batch sizes", [several ? "A cross is a batch that does not fit." : "", page.batches.missing].join(" "), several ? make("div", { class: "pair" },
      chart("chart-latency", "Latency by batch size", () => drawBatches((each) => each.latency * 1e3, "latency, ms")),
      chart("chart-rate", "Throughput by batch size", () => drawBatches((each) => each.rate, "samples/s"))) : null);
  }

  function makeSweep() {
    if (page.sweep.length < 2) return;
    section("sweep", "Sweep", null, table(["point", "batch|", "cycles|", "latency|", "samples/s|", "a tile|", "fits"],
      page.sweep.map((each) => [each.line, each.batch, whole(each.cycles), each.latency_text, whole(each.rate), kib(each.peak), fitting(each.fits)]), "points"));
  }

  function makeAdvice() {
    if (!page.advice) return;
    const change = (text, ratio, less) => {
      const by = (ratio >= 1 ? "+" : "−") + percent(Math.abs(ratio - 1));
      const side = Math.abs(ratio - 1) < 0.001 ? "" : (ratio < 1) === less ? " good" : " bad";
      return make("span", {}, text + " ", make("span", { class: "change" + side }, by));
    };
    const listed = (heading, found, id) => found.length ? table([heading, "latency|", "samples/s|", "a tile|", "fits"], found.map((each) => [
      make("span", {}, make("code", {}, ...each.change.split(/(?<=[ ,])/).flatMap((word) => [make("span", { class: "whole" }, word), make("wbr")])), each.changes_results ? " (changes the results)" : ""),
      change(each.latency_text, each.latency_ratio, true), change(whole(each.rate), each.rate_ratio, false), change(kib(each.peak), each.memory_ratio, true), fitting(each.fits)]), id) : null;
    const several = page.advice.front.length > 1;
    section("advice", page.advice.title, page.advice.text,
      listed("option", page.advice.rows, "suggestions"),
      ...page.advice.best.map(([label, figures, command]) => make("p", { class: "best" }, `${label}: ${figures}`, make("br"), make("code", {}, breakable(command)))),
      several ? make("p", { class: "note" }, page.advice.front_text) : null,
      several ? listed("options", page.advice.front, "front") : null);
  }

  function makeComparison() {
    const both = page.comparison;
    if (!both) return;
    const difference = (before, after) => { const by = (after || 0) - (before || 0); return (by > 0 ? "+" : by < 0 ? "−" : "") + whole(Math.abs(by)); };
    const cycles = (value) => (value === null ? "–" : whole(value));
    section("comparison", "Side by side", null,
      make("p", { class: "note" }, make("b", { class: "a" }, "A"), " ", breakable(both.subjects[0]), make("br"), make("b", { class: "b" }, "B"), " ", breakable(both.subjects[1])),
      make("div", { class: "pair" }, table(["modelled", "A|", "B|", "B / A|"], both.figures, "both"),
        both.types.length ? chart("chart-comparison", "Cycles by operator type in A and B", drawComparison, { onclick: (point) => showType(point.customdata) }) : null),
      both.nodes.length ? make("details", {}, make("summary", {}, `The ${whole(both.nodes.length)} nodes that differ most, by name`),
        table(["node", "operator", "A|", "B|", "B − A|"], both.nodes.map(([name, type, a, b]) => [name, type, cycles(a), cycles(b), difference(a, b)]), "differences")) : null);
  }

  async function makeRest() {
    const [tiles, missing] = await readTiles(page.tiles);
    if (tiles) makeTiles({ ...report, inkOn, FURTHER }, tiles);
    if (missing) section("tiles", "Tiles", missing);
    if (count) makeNodes();
    section("method", "How this was modelled", page.modelled,
      make("details", {}, make("summary", {}, "Options"), table(["option", "value"], page.options)));
  }

  makeSummary();
  makeTime();
  makeMemory();
  makeAdvice();
  makeComparison();
  makeBatches();
  makeSweep();
  makeRest();
})();
