// Charts: bars of text and boxes, columns over the nodes on a canvas, and curves as SVG.
"use strict";
function makeCharts({ make, redraws, colour, css, inkOn, whole, legend, showTip, tipped }, canvases) {
  const ROW = 16; // height in pixels of a name over the columns
  const NAMED = 5;
  const HEAD = 18; // pixels above the columns without names

  // Horizontal bars. A row is `{ name, onclick, lines }`, a line `{ parts, text }` with the text at its end, a part
  // `{ shade, value, tip, text }`. `most` is the value of a full line. With `limit` [value, text] there is a line at it.
  function bars(id, label, rows, { most, tall = false, limit = null }) {
    const wide = (value) => (100 * value / Math.max(1, most)).toFixed(4) + "%";
    const box = ({ shade, value, tip, text }) => {
      const inner = text ? make("span", {}, text) : null;
      const recolour = () => { inner.style.color = inkOn(shade); };
      if (inner) { recolour(); redraws.push(recolour); }
      return tipped(make("span", { class: "bar-part", style: `width: ${wide(value)}; background: ${css(shade)}` }, inner), () => [tip]);
    };
    const line = ({ parts, text }) => make("div", { class: "bar-line" }, ...parts.filter((part) => part.value).map(box), text ? make("span", { class: "bar-end" }, text) : null);
    const row = ({ name, onclick, lines }) => [
      onclick ? make("button", { type: "button", class: "link bar-name", onclick }, name) : make("span", { class: "bar-name" }, name ?? ""),
      make("div", { class: "bar-lines", role: "img", "aria-label": lines.flatMap((each) => each.parts.map((part) => part.tip)).join("; ") }, ...lines.map(line))];
    const mark = limit && make("span", { class: "bar-limit", style: `left: ${wide(limit[0])}` },
      make("span", { class: limit[0] > most / 2 ? "before" : "" }, limit[1]));
    return make("div", { id, class: `bars${tall ? " tall" : ""}${limit ? " limited" : ""}`, role: "group", "aria-label": label }, ...rows.flatMap(row), mark);
  }

  // A column for each of `count` nodes, or the highest of those that share a pixel, in layers [name, shade, value(i)]
  // from the bottom up. `limit` [value, text] is always in view; `name(i, others)` is written over the highest columns.
  function columns(id, label, { count, layers, text, unit = 1, height = 170, limit = null, name = null, chosen, describe }) {
    const total = (i) => layers.reduce((sum, [, , value]) => sum + value(i), 0);
    const names = make("div", { class: "names" });
    const head = name ? NAMED * ROW + 6 : HEAD;

    // The columns in view as { i, x, across } in pixels.
    function place(width, view) {
      const scale = width / (view.to - view.from), last = Math.min(count - 1, Math.ceil(view.to) - 1), found = [];
      if (scale >= 1) {
        const across = Math.max(1, scale - (scale > 4 ? 1 : 0));
        for (let i = Math.floor(view.from); i <= last; i++) found.push({ i, x: (i - view.from) * scale, across });
        return found;
      }
      for (let x = 0; x < width; x++) {
        let highest = Math.min(last, Math.floor(view.from + x / scale));
        for (let i = highest; i < Math.min(last + 1, view.from + (x + 1) / scale); i++) if (total(i) > total(highest)) highest = i;
        found.push({ i: highest, x, across: 1 });
      }
      return found;
    }

    // What is over the columns: round values, and the limit.
    function drawScale(pen, width, floor, top, marks, high) {
      const write = (at, told, shade) => {
        const y = floor - high(at) - 7;
        pen.globalAlpha = 0.75;
        pen.fillStyle = colour("card");
        pen.fillRect(0, y - 6, pen.measureText(told).width + 4, 12);
        pen.globalAlpha = 1;
        pen.fillStyle = colour(shade);
        pen.fillText(told, 2, y);
      };
      for (const at of marks) if (!limit || Math.abs(high(at) - high(limit[0])) > 14) write(at, text(at), "soft");
      if (!limit) return;
      pen.fillStyle = colour("bad");
      for (let x = 0; x < width; x += 10) pen.fillRect(x, floor - high(limit[0]), 6, 1);
      write(limit[0], limit[1], "bad");
    }

    // Write the names of the highest columns, each in a row of its own with a line down to its column.
    function drawNames(pen, width, shown, floor, high) {
      const once = [...new Map(shown.map((each) => [each.i, each])).values()]; // a node can be in two pixels
      const best = once.sort((a, b) => total(b.i) - total(a.i) || a.i - b.i).slice(0, NAMED).sort((a, b) => a.i - b.i);
      const others = best.map((each) => each.i);
      names.replaceChildren(...best.map(({ i, x, across }, k) => {
        const told = name(i, others), room = pen.measureText(told).width + 6, middle = x + across / 2;
        pen.fillStyle = colour("soft");
        pen.fillRect(middle, k * ROW + ROW / 2, 1, floor - high(total(i)) - k * ROW - ROW / 2);
        const left = middle + 2 + room <= width ? middle + 2 : middle >= room + 2 ? middle - room - 2 : width - room;
        return make("button", { type: "button", tabindex: -1, style: `left: ${Math.max(0, left)}px; top: ${k * ROW}px`, onclick: () => chosen.choose(i, id, true) }, told);
      }));
    }

    function draw(pen, width, tall, view) {
      canvases.drawTicks(pen, width, tall, view, (at) => whole(at + 1));
      const shown = place(width, view), floor = tall - canvases.AXIS;
      const top = shown.reduce((most, { i }) => Math.max(most, total(i)), limit ? limit[0] : 1);
      const high = (amount) => amount / top * (floor - head);
      const step = top >= 2 * unit ? unit : 1, marks = canvases.ticks(0, top / step, Math.max(2, floor / 60)).map((at) => at * step).filter(Boolean);
      pen.fillStyle = colour("line");
      for (const at of marks) pen.fillRect(0, Math.round(floor - high(at)), width, 1);
      const tops = Float64Array.from(shown, ({ i }) => total(i));
      for (const [, shade, value] of [...layers].reverse()) { // each over the one above it, so that no seam is seen
        pen.fillStyle = colour(shade);
        shown.forEach(({ i, x, across }, k) => {
          pen.fillRect(x, floor - high(tops[k]), across, high(tops[k]));
          tops[k] -= value(i);
        });
      }
      drawScale(pen, width, floor, top, marks, high);
      if (name) drawNames(pen, width, shown, floor, high);
      if (chosen.step === null) return;
      pen.fillStyle = colour("ink");
      pen.fillRect((chosen.step + 0.5 - view.from) * width / (view.to - view.from) - 1, head - 4, 2, floor - head + 4);
    }

    const made = canvases.windowed(id, label, { height, end: count, least: Math.min(count, 8), draw, count,
      find: (at) => Math.min(count - 1, Math.floor(at)), span: (i) => [i, i + 1], chosen, describe });
    return { ...made, element: make("div", { class: "plot" }, made.element, names) };
  }

  // Places and marks of an axis { title, log, marks } for values, in shares of its length.
  function axis({ log = false, marks = null }, values, most) {
    const of = log ? Math.log10 : Number, found = values.map(of);
    const last = Math.max(...found), first = log ? Math.min(...found) : 0, pad = 0.07 * (last - first) || 0.5;
    const low = log ? first - pad : 0, high = last + pad;
    const decades = () => {
      const powers = [...Array(Math.ceil(high) - Math.floor(low) + 1).keys()].map((k) => 10 ** (Math.floor(low) + k));
      const steps = high - low < 2 ? [1, 2, 5] : [1];
      return powers.flatMap((power) => steps.map((step) => step * power));
    };
    const within = (at) => of(at) >= low && of(at) <= high;
    const round = log ? decades().filter(within) : [];
    return { at: (value) => (of(value) - low) / (high - low),
      marks: marks ?? (round.length > 1 ? round : canvases.ticks(log ? 10 ** low : 0, log ? 10 ** high : high, most, 0)) };
  }

  const SVG = "http://www.w3.org/2000/svg";
  function draw(tag, attributes, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const SYMBOLS = { circle: "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0", cross: "M-4,-4L4,4M-4,4L4,-4",
    star: "M0,-8L2.4,-2.6 8,-2.4 3.6,1.2 5.2,7 0,3.8 -5.2,7 -3.6,1.2 -8,-2.4 -2.4,-2.6Z" };
  const number = (value) => (+value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 });

  // Curves through points. A series is `{ name, shade, dashed, points }`, a point `{ x, y, symbol, text, spread, tip }`:
  // its text is over it, its spread a line from one x to another. An axis is `{ title, log, marks }`; `limit` is an x.
  function curves(id, label, series, { x, y, height = 280, limit = null }) {
    const held = make("div", { id, class: "curves" });
    const points = series.flatMap((each) => each.points);
    const xs = [...points.flatMap((point) => [point.x, ...(point.spread ?? [])]), ...(limit === null ? [] : [limit])], LEFT = 58, RIGHT = 12, TOP = 28, BOTTOM = 38;

    let written = []; // places of the texts, which do not cover each other

    function drawPoint(point, shade, at) {
      const [across, down] = at(point), good = point.symbol !== "cross", paint = css(good ? shade : "bad");
      const mark = draw("path", { d: SYMBOLS[point.symbol], transform: `translate(${across} ${down})`, "data-symbol": point.symbol, class: "point", tabindex: 0,
        role: "img", "aria-label": point.tip, style: good ? `fill: ${paint}` : `stroke: ${paint}; stroke-width: 3` });
      tipped(mark, () => [point.tip]);
      mark.addEventListener("focus", () => { const { right, bottom } = mark.getBoundingClientRect(); showTip({ clientX: right, clientY: bottom }, [point.tip]); });
      mark.addEventListener("blur", (event) => showTip(event, null));
      if (!point.text || written.some(([x, y]) => Math.abs(x - across) < 14 && Math.abs(y - down) < 11)) return [mark];
      written.push([across, down]);
      return [mark, draw("text", { x: across, y: down - 10, class: "middle" }, point.text)];
    }

    function drawSeries({ shade, dashed, points: mine }, at) {
      const style = `stroke: ${css(shade)}`, line = mine.map((point) => at(point).join(",")).join("L");
      const spreads = mine.filter((point) => point.spread).map((point) => {
        const [from, to] = point.spread.map((value) => at({ x: value, y: point.y }));
        return draw("path", { d: `M${from}L${to}M${from[0]},${from[1] - 4}v8M${to[0]},${to[1] - 4}v8`, class: "spread", style });
      });
      return [draw("path", { d: "M" + line, class: "curve", style: style + (dashed ? "; stroke-dasharray: 6 4" : "") }), ...spreads,
        ...mine.flatMap((point) => drawPoint(point, shade, at))];
    }

    function redraw() {
      const width = held.clientWidth;
      if (!width) return; // not shown
      const floor = height - BOTTOM, end = width - RIGHT;
      const along = axis(x, xs, Math.max(2, width / 90)), up = axis(y, points.map((point) => point.y), 5);
      const left = (value) => LEFT + (end - LEFT) * along.at(value), down = (value) => floor - (floor - TOP) * up.at(value);
      let free = 0; // where the next mark has room
      written = [];
      const seen = along.marks.filter((mark) => left(mark) >= free && (free = left(mark) + 8 * number(mark).length + 6));
      const grid = [...seen.map((mark) => draw("path", { d: `M${left(mark)},${TOP}V${floor}` })), ...up.marks.map((mark) => draw("path", { d: `M${LEFT},${down(mark)}H${end}` }))];
      held.replaceChildren(draw("svg", { width, height, role: "group", "aria-label": label },
        draw("g", { class: "grid" }, ...grid),
        ...seen.map((mark) => draw("text", { x: left(mark), y: floor + 15, class: "middle" }, number(mark))),
        ...up.marks.map((mark) => draw("text", { x: LEFT - 6, y: down(mark) + 4, class: "end" }, number(mark))),
        draw("text", { x: 0, y: 12 }, y.title), draw("text", { x: end, y: height - 4, class: "end" }, x.title),
        ...(limit === null ? [] : [draw("path", { d: `M${left(limit)},${TOP}V${floor}`, class: "limit" })]),
        ...series.flatMap((each) => drawSeries(each, ({ x: one, y: two }) => [left(one), down(two)]))));
      held.dataset.drawn = "yes";
    }

    redraws.push(redraw);
    setTimeout(redraw);
    const shown = series.length > 1 ? legend(series.map((each) => [each.shade, each.name])) : null;
    return make("div", {}, ...[shown, held].filter(Boolean));
  }

  return { bars, columns, curves };
}
