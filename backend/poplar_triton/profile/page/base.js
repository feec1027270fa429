// What the scripts of all pages share: texts, elements, tables and charts. Text of a model is put in as text
// everywhere: textContent in the page, and `plain` in what plotly would take for markup.
"use strict";
const report = (() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const NARROW = 600; // charts below this width in pixels have no buttons
  const redraws = []; // of charts, when light turns to dark

  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most) => (text.length > most ? text.slice(0, most / 2) + "…" + text.slice(-most / 2 + 1) : text);
  // The parts of a name, which is broken only between them: not in words, nor before a number as in layer.0.
  const split = (name) => name.split(/(?<=[^\s/:|-][/:|])|(?<=[^\s-][._-])(?=\p{L})/u);
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  // As the terminal shows it: Python rounds a tie to the even digit.
  const percent = (share) => (100 * share - (100 * share % 1 === 0.25 ? 0.01 : 0)).toFixed(1) + "%";
  const kib = (bytes) => (bytes < 1024 ? whole(bytes) + " B" : (bytes < 10240 ? +(bytes / 1024).toPrecision(2) : whole(bytes / 1024)) + " KiB");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  function seconds(value) {
    for (const [unit, scale] of [["s", 1], ["ms", 1e3], ["us", 1e6]]) {
      const scaled = value * scale;
      if (scaled >= 1 || unit === "us") return (scaled < 1000 ? +scaled.toPrecision(3) : whole(scaled)) + " " + unit;
    }
  }

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  // A text that is broken only between words and parts of names; `make` takes it as a child.
  function breakable(text) {
    const made = document.createDocumentFragment();
    split(String(text)).forEach((part, i) => made.append(...(i ? [document.createElement("wbr"), part] : [part])));
    return made;
  }

  function section(id, title, note, ...children) {
    const made = make("section", { id, "aria-labelledby": id + "-title" }, make("h2", { id: id + "-title" }, title));
    if (note) made.append(make("p", { class: "note" }, breakable(note)));
    made.append(...children.filter((child) => child !== null));
    document.getElementById("main").append(made);
    document.getElementById("contents").append(make("a", { href: "#" + id }, title));
    return made;
  }

  function table(columns, rows, id) {
    const head = columns.map((name) => make("th", { class: name.endsWith("|") ? "n" : "", scope: "col" }, name.replace("|", "")));
    const body = rows.map((row) => make("tr", {}, ...row.map((cell, i) =>
      make("td", { class: columns[i].endsWith("|") ? "n" : "text" }, cell instanceof Node ? cell : breakable(cell)))));
    return scrolled(make("table", { id }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
  }

  // A table in a box of its own, in which its head stays; the keyboard scrolls it too.
  const scrolled = (made) => make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, made);

  const fitting = (fits) => make("b", { class: fits ? "good" : "bad" }, fits ? "fits" : "does not fit");

  function layout(height, more) {
    const axis = { gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true, tickfont: { color: colour("soft") } };
    const { xaxis, yaxis, ...rest } = more;
    return {
      height, margin: { l: 60, r: 12, t: 8, b: 40 }, barmode: "stack", bargap: 0.25, hovermode: "closest",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("ink"), family: "system-ui, sans-serif", size: 12 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left", traceorder: "normal" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("soft"), activecolor: colour("accent") },
      hoverlabel: { align: "left", bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
      xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis, title: { standoff: 12, ...yaxis.title } }, ...rest,
    };
  }

  // Do work when the page is there, plotly's script has run, and the reader waits for nothing.
  function whenIdle(work) {
    const start = () => (window.requestIdleCallback ?? setTimeout)(work);
    if (document.readyState === "complete") start(); else addEventListener("load", start);
  }

  // A chart whose traces and layout `draw` makes anew in the colours of the moment.
  function chart(id, label, draw, { onclick, onzoom, still } = {}) {
    const element = make("div", { id, class: "chart", role: "img", "aria-label": label });
    // These buttons and no others: plotly has one that sends the chart to its makers' cloud.
    const config = { responsive: true, displaylogo: false, staticPlot: false, scrollZoom: false,
      modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
    let range = null;
    const redraw = () => {
      config.displayModeBar = still || element.clientWidth < NARROW ? false : "hover";
      const { traces, ...rest } = draw(range, element.clientWidth);
      const shown = layout(rest.height || 320, rest.layout || {});
      if (range) { shown.xaxis.range = range; shown.xaxis.autorange = false; }
      return Plotly.react(element, traces, shown, config);
    };
    setTimeout(() => { element.style.minHeight = (draw(null, element.clientWidth).height || 320) + "px"; }); // nothing moves later
    whenIdle(() => redraw().then(() => {
      redraws.push(redraw);
      if (onclick) element.on("plotly_click", (event) => onclick(event.points[0]));
      if (onclick) element.on("plotly_clickannotation", (event) => onclick({ customdata: Number(event.annotation.name) }));
      if (onzoom) element.on("plotly_relayout", (change) => {
        const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
        if (from !== undefined) range = [from, to];
        else if (change["xaxis.autorange"]) range = null;
        else return;
        redraw();
      });
      element.dataset.drawn = "yes";
    }));
    return element;
  }

  document.getElementById("title").append(breakable(page.title));
  document.getElementById("subject").textContent = page.subject;
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => redraws.forEach((redraw) => redraw()), 200);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((redraw) => redraw()));
  return { page, redraws, plain, short, split, whole, percent, kib, colour, seconds, make, breakable, section, table, scrolled, fitting, chart };
})();
