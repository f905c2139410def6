"use strict";
// What both pages are written with. No framework, no network: the facts lie in the page.
const facts = JSON.parse(document.getElementById("facts").textContent);
const main = document.getElementById("main");

function make(tag, parent, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (parent) parent.append(node);
  return node;
}

const capital = text => text[0].toUpperCase() + text.slice(1);
const judge = name => facts.headlines.find(h => h.name === name); // what a run is judged by
const percent = v => (100 * v).toFixed(1) + " %";
const digits = (v, n = 3) => (v === 0 ? "0" : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(n - 1).replace(/\.?0+e/, "e") : String(+v.toPrecision(n)));
const epsilon = v => (v === "inf" ? "∞" : digits(Number(v)));
const either = (v, format) => (v === null || v === undefined ? "" : format(v));

const size = bytes => scaled(bytes, ["B", "kB", "MB", "GB"]);
const flops = operations => scaled(operations, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);

function scaled(value, units) {
  let power = 0;
  while (Math.abs(value) >= 1000 && power < units.length - 1) { value /= 1000; power += 1; }
  return `${power ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}

// A page says everything without a script, too: what is drawn here takes the place of that.
function head(title, lead, notice) {
  main.replaceChildren();
  make("h1", main, title);
  make("p", main, lead, { class: "lead" });
  if (notice) make("p", main, notice, { class: "notice" });
}

let sections = 0;
function section(title, tag = "div", attributes = {}) {
  const id = `section-${++sections}`, place = make("section", main, null, { "aria-labelledby": id });
  make("h2", place, title, { id });
  return tag ? make(tag, place, null, attributes) : place;
}

function cards(list) {
  const place = make("dl", main, null, { class: "cards" });
  for (const [name, value, small] of list) {
    const card = make("div", place);
    make("dt", card, name);
    const shown = make("dd", card, value);
    if (small) make("small", shown, small);
  }
}

// Columns named in `words` hold sentences, all others numbers.
function table(parent, { columns, rows, caption, words = [], wide = false }) {
  const scroll = make("div", parent, null, { class: wide ? "scroll whole" : "scroll", tabindex: "0", role: "region", "aria-label": caption });
  const made = make("table", scroll, null, wide ? { class: "wide" } : {});
  make("caption", made, caption);
  const kind = i => (words.includes(columns[i]) ? { class: "words" } : {});
  const top = make("tr", make("thead", made));
  columns.forEach((name, i) => make("th", top, name, { scope: "col", ...kind(i) }));
  const body = make("tbody", made);
  for (const row of rows) {
    const line = make("tr", body);
    row.forEach((value, i) => make(i ? "td" : "th", line, value, { ...(i ? {} : { scope: "row" }), ...kind(i) }));
  }
  return scroll;
}

function promises(parent, guarantees) {
  const list = make("ul", parent, null, { class: "promises" });
  for (const g of guarantees) {
    const item = make("li", list, null, { class: `${g.status} ${g.grade || ""}`.trim() });
    if (g.nominal_epsilon !== undefined) {
      make("span", item, `nominal ε ${epsilon(g.nominal_epsilon)}: proves nothing`, { class: "badge unproved" });
      make("span", item, `holds: ε ${epsilon(g.epsilon)}, ${g.strength}`, { class: "badge" });
    } else {
      make("span", item, g.epsilon === "inf" ? "ε ∞" : `ε ${epsilon(g.epsilon)}`, { class: "badge" });
      make("span", item, g.epsilon === "inf" ? g.strength : `${g.standing}, ${g.strength}`, { class: "badge" });
    }
    item.append(g.words);
    make("p", item, g.belief, { class: "belief" });
  }
}

function folded(parent, title, text, file) {
  const fold = make("details", parent);
  make("summary", fold, title);
  if (file) {
    const save = make("button", fold, `Save as ${file}`, { type: "button" });
    save.addEventListener("click", () => {
      const link = make("a", null, null, { download: file, href: URL.createObjectURL(new Blob([text], { type: "text/plain" })) });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
  make("pre", fold, text, { tabindex: "0" });
}
