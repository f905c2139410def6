// The report of one run.
const rows = facts.metrics, { scored, last, judged, metric, score, within } = measured(rows);
const total = key => rows.reduce((sum, row) => sum + (row[key] || 0), 0);
const counted = rows.every(row => "bytes_up" in row); // of a hidden cohort nobody is told how many were drawn
const front = facts.before ? [facts.before] : []; // what came before the first round, as a round 0
const called = k => (facts.names || [])[k] ?? String(k);
const DASHES = facts.dashes, COLOURS = facts.colours;
const ready = ["audit", "attackers"].map(id => document.getElementById(id)).filter(Boolean); // need no script

head(facts.name, facts.lead, facts.notice);
for (const said of facts.warnings) make("p", main, said, { class: "notice" });
headline();
promises(section("What can still be learned, by whom"), facts.guarantees);
told("Phase by phase", facts.by_phase);
told("What this rests on", facts.assumptions);
main.append(...ready);
learning(section("Learning", "div", { class: "grid" }));
if (facts.prepared) prepared(section("Before round 1", "div", { class: "grid" }), facts.prepared);
privacy(section("Privacy spent", "div", { class: "grid" }));
if (facts.partition) partition(section("Who holds what", "div", { class: "grid" }));
again(section("Do it again"));
start();

function headline() {
  const list = [], ten = scored.slice(-10), finite = facts.guarantees.filter(g => g.epsilon !== "inf");
  const promise = finite.find(g => g.unit === "client") || finite[0];
  if (promise) list.push([`ε per ${promise.unit}, against ${promise.by}`, epsilon(promise.epsilon), promise.nominal_epsilon === undefined ? `${promise.standing}, δ ${digits(promise.delta)}` : `holds; the published ${epsilon(promise.nominal_epsilon)} proves nothing`]);
  else list.push(["epsilon", "∞", "nothing is promised"]);
  if (last[metric] !== undefined) {
    list.push([`test ${judged.full}, final`, score(last[metric])]);
    list.push([`mean of last ${ten.length}`, score(ten.reduce((sum, r) => sum + r[metric], 0) / ten.length)]);
  }
  const constant = last.majority ?? last.baseline;
  if (typeof constant === "number") list.push([judged.constant, score(constant)]);
  for (const [name, label] of [["auroc", "AUROC"], ["f1", "F1, macro"], ["calibration_error", "calibration error"], ["rmse", "root mean squared error"], ["r2", "R²"]])
    if (typeof last[name] === "number") list.push([label, last[name].toFixed(3)]);
  for (const [name, value] of Object.entries(last.own || {})) list.push([name, digits(value, 4)]);
  if (last.clients) {
    list.push(["mean over clients", score(last.clients.mean), `± ${score(last.clients.std)} between them`]);
    list.push(["worst 10 % of clients", score(last.clients.worst_tenth)]);
  }
  if (counted) list.push(["sent down", size(total("bytes_down")), `${size(total("bytes_up"))} up${facts.prepared ? `, ${size(facts.prepared.cost.bytes)} before round 1` : ""}`]);
  for (const [name, value] of facts.secure) list.push([name, value]);
  cards(list);
}

// Told in full: what a promise rests on is a part of it.
function told(title, lines) {
  if (!lines.length) return;
  const list = make("ul", section(title, null), null, { class: "plain" });
  for (const text of lines) make("li", list, text);
}

