// Draws the page of a comparison out of its document, with what base.js has.
"use strict";
(() => {
  const { page, plain, whole, colour, make, section, table, chart } = report;
  const SHADES = ["#3d7fd0", "#e08a2b", "#3f9f7d", "#a06fc8", "#c0647c", "#3d8f9c", "#a0703c", "#6b8e23"];
  const DASHES = { true: "solid", false: "dash" };
  const drawn = page.systems.filter((each) => each.points.length);

  function hover(system, point) {
    return [`<b>${plain(system.name)}</b>, batch ${point.batch}, ${system.modelled ? "modelled" : "measured"}`,
      `latency ${point.latency_text}${point.calls ? ` (${plain(point.calls)})` : ""}`, `${point.rate_text} samples/s`,
      point.fits ? `energy ${plain(point.energy)}` : "does not fit", plain(point.how)].filter(Boolean).join("<br>");
  }

  // Throughput over latency: a system's points in the order of their batch sizes.
  function drawCurves() {
    const traces = drawn.map((system, k) => {
      const shade = SHADES[k % SHADES.length], points = system.points;
      const error = points.some((point) => point.spread) ? { type: "data", symmetric: false, color: shade, thickness: 1,
        array: points.map((point) => 1e3 * (point.spread[1] - point.latency)), arrayminus: points.map((point) => 1e3 * (point.latency - point.spread[0])) } : {};
      return { type: "scatter", mode: "lines+markers+text", name: plain(`${system.name}, ${system.modelled ? "modelled" : "measured"}`),
        x: points.map((point) => 1e3 * point.latency), y: points.map((point) => point.rate), error_x: error,
        text: points.map((point) => String(point.batch)), textposition: "top center", textfont: { size: 10, color: colour("soft") }, cliponaxis: false,
        line: { color: shade, dash: DASHES[system.modelled] },
        marker: { size: 8, symbol: points.map((point) => (point.fits ? (point.batch === system.chosen ? "star" : "circle") : "x")), color: points.map((point) => (point.fits ? shade : colour("bad"))) },
        hovertext: points.map((point) => hover(system, point)), hovertemplate: "%{hovertext}<extra></extra>" };
    });
    const limit = page.limit === null ? [] : [{ type: "line", xref: "x", yref: "paper", x0: 1e3 * page.limit, x1: 1e3 * page.limit, y0: 0, y1: 1, line: { color: colour("bad"), width: 1, dash: "dot" } }];
    const axis = { type: "log", dtick: 1, tickformat: ",~r" };
    return { traces, height: 460, layout: { shapes: limit, xaxis: { ...axis, title: { text: "latency, ms" } }, yaxis: { ...axis, title: { text: "samples/s" } } } };
  }

  section("summary", "Summary", null, table(page.columns, page.rows, "systems"),
    make("ul", { class: "warnings", id: "notes" }, ...page.notes.map((text) => make("li", {}, text))));
  if (drawn.length)
    section("curves", "Throughput over latency", "A point for each batch size, whose number is beside it. Solid lines are modelled, dashed ones measured, with the "
      + "latencies of eight of ten calls; a star is the batch with the most samples/s" + (page.limit === null ? "" : " within the limit, the dotted line") + ", a cross one that does not fit.",
      chart("chart-curves", "Throughput over latency by batch size", drawCurves));
  section("batches", "All batch sizes", null, table(["system", "batch|", "latency|", "samples/s|", "energy of a sample|", "remarks"],
    drawn.flatMap((system) => system.points.map((point) => [`${system.name}, ${system.modelled ? "modelled" : "measured"}`, whole(point.batch), point.latency_text, point.rate_text,
      point.fits ? point.energy : "-", [point.fits ? "" : "does not fit", point.calls, point.how].filter(Boolean).join("; ")])), "points"));
  section("energy", "Energy", page.energy,
    page.powers.length ? table(["share of an IPU in", "idle|", "typical|", "maximum|", "source"], page.powers, "powers") : null);
  section("method", "How this was found", page.method);
})();
