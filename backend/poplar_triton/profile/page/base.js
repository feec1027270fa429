// What the scripts of all pages share: texts, elements, tables and the text beside the mouse. Text of a model is put in
// as text everywhere: textContent in the page, fillText on a canvas.
"use strict";
const report = (() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const redraws = []; // of charts, for another width or when light turns to dark

  const short = (text, most) => (text.length > most ? text.slice(0, most / 2) + "…" + text.slice(-most / 2 + 1) : text);
  // The parts of a name, which is broken only between them: not in words, nor before a number as in layer.0.
  const split = (name) => name.split(/(?<=[^\s/:|-][/:|])(?!\/)|(?<=[^\s-][._-])(?=\p{L})/u);
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

  // A sentence of the program: `code` between backticks, names of options that are not broken, and a link for each address that the page itself names. Other
  // addresses may be a model's text and stay text.
  function prose(text) {
    const made = document.createDocumentFragment(), links = [...(page.links || [])].sort((one, two) => two.length - one.length);
    const escaped = links.map((link) => link.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    for (const part of String(text).split(new RegExp(["(`[^`]+`", "--[a-z_]+", ...escaped].join("|") + ")"))) {
      if (links.includes(part)) made.append(make("a", { href: part, rel: "noopener noreferrer" }, breakable(part)));
      else if (/^--[a-z_]+$/.test(part)) made.append(make("span", { class: "whole" }, part));
      else if (/^`.+`$/.test(part)) made.append(make("code", {}, breakable(part.slice(1, -1))));
      else made.append(breakable(part));
    }
    return made;
  }

  // Remarks, an item each: whom it is about, and the text.
  const remarks = (id, notes) => make("ul", { class: "warnings", id },
    ...notes.map(([about, text]) => make("li", {}, ...(about ? [make("b", {}, breakable(about)), ": "] : []), prose(text))));

  function section(id, title, note, ...children) {
    const made = make("section", { id, "aria-labelledby": id + "-title" }, make("h2", { id: id + "-title" }, title));
    if (note) made.append(make("p", { class: "note" }, prose(note)));
    made.append(...children.filter((child) => child !== null));
    document.getElementById("main").append(made);
    document.getElementById("contents").append(make("a", { href: "#" + id }, title));
    return made;
  }

  function table(columns, rows, id, tall = false) {
    const head = columns.map((name) => make("th", { class: name.endsWith("|") ? "n" : "", scope: "col" }, name.replace("|", "")));
    const body = rows.map((row) => make("tr", {}, ...row.map((cell, i) =>
      make("td", { class: columns[i].endsWith("|") ? "n" : "text" }, cell instanceof Node ? cell : breakable(cell)))));
    return scrolled(make("table", { id }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)), tall);
  }

  // A table in a box of its own that scrolls sideways, by the keyboard too. All its rows are seen, except in a `tall` one of
  // hundreds, whose head stays in place.
  const scrolled = (made, tall = false) => make("div", { class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, made);

  const fitting = (fits) => make("b", { class: fits ? "good" : "bad" }, fits ? "fits" : "does not fit");

  // The colour of a page's variable, or a colour itself, for a style.
  const css = (shade) => (/^#|\(/.test(shade) ? shade : `var(--${shade})`);

  // Black or white, whichever has more contrast on a shade by the formula of WCAG.
  function inkOn(shade) {
    const value = shade.startsWith("#") ? shade : colour(shade);
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16) / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
  }

  const legend = (parts) => make("p", { class: "legend" }, ...parts.map(([shade, ...text]) =>
    make("span", { class: "whole" }, make("span", { class: "part", style: `background: ${css(shade)}` }), ...text)));

  // The one text beside the mouse: `parts` are texts and elements, null hides it.
  const tip = make("div", { id: "tip", role: "tooltip", hidden: "" });
  document.body.append(tip);
  function showTip(event, parts) {
    tip.hidden = !parts;
    if (!parts) return;
    const GAP = 14, wide = document.documentElement.clientWidth;
    tip.replaceChildren(...parts);
    tip.style.left = tip.style.top = "0";
    const { width, height } = tip.getBoundingClientRect(), { clientX: x, clientY: y } = event;
    tip.style.left = Math.max(0, Math.min(x + GAP + width > wide ? x - GAP - width : x + GAP, wide - width)) + "px";
    tip.style.top = (y + GAP + height > innerHeight ? Math.max(0, y - GAP - height) : y + GAP) + "px";
  }
  // An element that shows a text while the mouse is on it.
  function tipped(element, parts) {
    element.addEventListener("pointermove", (event) => showTip(event, parts()));
    element.addEventListener("pointerleave", () => showTip(null, null));
    return element;
  }

  document.getElementById("title").append(breakable(page.title));
  document.getElementById("subject").textContent = page.subject;
  let waiting = 0;
  const redrawAll = () => redraws.forEach((redraw) => redraw());
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redrawAll, 200);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  // Paper is light and has a width of its own.
  const print = (on) => { document.documentElement.classList.toggle("printing", on); redrawAll(); };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  return { page, redraws, short, split, whole, percent, kib, colour, css, inkOn, seconds, make, breakable, section, table, scrolled, fitting,
    prose, remarks, legend, showTip, tipped };
})();