function learning(place) {
  if (scored.length) learned(place, facts.model, rows);
  if (last.clients && last.clients.each) {
    const each = last.clients.each.map((v, k) => [v, k]).filter(([v]) => v !== null).sort(([a], [b]) => (judged.higher ? a - b : b - a));
    const tenth = Math.max(1, Math.ceil(each.length / 10));
    const box = figure(place, {
      title: `Each client at the end, from worst to best`, about: `Test ${judged.full} of the ${facts.model} on each client's own share; the worst tenth stands out.`,
      columns: ["client", `test ${judged.words}`], rows: () => each.map(([v, k]) => [called(k), score(v)]),
    });
    bars(box, { values: each.map(([v]) => v), names: each.map(([, k]) => called(k)), colours: each.map((_, i) => (i < tenth ? "c1" : "c0")), format: score, top: judged.percent ? 1 : Math.max(...each.map(([v]) => v)), xLabel: `${each.length} clients` });
  }
  if (last.confusion) {
    const box = make("table", make("div", place));
    make("caption", box, "Test examples by true class (rows) and predicted class (columns)");
    const first = make("tr", box);
    for (const name of ["", ...last.confusion.keys()]) make("th", first, String(name));
    last.confusion.forEach((counts, c) => {
      const row = make("tr", box);
      make("th", row, String(c));
      for (const count of counts) make("td", row, String(count));
    });
  }
  against(place, { title: `Test ${judged.full} over bytes sent`, about: "Both directions, really serialised.", xLabel: "sent", xFormat: size, of: r => r.bytes_down + r.bytes_up });
  against(place, { title: `Test ${judged.full} over device compute`, about: "Of all devices together, counted from public sizes: operations of the network, there and back.", xLabel: "computed", xFormat: flops, of: r => r.device_flops });
  if (rows.length && counted) traffic(place, [...front, ...rows]);
}

// What was spent until each evaluated round, the preparation in front; not drawn where a round does not tell.
function against(place, { title, about, xLabel, xFormat, of }) {
  const spent = [];
  let sum = 0;
  for (const r of [...front, ...rows]) {
    sum += of(r);
    if ("loss" in r) spent.push([sum, r]);
  }
  if (!spent.length || !Number.isFinite(sum)) return;
  const begins = front.length ? ` Before round 1: ${xFormat(of(front[0]))}.` : "";
  const box = figure(place, { title, about: about + begins, columns: ["round", xLabel, facts.model], rows: () => spent.map(([v, r]) => [r.round, xFormat(v), score(r[metric])]) });
  // from nothing on: what came before the first round is a distance
  lines(box, { x: [0, ...spent.map(([v]) => v)], xLabel, xFormat, format: score, range: within, whole: false, series: [{ label: facts.model, data: [null, ...spent.map(([, r]) => r[metric])], colour: "c0" }] });
}

function privacy(place) {
  const held = facts.epsilon, endless = facts.guarantees.filter(g => g.epsilon === "inf");
  if (held.length) {
    epsilons(place, held.map(c => ({ ...c, shown: c.points })), { title: "Epsilon that holds, over rounds", about: `At delta ${digits(facts.delta)}, for the client that spent most; one line per unit and adversary.` });
    const nominal = held.filter(c => c.nominal);
    if (nominal.length) epsilons(place, nominal.map(c => ({ ...c, shown: c.nominal })), { title: "What the published formula gives", unproved: true, about: "The publication's own count of epsilon. It proves nothing and is drawn only for comparison: read the other chart." });
  }
  if (!held.length) make("p", place, "Nothing with a finite epsilon was released: no row of this run is protected.");
  budgets(place);
  if (held.length && endless.length) make("p", place, `Not drawn, because there is no finite epsilon: ${endless.map(g => `one ${g.unit}, against ${g.by}`).join("; ")}.`);
}

function epsilons(place, curves, { title, about, unproved = false }) {
  const stops = [...new Set(curves.flatMap(c => c.shown.map(p => p[0])))].sort((a, b) => a - b);
  const series = curves.map((c, i) => {
    const at = new Map(c.shown), label = `one ${c.unit}, against ${c.by}${unproved ? " (nominal)" : `: ${c.standing}`}`;
    return { label, data: stops.map(s => at.get(s) ?? null), colour: unproved ? "warn" : COLOURS[i % COLOURS.length], dash: unproved ? [2, 6] : DASHES[i % DASHES.length] };
  });
  const box = figure(place, { title, about, unproved, columns: ["round", ...series.map(s => s.label)], rows: () => stops.map((s, i) => [s, ...series.map(c => either(c.data[i], v => digits(v, 4)))]) });
  lines(box, { x: stops, xLabel: "round", series, format: digits, range: (u, low, high) => [0, high * 1.08 || 1] });
}

