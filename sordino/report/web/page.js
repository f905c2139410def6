"use strict";
// A page is complete without this script, which folds numbers away and reads charts out. No framework, no network.
const HINT = "Point at the chart, or focus it and press ← →, to read values.";
const charts = ".plot[tabindex]", around = (node, name) => (node instanceof Element ? node.closest(name) : null);
const rowsOf = plot => [...plot.closest("figure").querySelectorAll("tr[data-at]")];

// The row of numbers that lies at a place of a chart: as words below it, and as a line in it.
function read(plot, index) {
  const rows = rowsOf(plot), figure = plot.closest("figure"), heads = figure.querySelectorAll("thead th");
  if (!rows.length) return;
  const at = Math.min(rows.length - 1, Math.max(0, index)), cells = [...rows[at].cells].map(cell => cell.textContent);
  plot.dataset.row = at;
  figure.querySelector(".reading").textContent = `${heads[0].textContent} ${cells[0]}: ` +
    cells.map((text, i) => `${heads[i].textContent} ${text}`).filter((_, i) => i && cells[i]).join("; ");
  const picture = plot.querySelector("svg"), line = picture.querySelector(".cursor") || document.createElementNS(picture.namespaceURI, "line");
  const place = rows[at].dataset.at + "%";
  for (const [name, value] of Object.entries({ class: "cursor", x1: place, x2: place, y1: 14, y2: 226, stroke: "var(--soft)" })) line.setAttribute(name, value);
  picture.append(line);
}

document.addEventListener("pointermove", event => {
  const plot = around(event.target, charts);
  if (!plot) return;
  const box = plot.getBoundingClientRect(), at = 100 * (event.clientX - box.left) / box.width;
  const away = rowsOf(plot).map(row => Math.abs(row.dataset.at - at));
  read(plot, away.indexOf(Math.min(...away)));
});
document.addEventListener("keydown", event => {
  const plot = around(event.target, charts), last = plot ? rowsOf(plot).length - 1 : 0, now = plot ? Number(plot.dataset.row ?? -1) : 0;
  const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
  if (!plot || next === undefined) return;
  event.preventDefault();
  read(plot, next);
});
document.addEventListener("click", event => {
  const key = around(event.target, ".legend button");
  if (key) press(key, key.getAttribute("aria-pressed") !== "true");
});

// Show or hide the line of a key of a legend.
function press(key, on) {
  const keys = [...key.closest("ul").querySelectorAll("button")], lines = key.closest("figure").querySelectorAll(".series");
  key.setAttribute("aria-pressed", on);
  lines[keys.indexOf(key)].style.display = on ? "" : "none";
}

function ready(place) {
  place.querySelectorAll("details").forEach(fold => { fold.open = false; });
  place.querySelectorAll(".reading").forEach(line => { line.textContent = HINT; });
}

ready(document);
