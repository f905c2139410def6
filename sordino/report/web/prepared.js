// What a run did before its first round: whom it asked, what it kept, what its generator draws, what that cost.
const WAYS = { down: "↓", up: "↑" }, tenths = v => v.toFixed(1), count = v => v.toLocaleString("en-GB", { maximumFractionDigits: 0 });

function prepared(place, found) {
  const { cost, classes } = found, asked = classes.flatMap(c => c.asked), refused = asked.filter(a => !a.answered).length;
  const told = [`It sent ${size(cost.bytes)}: as much as ${tenths(cost.rounds)} rounds of plain training with ${cost.chosen} clients each.`];
  if (cost.formula_rounds !== undefined) told.push(`By the count in SlaugFL's paper it is ${tenths(cost.formula_rounds)}; that count leaves out the first model that is sent to the clients, and the headers of messages.`);
  if (asked.length) told.push(`${asked.length} requests for prototypes, ${refused} declined.`);
  if (found.unread) told.push(`This page cannot say whom it asked and what it kept: ${found.unread}.`);
  make("p", place, told.join(" "));
  if (found.source) make("p", place, `Candidates: ${found.source}${found.label ? ` (${found.label})` : ""}.`);
  messages(make("figure", place, null, { class: "row" }), found);
  if (cost.targets.length) targets(make("figure", place, null, { class: "row" }), cost);
  if (asked.length || classes.some(c => c.kept)) chosen(make("figure", place, null, { class: "row" }), found);
  if (found.gallery) gallery(make("figure", place, null, { class: "row" }), found);
}

function messages(place, { messages, cost }) {
  const sum = key => messages.reduce((total, m) => total + (m[key] || 0), 0), formula = columns => (cost.formula_parameters === undefined ? [] : columns);
  table(place, {
    columns: ["phase", "", "message", ...formula(["by the paper's count, parameters", "in bytes"]), "sent, bytes"], words: ["message"], wide: true, caption: "Traffic beyond plain training, by kind of message",
    rows: [
      ...messages.map(m => [m.phase, WAYS[m.way], m.what, ...formula([either(m.parameters, count), either(m.formula_bytes, size)]), size(m.bytes)]),
      ["all", "", "", ...formula([count(sum("parameters")), size(sum("formula_bytes"))]), size(sum("bytes"))],
    ],
  });
  if (cost.formula_ratio !== undefined) note(place, `SlaugFL's paper calls this R_e, the share of the traffic of ${count(cost.formula_over)} rounds of plain training: ${(100 * cost.formula_ratio).toFixed(2)} %. This share gets smaller with more rounds; the number of rounds above does not.`);
}

function targets(place, { targets, formula_rounds }) {
  const formula = formula_rounds === undefined ? [] : ["by the paper's count"];
  table(place, {
    columns: ["accuracy", "rounds", "with the preparation", ...formula, "sent", "with the preparation"], caption: "What it takes to reach an accuracy, in rounds of plain training and in bytes", wide: true,
    rows: targets.map(t => [percent(t.target), ...(t.rounds === null ? ["not reached", "not reached", ...formula.map(() => "not reached"), "not reached", "not reached"] : [t.rounds, tenths(t.charged), ...formula.map(() => tenths(t.formula_charged)), size(t.bytes), size(t.bytes_with)])]),
  });
  note(place, "Rounds: the first evaluated round with this accuracy. With the preparation: everything that was sent until then, divided by what one round of plain training sends.");
}

function chosen(place, { classes, rank, unknown }) {
  const asks = classes.some(c => c.asked.length), both = v => `F1 ${v.f1.toFixed(2)}, recall ${v.recall.toFixed(2)}`, keeps = classes.some(c => c.kept), known = keeps && classes.some(c => c.valid !== null);
  const last = c => c.asked.find(a => a.answered), share = v => either(v, percent);
  table(place, {
    caption: `Class by class: ${[...(asks ? ["who was asked, best first"] : []), ...(keeps ? ["what was kept"] : [])].join(", and ")}`, wide: true, words: ["asked"],
    columns: ["class", ...(asks ? ["asked", "whose prototype"] : []), ...(keeps ? ["candidates", "kept"] : []), ...(known ? ["valid of all", "valid of kept"] : [])],
    rows: classes.map(c => [
      c.name,
      ...(asks ? [c.asked.map(a => `${a.device}${a.answered ? "" : " declined"}`).join(", ") || "nobody", last(c) ? both(last(c)) : c.kept ? "none: kept at random" : "none"] : []),
      ...(keeps ? [either(c.candidates, String), c.kept] : []), ...(known ? [share(c.valid), share(c.valid_kept)] : []),
    ]),
  });
  const ranked = asks ? `Clients are ranked by ${rank === "f1" ? "F1" : rank} on labelled examples of the server. ` : "";
  note(place, ranked + (known ? "Valid: the image shows the class of its label. Only a simulation may look that up." : unknown && keeps ? `This page cannot say which of them show another class: ${unknown}.` : ""));
}

function gallery(place, { gallery, classes, unknown }) {
  const kinds = [["kept", "candidates kept"], ["rejected", "candidates rejected"], ["drawn", "drawn by the generator"]].filter(([kind]) => gallery.rows.some(r => r[kind]));
  const scroll = table(place, { columns: ["class", ...kinds.map(([, title]) => title)], rows: gallery.rows.map(r => [r.name]), caption: "Pictures", wide: false });
  scroll.classList.add("gallery", "whole");
  const scale = Math.max(1, Math.floor(36 / gallery.side));
  [...scroll.querySelectorAll("tbody tr")].forEach((line, i) => {
    for (const [kind, title] of kinds) {
      const cell = make("td", line), source = gallery.rows[i][kind];
      if (!source) continue;
      const image = make("img", cell, null, { alt: `${title}, class ${gallery.rows[i].name}` });
      image.addEventListener("load", () => { image.width = image.naturalWidth * scale; });
      image.src = source;
    }
  });
  const some = gallery.rows.length < gallery.classes ? `${gallery.rows.length} of ${gallery.classes} classes. ` : "", framed = kinds.some(([kind]) => kind === "kept") && !unknown;
  note(place, `${some}A few of each kind, at equal distances in their order; none was chosen by hand.${framed ? " A red frame: the image shows another class than its label says. Only a simulation may look that up." : ""}`);
}

function note(place, text) {
  if (text) make("p", place, text, { class: "note" });
}
