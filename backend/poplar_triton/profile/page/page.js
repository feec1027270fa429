// Draws the report of a profile out of its document, with what base.js has.
"use strict";
(() => {
  const { page, short, split, whole, percent, kib, seconds, make, breakable, section, table, scrolled, fitting, legend } = report;
  const canvases = makeCanvases(report), { bars, columns, curves } = makeCharts(report, canvases);
  const nodes = page.nodes;
  const count = nodes.name.length;
  const total = nodes.name.map((_, i) => nodes.compute[i] + nodes.exchange[i] + nodes.sync[i]);
  const CAUSES = ["compute", "exchange", "sync"];
  const PAGE_ROWS = 100;
  const MAX_TYPES = 14; // operator types with a bar
  const COLOURED = [...CAUSES, "host", "idle", "weights", "live"]; // names with a colour of their own
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

  function macs(value) {
    for (const [unit, scale] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
      if (value >= scale) return +(value / scale).toPrecision(3) + " " + unit;
    return value ? String(value) : "";
  }

  // Charts

  const chosen = canvases.makeChoice();

  function describe(i) {
    const rate = nodes.macs[i] ? ` · ${macs(nodes.macs[i])} MACs, ${percent(nodes.macs[i] / (total[i] * page.peak_macs))} of the peak rate` : "";
    const parts = [nodes.types[nodes.type[i]], `${whole(total[i])} cycles (${percent(total[i] / page.cycles)}, ${seconds(total[i] / page.clock_hz)})`,
      CAUSES.map((cause) => `${cause} ${whole(nodes[cause][i])}`).join(", "), `${nodes.tiles[i]} tiles, ${nodes.steps[i]} supersteps`,
      `${kib(nodes.live[i])} live on a tile, ${kib(nodes.copies[i])} of it copies`];
    return [make("b", {}, `${i + 1} `, breakable(nodes.name[i])), ` · ${parts.join(" · ")}${rate} · `, make("code", {}, nodes.plans[nodes.plan[i]])];
  }

  // A chart over the nodes, with its buttons and what is told of the chosen one.
  function nodeChart(id, label, layers, more) {
    const made = columns(id, label, { count, layers, chosen, describe, ...more });
    return [make("div", { class: "bar" }, legend(layers.map(([name, shade]) => [shade, name])), make("span", { class: "grow" }), ...made.buttons), made.element, made.told];
  }

  function typeBars() {
    const types = page.types.filter((each) => each[2] + each[3] + each[4]).slice(0, MAX_TYPES);
    const sum = (each) => each[2] + each[3] + each[4];
    const rows = types.map((each) => ({ name: `${short(each[0], 28)} (${each[1]})`, onclick: () => showType(each[0]), lines: [{ text: percent(sum(each) / page.cycles),
      parts: CAUSES.map((cause, k) => ({ shade: cause, value: each[2 + k],
        tip: `${each[0]}: ${cause} ${whole(each[2 + k])} of ${whole(sum(each))} cycles; all of them ${percent(sum(each) / page.cycles)} of the time` })) }] }));
    return bars("chart-types", "Cycles by operator type", rows, { most: Math.max(...types.map(sum)) });
  }

  // The colour of a cause or of a category of memory; those without one of their own have further ones in order.
  const shadeOf = (name, names) => (COLOURED.includes(name) ? name : FURTHER[names.filter((each) => !COLOURED.includes(each)).indexOf(name) % FURTHER.length]);

  // One bar of parts, as shares of `limit`, or of their sum if there is none.
  function shareBar(id, label, parts, format, limit = null) {
    const sum = parts.reduce((all, part) => all + part[1], 0), all = limit || sum, names = parts.map((part) => part[0]);
    const boxes = parts.map(([name, value]) => ({ shade: shadeOf(name, names), value, text: percent(value / all),
      tip: `${name}: ${format(value)}, ${percent(value / all)}${limit ? " of the tile" : ""}` }));
    return bars(id, label, [{ lines: [{ parts: boxes }] }], { most: Math.max(all, sum), tall: true, limit: limit && [limit, `a tile has ${format(limit)}`] });
  }

  function causeBar() {
    const parts = Object.entries(page.causes), names = parts.map((part) => part[0]), sum = parts.reduce((all, part) => all + part[1], 0);
    return [shareBar("chart-causes", "Cycles of all tiles by cause", parts, (value) => whole(value) + " cycles"),
      legend(parts.map(([name, value]) => [shadeOf(name, names), `${name} ${percent(value / sum)}`]))];
  }

  function memoryChart() {
    const stays = (i) => page.memory.staying[nodes.ipu.length ? nodes.ipu[i] : 0] || 0;
    return nodeChart("chart-live", "Memory of a tile while each node runs", [["what stays: weights, code", "weights", stays],
      ["live tensors", "live", (i) => Math.max(0, nodes.live[i] - nodes.copies[i])], ["copies", "copies", (i) => Math.min(nodes.live[i], nodes.copies[i])]],
    { height: 280, text: kib, unit: 1024, limit: [page.memory.tile, `a tile has ${kib(page.memory.tile)}`] });
  }

  function batchChart(id, label, read, title) {
    const lines = [...new Set(page.batches.points.map((each) => each.line))], shades = ["a", "b", ...FURTHER];
    const series = lines.map((line, k) => ({ name: line, shade: shades[k % shades.length], points: page.batches.points.filter((each) => each.line === line).map((each) => ({
      x: each.batch, y: read(each), symbol: each.fits ? "circle" : "cross",
      tip: `batch ${each.batch}, ${line}: latency ${each.latency_text}, ${whole(each.rate)} samples/s, ${kib(each.peak)} of a tile: ${each.fits ? "fits" : "does not fit"}` })) }));
    const marks = [...new Set(page.batches.points.map((each) => each.batch))].sort((a, b) => a - b);
    return curves(id, label, series, { x: { log: true, title: "batch size", marks }, y: { title } });
  }

  function comparisonBars(types) {
    const shown = types.filter((each) => each[2] || each[3]).sort((one, two) => two[2] + two[3] - one[2] - one[3]).slice(0, MAX_TYPES);
    const line = (type, name, shade, value) => ({ text: whole(value), parts: [{ shade, value, tip: `${type}: ${name} ${whole(value)} cycles` }] });
    const rows = shown.map(([, type, a, b]) => ({ name: short(type, 28), onclick: () => showType(type), lines: [line(type, "A", "a", a || 0), line(type, "B", "b", b || 0)] }));
    return make("div", {}, legend([["a", "A"], ["b", "B"]]),
      bars("chart-comparison", "Cycles by operator type in A and B", rows, { most: Math.max(...shown.flatMap((each) => [each[2] || 0, each[3] || 0])) }));
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
  const list = { sort: 0, up: true, from: 0, type: null, words: "", order: [] };
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
      return make("tr", { "data-node": i, tabindex: 0, "aria-selected": i === chosen.step,
        onclick: () => chosen.choose(i), onkeydown: (event) => { if (event.key === "Enter") chosen.choose(i); } }, ...cells);
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
  chosen.watchers.push((i, from, clicked) => {
    if (!list.order.includes(i)) { list.words = ""; list.type = null; parts.search.value = ""; arrange(); }
    list.from = Math.floor(list.order.indexOf(i) / PAGE_ROWS) * PAGE_ROWS;
    show();
    parts.detail.replaceChildren(...describe(i));
    parts.detail.hidden = false;
    if (clicked) parts.body.querySelector(`[data-node="${i}"]`).scrollIntoView({ block: "center" });
  });

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
      scrolled(make("table", { id: "nodes" }, make("thead", {}, make("tr", {}, ...parts.heads)), parts.body), true), parts.detail);
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
    section("time", "Where the time goes", "Cycles of the busiest tile for each node, in order of execution. Drag to zoom, double-click to see all; click a column or a name to see its node in the table.",
      ...nodeChart("chart-nodes", "Cycles of each node in order", CAUSES.map((cause) => [cause, cause, (i) => nodes[cause][i]]),
        { height: 380, text: whole, name: (i, others) => label(nodes.name[i], 34, others.map((each) => nodes.name[each])) }),
      make("div", { class: "pair" },
        make("div", {}, make("h3", {}, "By operator type"), make("p", { class: "note" }, "With the number of nodes; click to list them."), typeBars()),
        make("div", {}, make("h3", {}, "What all tiles do"), make("p", { class: "note" }, "Every cycle of every tile has one cause."), ...causeBar())));
  }

  function makeMemory() {
    const held = Object.entries(page.memory.held);
    const at = page.memory.node ? ` It is fullest while ${page.memory.node} runs.` : "";
    const keyed = (name) => legend([[shadeOf(name, Object.keys(page.memory.held)), name]]);
    const alive = page.memory.alive.map(([name, size]) => [name, kib(size), percent(size / page.memory.tile)]);
    const beside = page.memory.io_tile ? make("p", { class: "note" }, `An I/O tile needs ${kib(page.memory.io_tile)}.`) : null;
    const ipus = page.memory.ipus.length > 1 ? table(["IPU|", "cycles|", "peak of a tile|", "fits"],
      page.memory.ipus.map(([number, cycles, peak, fits]) => [number, whole(cycles), kib(peak), fitting(fits)]), "ipus") : null;
    section("memory", "What fills the fullest tile", "At its peak, by what it holds." + at,
      shareBar("chart-memory", "Memory of the fullest tile", held, kib, page.memory.tile), beside,
      make("div", { class: "pair" }, ...[
        table(["what it holds", "a tile|", "of the tile|"], [...held.map(([name, size]) => [keyed(name), kib(size), percent(size / page.memory.tile)]),
          ["peak", kib(page.memory.peak), percent(page.memory.peak / page.memory.tile)]], "held"),
        alive.length ? table(["live at the peak", "a tile|", "of the tile|"], alive, "alive") : null].filter(Boolean)),
      count ? make("h3", {}, "While the nodes run") : null,
      ...(count ? memoryChart() : []), ipus);
  }

  function makeBatches() {
    const several = page.batches.points.length > 1;
    if (!several && !page.batches.missing) return;
    section("batches", "Other batch sizes", [several ? "A cross is a batch that does not fit." : "", page.batches.missing].join(" "), several ? make("div", { class: "pair" },
      batchChart("chart-latency", "Latency by batch size", (each) => each.latency * 1e3, "latency, ms"),
      batchChart("chart-rate", "Throughput by batch size", (each) => each.rate, "samples/s")) : null);
  }

  function makeSweep() {
    if (page.sweep.length < 2) return;
    section("sweep", "Sweep", null, table(["point", "batch|", "cycles|", "latency|", "samples/s|", "a tile|", "fits"],
      page.sweep.map((each) => [each.line, each.batch, whole(each.cycles), each.latency_text, whole(each.rate), kib(each.peak), fitting(each.fits)]), "points"));
  }

  // Words of a command, which is broken between them, and within those that are too long for a telephone.
  const words = (text) => make("code", {}, ...text.split(/(?<=[ ,])/).flatMap((word) =>
    [word.length < 36 ? make("span", { class: "whole" }, word) : breakable(word), make("wbr")]));

  function makeAdvice() {
    if (!page.advice) return;
    const change = (text, ratio, less) => {
      const by = (ratio >= 1 ? "+" : "−") + percent(Math.abs(ratio - 1));
      const side = Math.abs(ratio - 1) < 0.001 ? "" : (ratio < 1) === less ? " good" : " bad";
      return make("span", {}, text + " ", make("span", { class: "change" + side }, by));
    };
    const listed = (heading, found, id) => found.length ? table([heading, "latency|", "samples/s|", "a tile|", "fits"], found.map((each) => [
      make("span", {}, words(each.change), each.changes_results ? " (changes the results)" : ""),
      change(each.latency_text, each.latency_ratio, true), change(whole(each.rate), each.rate_ratio, false), change(kib(each.peak), each.memory_ratio, true), fitting(each.fits)]), id) : null;
    const several = page.advice.front.length > 1;
    section("advice", page.advice.title, page.advice.text,
      listed("option", page.advice.rows, "suggestions"),
      ...page.advice.best.map(([label, figures, command]) => make("p", { class: "best" }, `${label}: ${figures}`, make("br"), words(command))),
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
        both.types.length ? comparisonBars(both.types) : null),
      both.nodes.length ? make("details", {}, make("summary", {}, `The ${whole(both.nodes.length)} nodes that differ most, by name`),
        table(["node", "operator", "A|", "B|", "B − A|"], both.nodes.map(([name, type, a, b]) => [name, type, cycles(a), cycles(b), difference(a, b)]), "differences")) : null);
  }

  async function makeRest() {
    const [tiles, missing] = await readTiles(page.tiles);
    if (tiles) makeTiles({ ...report, FURTHER }, canvases, columns, tiles);
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
