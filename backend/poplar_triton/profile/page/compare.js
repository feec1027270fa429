// Draws the page of a comparison out of its document, with what base.js has.
"use strict";
(() => {
  const { page, whole, section, table, remarks, prose } = report;
  const { curves } = makeCharts(report, makeCanvases(report));
  const SHADES = ["#3d7fd0", "#e08a2b", "#3f9f7d", "#a06fc8", "#c0647c", "#3d8f9c", "#a0703c", "#6b8e23"];
  const drawn = page.systems.filter((each) => each.points.length);

  const told = (system) => `${system.name}, ${system.modelled ? "modelled" : "measured"}`;

  function describe(system, point) {
    return [`${told(system)}, batch ${point.batch}: latency ${point.latency_text}${point.calls ? ` (${point.calls})` : ""}`, `${point.rate_text} samples/s`,
      point.fits ? `energy ${point.energy}` : "does not fit", point.how].filter(Boolean).join("; ");
  }

  // Throughput over latency: a system's points in the order of their batch sizes.
  function drawCurves() {
    const symbol = (system, point) => (point.fits ? (point.batch === system.chosen ? "star" : "circle") : "cross");
    const series = drawn.map((system, k) => ({ name: told(system), shade: SHADES[k % SHADES.length], dashed: !system.modelled,
      points: system.points.map((point) => ({ x: 1e3 * point.latency, y: point.rate, symbol: symbol(system, point), text: String(point.batch),
        spread: point.spread && point.spread.map((seconds) => 1e3 * seconds), tip: describe(system, point) })) }));
    return curves("chart-curves", "Throughput over latency by batch size", series, { x: { log: true, title: "latency, ms" }, y: { log: true, title: "samples/s" },
      height: 460, limit: page.limit && 1e3 * page.limit });
  }

  section("summary", "Summary", null, table(page.columns, page.rows, "systems"), remarks("notes", page.notes));
  if (drawn.length)
    section("curves", "Throughput over latency", "A point for each batch size, whose number is beside it. Solid lines are modelled, dashed ones measured, with the "
      + "latencies of eight of ten calls; a star is the batch with the most samples/s" + (page.limit === null ? "" : " within the limit, the dotted line") + ", a cross one that does not fit.",
      drawCurves());
  section("batches", "All batch sizes", null, table(["system", "batch|", "latency|", "samples/s|", "energy of a sample|", "remarks"],
    drawn.flatMap((system) => system.points.map((point) => [told(system), whole(point.batch), point.latency_text, point.rate_text,
      point.fits ? point.energy : "-", [point.fits ? "" : "does not fit", point.calls, point.how].filter(Boolean).join("; ")])), "points"));
  section("energy", "Energy", page.energy,
    page.powers.length ? table(["share of an IPU in", "idle|", "typical|", "maximum|", "source"],
      page.powers.map((row) => [...row.slice(0, -1), prose(row.at(-1))]), "powers") : null);
  section("method", "How this was found", page.method);
})();
