// What the tiles hold and do: heat map, liveness, exchange, vertices and program. `tiles` is the document of
// `poplar-triton profile --tiles`. Its text is put in as text: textContent in the page, fillText on a canvas.
"use strict";
// Return the document of the tiles and why there is none; both are null if the report was made without.
async function readTiles(text) {
  if (!text) return [null, null];
  if (text === "-") return [null, "The tiles of this graph are not drawn: its names and nodes would make this file too large. The command's --tiles writes them."];
  if (typeof DecompressionStream === "undefined") return [null, "The tiles are not drawn: this browser cannot decompress them. Browsers from 2023 on can."];
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return [JSON.parse(await new Response(stream).text()), null];
}

function makeTiles(tools, canvases, columns, tiles) {
  const { make, section, table, breakable, whole, percent, kib, seconds, colour, legend } = tools;
  const { steps, variables, mappings } = tiles;
  const count = steps.name.length;
  const PAGE_ROWS = 100;
  const ALL = "all that a tile holds";
  const length = (i) => steps.sync[i] + steps.exchange[i] + steps.compute[i];
  const expand = (runs) => Float64Array.from(runs.flatMap(([number, value]) => Array(number).fill(value)));
  const figure = (value, text) => (value === null || value === undefined ? "not known" : text(value));
  const known = (each) => (each.average ? "average: a total spread evenly"
    : each.planned_bytes < each.total_bytes ? `planned by ${percent(each.planned_bytes / each.total_bytes)}, the rest an average` : "planned");
  const option = (value, text) => make("option", { value }, text);

  const chosen = canvases.makeChoice();

  function describe(i) {
    const vertex = steps.vertex[i] < 0 ? "no vertex" : steps.vertex_types[steps.vertex[i]];
    const parts = [` · ${steps.types[steps.type[i]]} · ${vertex}`, `${whole(length(i))} cycles (${seconds(length(i) / tiles.clock_hz)}): `
      + `compute ${whole(steps.compute[i])}, exchange ${whole(steps.exchange[i])}, sync ${whole(steps.sync[i])}`,
    `${whole(steps.supersteps[i])} supersteps on ${whole(steps.tiles[i])} tiles of IPU ${steps.ipu[i]}`,
    `workers of the fullest tile busy: ${figure(steps.workers[i], percent)}`,
    `the fullest tile receives ${kib(steps.received_fullest_bytes[i])}`];
    return [make("b", {}, `${i + 1} `, breakable(steps.name[i])), parts.join(" · ")];
  }

  // Heat map

  function makeMap() {
    const per = tiles.tiles_per_ipu;
    const causes = ["compute", "exchange", "sync", "host", "idle"];
    const state = { ipu: 0, what: ALL, tile: null, values: null, sorted: null, shares: null };
    const memory = () => tiles.memory[state.ipu];
    const cycles = () => tiles.cycles.find((each) => each.ipu === memory().ipu);
    const exact = (value) => whole(value) + (causes.includes(state.what) ? " cycles" : " bytes");
    const text = (value) => (causes.includes(state.what) ? exact(value) : kib(value));
    const columns = (width) => Math.min(64, Math.max(16, Math.floor(width / 10)));

    function read() {
      const runs = state.what === ALL ? memory().tiles : causes.includes(state.what) ? cycles()?.[state.what]
        : memory().categories.find((each) => each.name === state.what)?.tiles;
      state.values = runs ? expand(runs) : new Float64Array(per);
      state.sorted = [...state.values].sort((a, b) => a - b);
      state.shares = rank(state.sorted);
    }

    // The place of each value among all tiles, from 0 for the smallest to 1 for the largest: the middle of its equals. A
    // scale in proportion to the bytes would show one colour, because tiles hold nearly the same, or one tile much more.
    function rank(sorted) {
      const middles = new Map();
      for (let from = 0, to; from < sorted.length; from = to) {
        for (to = from; sorted[to] === sorted[from];) to++;
        middles.set(sorted[from], (from + to) / 2);
      }
      const ends = [...middles.values()], low = ends[0], length = ends.at(-1) - low;
      return new Map([...middles].map(([value, middle]) => [value, length ? (middle - low) / length : 0.5]));
    }
    const alpha = (value) => 0.06 + 0.94 * state.shares.get(value);

    // What the colours mean: the values of tiles at even places from the smallest to the largest, and their difference.
    function describeScale() {
      const { sorted } = state, low = sorted[0], high = sorted.at(-1);
      if (low === high) return [`every tile: ${text(low)}`];
      const places = [...new Set([0, 0.25, 0.5, 0.75, 1].map((share) => sorted[Math.round(share * (sorted.length - 1))]))];
      const print = new Set(places.map(text)).size < places.length ? exact : text;
      const more = low ? `, ${percent(high / low - 1)} more` : "";
      return [legend(places.map((value) => [`color-mix(in srgb, var(--map) ${100 * alpha(value)}%, transparent)`, print(value)])),
        `smallest ${print(low)}, largest ${print(high)}${more}; tiles are coloured by their order`];
    }

    const place = (tile, width) => { const across = columns(width), size = width / across; return [(tile % across) * size, Math.floor(tile / across) * size, size]; };
    const heightOf = (width) => Math.ceil(Math.ceil(per / columns(width)) * (width / columns(width)));

    function draw(pen, width) {
      pen.fillStyle = colour("map");
      for (let tile = 0; tile < per; tile++) {
        const [x, y, size] = place(tile, width);
        pen.globalAlpha = alpha(state.values[tile]);
        pen.fillRect(x, y, size - 1, size - 1);
      }
      pen.globalAlpha = 1;
      if (state.tile === null) return;
      const [x, y, size] = place(state.tile, width);
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 2;
      pen.strokeRect(x, y, size - 1, size - 1);
    }

    const map = canvases.canvas("tile-map", "Map of the tiles, one cell each, row by row", heightOf, draw);
    const told = make("p", { id: "tile-told", class: "told", "aria-live": "polite" });
    const key = make("div", { id: "tile-scale", class: "note" });
    const detail = make("div", { id: "tile-detail" });
    const number = make("input", { id: "tile-number", type: "number", min: 0, max: per - 1, "aria-label": "Tile number", placeholder: "tile",
      oninput: (event) => { if (event.target.value !== "") pick(Number(event.target.value), false); } });
    const what = make("select", { id: "tile-what", "aria-label": "What the map shows", onchange: (event) => { state.what = event.target.value; refresh(); } });
    const ipu = make("select", { id: "tile-ipu", "aria-label": "IPU of the map", onchange: (event) => { state.ipu = Number(event.target.value); offer(); refresh(); } },
      ...tiles.memory.map((each, k) => option(k, `IPU ${each.ipu}`)));

    // Offer what this IPU has; averages are marked.
    function offer() {
      const mark = (each) => each.name + (each.average ? " (average)" : "");
      const bytes = make("optgroup", { label: "memory at the peak" }, option(ALL, ALL), ...memory().categories.map((each) => option(each.name, mark(each))));
      const spent = make("optgroup", { label: "cycles of a batch (average)" }, ...causes.map((cause) => option(cause, cause)));
      what.replaceChildren(bytes, ...(cycles() ? [spent] : []));
      what.value = state.what;
      if (what.value !== state.what) what.value = state.what = ALL;
    }

    function refresh() {
      read();
      key.replaceChildren(...describeScale());
      map.redraw();
      show();
    }

    function show() {
      const tile = state.tile;
      if (tile === null) { told.textContent = "Choose a tile to read it."; return; }
      const at = (runs) => { let left = tile; for (const [many, value] of runs) { if (left < many) return value; left -= many; } return 0; };
      told.textContent = `IPU ${memory().ipu}, tile ${tile}: ${state.what} ${text(state.values[tile])}`;
      const bytes = memory().categories.map((each) => [each.name, whole(at(each.tiles)), percent(at(each.tiles) / tiles.tile_bytes), known(each)]);
      const total = at(memory().tiles);
      const busy = cycles() ? causes.map((cause) => [cause, whole(at(cycles()[cause]))]) : [];
      const named = tile >= per - tiles.io_tiles ? `I/O tile ${tile}` : `tile ${tile}`;
      detail.replaceChildren(make("div", { class: "pair" },
        table([`held by ${named}`, "bytes|", "of the tile|", "known as"], [...bytes, ["all", whole(total), percent(total / tiles.tile_bytes), ""]], "tile-bytes"),
        ...(busy.length ? [table([`cycles of ${named}`, "cycles|"], busy, "tile-cycles")] : [])));
    }

    function pick(tile, write = true) {
      if (!Number.isInteger(tile) || tile < 0 || tile >= per) { told.textContent = `There are tiles 0 to ${per - 1}.`; return; }
      state.tile = tile;
      if (write) number.value = tile;
      map.redraw();
      show();
    }

    const under = (event) => {
      const box = map.element.getBoundingClientRect(), size = box.width / columns(box.width);
      const tile = Math.floor((event.clientY - box.top) / size) * columns(box.width) + Math.floor((event.clientX - box.left) / size);
      return tile < per ? tile : null;
    };
    map.element.addEventListener("click", (event) => { const tile = under(event); if (tile !== null) pick(tile); });
    map.element.addEventListener("pointermove", (event) => {
      const tile = under(event);
      if (tile !== null) told.textContent = `IPU ${memory().ipu}, tile ${tile}: ${state.what} ${text(state.values[tile])}`;
    });
    map.element.addEventListener("pointerleave", show);
    map.element.addEventListener("keydown", (event) => {
      const across = columns(map.element.clientWidth);
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      const next = state.tile === null ? 0 : state.tile + by;
      if (next >= 0 && next < per) pick(next);
    });
    offer();
    read();
    state.tile = state.values.indexOf(state.sorted.at(-1)); // a fullest tile to begin with
    refresh();
    const balance = tiles.memory.map((each) => [each.ipu, figure(each.peak_step, (step) => steps.name[step]), kib(each.mean_bytes), kib(each.mapped_fullest_bytes),
      figure(each.balance, percent), kib(each.fullest_bytes)]);
    section("tiles", "Tiles", `Memory of each of ${whole(per)} tiles when its IPU is fullest, and what each does in a batch. Click a cell, type its number, or use the arrow keys. `
      + "Figures marked as averages are totals that the model spreads evenly; a plan says where the others are. "
      + "Cycles are averages, too: every tile at work is taken to be like the busiest one.",
    make("div", { class: "bar" }, what, tiles.memory.length > 1 ? ipu : null, number),
    map.element, key, told, detail,
    make("h3", {}, "Tile balance"), make("p", { class: "note" }, "Mean over fullest tile of the map. The estimate's fullest tile is what “fits” compares: the mean times a measured imbalance."),
    table(["IPU|", "fullest while", "mean|", "fullest of the map|", "balance|", "estimate's fullest|"], balance, "balance"),
    ...tiles.notes.map((each) => make("p", { class: "note" }, breakable(each))));
  }

  // Charts over the steps

  const stepChart = (id, label, layers) => columns(id, label, { count, layers, text: kib, unit: 1024, chosen,
    describe: (i) => [make("b", {}, `${i + 1} `, breakable(steps.name[i])), ` · ${steps.types[steps.type[i]]} · ${kib(layers.at(-1)[2](i))}`] });

  function makeLiveness() {
    const isHeld = (v) => ["weight", "constant"].includes(variables.kinds[variables.kind[v]]);
    const held = new Map();
    variables.name.forEach((_, v) => { if (isHeld(v)) held.set(variables.ipu[v], (held.get(variables.ipu[v]) || 0) + variables.bytes[v]); });
    const state = { words: "", from: 0, found: [] };
    const both = make("input", { type: "checkbox", id: "alive-held", onchange: () => { state.from = 0; chart.redraw(); refresh(); } });
    const chart = stepChart("liveness", "Bytes alive on all tiles of an IPU while each node runs", [
      ["weights", "weights", (i) => (both.checked ? held.get(steps.ipu[i]) || 0 : 0)], ["live", "live", (i) => steps.live_bytes[i]]]);
    const when = (step) => (step < 0 ? "before the first" : step >= count ? "until the end" : `${step + 1} ${steps.name[step]}`);

    // A variable's row. The most elements of a tile are in the first level of its mapping.
    function row(v) {
      const mapping = mappings[variables.mapping[v]], bytes = variables.bytes[v];
      const most = mapping && mapping.levels.length && mapping.elements ? kib(bytes * mapping.levels[0][1] / mapping.elements) : "not known";
      return [variables.name[v], variables.kinds[variables.kind[v]], whole(bytes), mapping ? whole(mapping.tiles) : "not known", most,
        mapping ? mapping.source + (mapping.average ? " (average)" : "") : "not known", when(variables.first[v]), when(variables.last[v])];
    }

    function find() {
      const step = chosen.step ?? 0, words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
      const alive = (v) => variables.ipu[v] === steps.ipu[step] && variables.first[v] <= step && step <= variables.last[v] && (both.checked || !isHeld(v));
      const named = (v) => words.every((word) => variables.name[v].toLowerCase().includes(word));
      state.found = [...variables.name.keys()].filter((v) => alive(v) && named(v)).sort((a, b) => variables.bytes[b] - variables.bytes[a] || a - b);
    }

    function refresh() {
      find();
      const step = chosen.step ?? 0, shown = state.found.slice(state.from, state.from + PAGE_ROWS);
      const bytes = state.found.reduce((sum, v) => sum + variables.bytes[v], 0);
      sum.textContent = `${whole(state.found.length)} variables alive at node ${step + 1}, ${kib(bytes)} on all tiles`
        + (state.found.length > PAGE_ROWS ? `; ${whole(state.from + 1)} to ${whole(state.from + shown.length)}` : "");
      before.disabled = !state.from;
      after.disabled = state.from + PAGE_ROWS >= state.found.length;
      list.replaceChildren(table(["variable", "kind", "bytes|", "tiles|", "most of a tile|", "mapping", "from", "to"], shown.map(row), "variables", true));
    }

    const sum = make("span", { id: "alive-sum", class: "note", "aria-live": "polite" });
    const list = make("div");
    const turn = (by) => () => { state.from += by; refresh(); };
    const before = make("button", { type: "button", "aria-label": "Previous variables", onclick: turn(-PAGE_ROWS) }, "‹");
    const after = make("button", { type: "button", "aria-label": "Next variables", onclick: turn(PAGE_ROWS) }, "›");
    const search = make("input", { id: "alive-search", type: "search", placeholder: "search variables", "aria-label": "Search variables",
      oninput: (event) => { state.words = event.target.value; state.from = 0; refresh(); } });
    const number = make("input", { id: "alive-step", type: "range", min: 1, max: count, value: 1, "aria-label": "Node at which the variables are alive",
      oninput: (event) => chosen.choose(Number(event.target.value) - 1) });
    chosen.watchers.push((i) => { state.from = 0; number.value = i + 1; number.setAttribute("aria-valuetext", `${i + 1} ${steps.name[i]}`); refresh(); });
    refresh();
    const several = tiles.num_ipus > 1 ? " Each node shows its own IPU." : "";
    section("alive-over-time", "Liveness", "Bytes alive on all tiles of the IPU while each node runs. Click a node, or move the slider, to list its variables, the largest first. "
      + "Nodes are counted with views, which take no time. The chart counts weights that a call copies; the list has them among the weights." + several,
      make("div", { class: "bar" }, make("label", {}, both, " weights and constants too"), make("span", { class: "grow" }), ...chart.buttons),
      chart.element, chart.told, number, make("div", { class: "bar" }, search, make("span", { class: "grow" }), sum, before, after), list);
  }

  function makeExchange() {
    if (!steps.received_fullest_bytes.some(Boolean)) return;
    const chart = stepChart("exchange", "Bytes that the fullest tile receives in each node", [["received", "exchange", (i) => steps.received_fullest_bytes[i]]]);
    const rows = tiles.hot_spots.map((each) => {
      const go = make("button", { type: "button", class: "link", onclick: () => { chosen.choose(each.step); chart.reveal(each.step, true); } }, breakable(steps.name[each.step] || "(no name)"));
      return [go, steps.types[steps.type[each.step]], kib(each.received_fullest_bytes), percent(each.share), "at most " + kib(steps.received_bytes[each.step]),
        each.receivers ? each.receivers.map(whole).join(" / ") : "not known"];
    });
    section("exchanged", "Exchange", `Bytes that the fullest tile receives over all supersteps of a node; a tile receives ${tiles.exchange_bytes_per_cycle} bytes a cycle. `
      + "The sum over all tiles is an upper bound: as if each tile at work received as much.",
    make("div", { class: "bar" }, make("span", { class: "grow" }), ...chart.buttons), chart.element, chart.told, rows.length ? make("h3", {}, "Hot spots") : null,
    rows.length ? table(["node", "operator", "fullest tile|", "of all exchange|", "all tiles|", "tiles that share rows / columns|"], rows, "hot-spots") : null);
  }

  function makeVertices() {
    if (!tiles.vertices.length) return;
    const busy = new Map();
    steps.vertex.forEach((vertex, i) => {
      if (vertex < 0 || steps.workers[i] === null) return;
      const [weight, sum] = busy.get(steps.vertex_types[vertex]) || [0, 0];
      busy.set(steps.vertex_types[vertex], [weight + steps.compute[i], sum + steps.compute[i] * steps.workers[i]]);
    });
    const workers = (name) => { const [weight, sum] = busy.get(name) || [0, 0]; return weight ? percent(sum / weight) : "not known"; };
    const rows = tiles.vertices.map((each) => [each.name, whole(each.nodes), whole(each.executions), whole(each.cycles), workers(each.name), whole(each.bytes)]);
    section("vertices", "Vertex types", `Executions are tiles at work times compute sets, cycles the busiest tile's, bytes the instructions on a tile. Workers busy is an average over the nodes, `
      + `weighted by cycles, of the busy share of the fullest tile's ${tiles.workers_per_tile} workers.`,
    table(["vertex", "nodes|", "executions|", "cycles|", "workers busy (average)|", "bytes|"], rows, "vertex-types"));
  }

  // Program

  const between = (part) => (part.first === null ? "" : `nodes ${whole(part.first + 1)} to ${whole(part.last + 1)}, ${whole(cyclesOf(part))} cycles`);
  function cyclesOf(part) {
    let sum = 0;
    for (let i = part.first; i <= part.last; i++) sum += length(i);
    return sum;
  }

  // The nodes of a part from `from` on, a page at a time, each a button that chooses it.
  function listNodes(list, from, last) {
    for (let i = from; i <= Math.min(last, from + PAGE_ROWS - 1); i++)
      list.append(make("li", {}, make("button", { type: "button", class: "link", onclick: () => chosen.choose(i) }, `${i + 1} `, breakable(steps.name[i])),
        ` ${steps.types[steps.type[i]]}, ${whole(length(i))} cycles`));
    if (from + PAGE_ROWS > last) return;
    const more = make("li", {}, make("button", { type: "button", class: "link", onclick: () => { more.remove(); listNodes(list, from + PAGE_ROWS, last); } }, "more nodes"));
    list.append(more);
  }

  // A part of the program, whose parts are made when it is opened.
  function branch(part) {
    const bytes = part.bytes === undefined || part.bytes === null ? "" : `${whole(part.bytes)} bytes`;
    const title = make("span", {}, make("b", {}, part.kind), " ", breakable([part.name, between(part), bytes].filter(Boolean).join(" · ")));
    if (!part.children.length && part.first === null) return make("li", {}, title);
    const list = make("ul", {});
    const open = () => {
      if (list.children.length) return;
      if (part.children.length) list.append(...part.children.map(branch)); else listNodes(list, part.first, part.last);
    };
    return make("li", {}, make("details", { ontoggle: open }, make("summary", {}, title), list));
  }

  function makeProgram() {
    const root = make("ul", { id: "program-tree", class: "tree" }, branch(tiles.program));
    root.querySelector("details")?.setAttribute("open", "");
    section("program", "Program", "What a call executes, in order. Open a part to see what is in it; a click on a node chooses it on the charts.", root);
  }

  makeMap();
  if (count) {
    makeLiveness();
    makeExchange();
    makeVertices();
    makeProgram();
    makeTimeline(tools, canvases, tiles, chosen, describe);
  }
}