function budgets(place) {
  const clients = facts.by_client, groups = facts.budget && facts.budget.groups, claimed = groups && groups.some(g => g.claimed !== null);
  if (!clients.length || !clients[0].granted) return;
  const list = clients.map(c => [Math.max(...c.spent.map((s, i) => s / c.granted[i])), c]).sort(([a], [b]) => b - a), numbers = v => v.map(part => digits(part, 4)).join(", ");
  const box = figure(place, {
    title: "Spent of granted, client by client", about: claimed ? "In the publication's own count of epsilon, which proves nothing: read the table below." : `In ${facts.currency}, the currency that adds up. A client whose budget is spent is not asked again.`,
    columns: ["client", "examples", "exposures", "planned", "spent", "granted"],
    rows: () => clients.map(c => [called(c.client), c.examples, c.exposures, c.planned, numbers(c.spent), numbers(c.granted)]),
  });
  bars(box, { values: list.map(([share]) => share), names: list.map(([, c]) => called(c.client)), colours: list.map(() => "c0"), format: percent, top: 1, xLabel: `${list.length} clients, from most to least spent`, limit: { at: 1, name: "granted" } });
  if (!groups) return;
  const of = facts.budget.subject, span = e => (e.min === e.max ? digits(e.min) : `${digits(e.min)} to ${digits(e.max)}`);
  const over = g => (g.spent === "inf" || g.spent > g.granted * (1 + 1e-9) ? ", over budget" : "");
  table(make("figure", place, null, { class: "row" }), {
    caption: `Personal budgets: epsilon of one ${of.unit} (${of.neighbours}) against ${of.adversary}, at delta ${digits(facts.budget.delta)}${claimed ? "; what the publication's count claims, and what holds" : ""}`, wide: true,
    columns: ["granted", "clients", "exposures", ...(claimed ? ["claimed (nominal)"] : []), "spent", "status"],
    rows: groups.map(g => [digits(g.granted), g.clients, span(g.exposures), ...(claimed ? [digits(g.claimed)] : []), g.spent === "inf" ? "∞" : digits(g.spent), g.status + (facts.simulated ? " (simulation)" : "") + over(g)]),
  });
}

function partition(place) {
  const counts = facts.partition, sizes = counts.map(row => row.reduce((a, b) => a + b, 0));
  if (counts[0].length > 1) {
    heat(figure(place, {
      title: "Labels of each client", columns: ["client", ...counts[0].map((_, j) => `class ${j}`), "all"], rows: () => counts.map((row, k) => [called(k), ...row, sizes[k]]),
      about: `How many training examples of each class a client holds. Darker is more${counts.length > 120 ? `; each row is the mean of ${Math.ceil(counts.length / 120)} neighbouring clients` : ""}.`,
    }), counts, counts.map((_, k) => called(k)));
  } else {
    bars(figure(place, { title: "Examples of each client", about: "One bar per client.", columns: ["client", "examples"], rows: () => sizes.map((n, k) => [called(k), n]) }),
      { values: sizes, names: sizes.map((_, k) => called(k)), colours: sizes.map(() => "c0"), format: v => digits(v), top: Math.max(...sizes), xLabel: `${sizes.length} clients` });
  }
  const made = make("figure", place);
  table(made, { columns: ["measure", "value"], caption: "How different the clients are", wide: true, rows: Object.entries(facts.heterogeneity).map(([name, v]) => [name.replaceAll("_", " "), typeof v === "number" ? digits(v, 4) : String(v)]) });
  make("p", made, "Total variation: how far a client's mix of labels is from everybody's, 0 alike to 1. Effective classes: as many equally frequent classes would be as mixed.").style.fontSize = ".84rem";
}

function again(place) {
  make("p", place, "Save the configuration as experiment.toml and run:");
  make("pre", place, facts.commands.join("\n"), { tabindex: "0" });
  folded(place, "Configuration", facts.experiment, "experiment.toml");
  folded(place, "Environment", JSON.stringify({ ...facts.environment, ledger_head: facts.ledger_head }, null, 2));
}
