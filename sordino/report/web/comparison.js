// The report of a comparison.
const methods = facts.methods, judged = judge(facts.metric), score = judged.percent ? percent : v => digits(v, 4);
const style = methods.map((m, i) => ({ label: m.label, colour: facts.colours[i % facts.colours.length], dash: facts.dashes[(i + Math.floor(i / facts.colours.length)) % facts.dashes.length] }));

head(facts.title, facts.lead, facts.notice);
for (const said of facts.candidates) make("p", main, said, { class: "notice" });
result(section("Result", null));
learning(section("Learning", "div", { class: "grid" }));
if (facts.points.length) tradeoff(section(`${capital(judged.words)} and privacy`, "div", { class: "grid" }));
guarantees(section("What each method promises", null));
choosing(section("Choosing among them", null));
fairness(section("What was held equal", null));
again(section("Do it again", null));
start();

function result(place) {
  const [columns, ...rows] = facts.table;
  table(place, { columns, rows, words: columns[1] === methods[0].name ? columns.slice(1) : ["promise"], caption: facts.caption, wide: true });
}

// One chart of all methods over the same axis. `read` gives [mean, std] of a point.
function curves(place, { title, about, axis, xLabel, xFormat, read, whole, logX }) {
  const known = m => m.curve.filter(p => p[axis] !== null), x = [...new Set(methods.flatMap(m => known(m).map(p => p[axis])))].sort((a, b) => a - b);
  if (!x.length) return;
  if (whole === false && !logX) x.unshift(0); // from nothing on: what came before the first round is a distance
  const series = methods.map((m, i) => {
    const at = new Map(known(m).map(p => [p[axis], read(p)])), pick = f => x.map(v => { const [mean, std] = at.get(v) ?? [null, null]; return mean === null ? null : f(mean, std || 0); });
    return { ...style[i], data: pick(mean => mean), band: m.curve.some(p => read(p)[1]) ? [pick((mean, std) => mean - std), pick((mean, std) => mean + std)] : undefined };
  });
  if (!series.some(s => s.data.some(v => v !== null))) return;
  const box = figure(place, {
    title, about, columns: ["method", "n", xLabel, "mean", "± std"],
    rows: () => methods.flatMap(m => known(m).map(p => [m.name, p.n, xFormat(p[axis]), either(read(p)[0], score), either(read(p)[1], score)])),
  });
  const range = judged.percent ? (u, low, high) => { const [a, b] = uPlot.rangeNum(low, high, 0.1, true); return [Math.max(0, a), Math.min(1, b)]; } : undefined;
  lines(box, { x, xLabel, xFormat, series, format: score, range, whole, logX });
}

function learning(place) {
  const band = facts.seeds > 1 ? ` Band: ± one standard deviation over ${facts.seeds} seeds.` : "", ends = methods.filter(m => m.curve.length).map(m => m.curve[m.curve.length - 1].bytes);
  const mean = p => [p.mean, p.std], plain = v => digits(v, 4), name = `Test ${judged.full}`;
  curves(place, { title: `${name} over rounds`, about: `${capital(facts.measured_by)}, mean over seeds.${band}`, axis: "round", xLabel: "round", xFormat: plain, read: mean });
  curves(place, { title: `${name} over bytes sent`, about: `Both directions, really serialised${facts.prepared ? ", from before the first round on" : ""}.${band}`, axis: "bytes", xLabel: "sent", xFormat: size, read: mean, whole: false, logX: Math.max(...ends) > 10 * Math.min(...ends) });
  const computed = methods.flatMap(m => m.curve.slice(-1).map(p => p.flops)).filter(v => v !== null);
  curves(place, { title: `${name} over device compute`, about: `Of all devices together, counted from public sizes.${computed.length < ends.length ? " It is not known for every method." : ""}${band}`, axis: "flops", xLabel: "computed", xFormat: flops, read: mean, whole: false, logX: Math.max(...computed) > 10 * Math.min(...computed) });
  curves(place, { title: "Worst 10 % of clients", about: `Mean ${judged.words} of the tenth of the clients that is served worst.${band}`, axis: "round", xLabel: "round", xFormat: plain, read: p => [p.worst, p.worst_std] });
}

function tradeoff(place) {
  for (const unit of new Set(facts.points.map(p => p.unit))) {
    const list = facts.points.filter(p => p.unit === unit).map(p => ({ ...p, colour: style[methods.findIndex(m => m.name === p.name)].colour }));
    const box = figure(place, {
      title: `${capital(judged.words)} and epsilon per ${unit}`, about: "Filled: an epsilon that holds. Red cross: what a published formula gives, which proves nothing; the dotted line leads to what holds. Methods without a finite epsilon are not drawn.",
      columns: ["method", "against", "epsilon that holds", "nominal epsilon", "delta", "status", `${judged.words}, mean of last 10`, "± std"],
      rows: () => list.map(p => [p.name, p.by, digits(p.x, 4), either(p.nominal, v => digits(v, 4)), digits(p.delta), p.standing, score(p.y), either(p.std, score)]),
    });
    points(box, { list, xLabel: `epsilon per ${unit}`, yLabel: `test ${judged.full}`, format: score });
  }
}

function guarantees(place) {
  const alike = new Map(); // methods that promise the same say it once
  for (const m of methods) {
    const said = JSON.stringify(m.guarantees.map(g => [g.status, g.words]));
    alike.set(said, [...(alike.get(said) || []), m]);
  }
  for (const same of alike.values()) {
    make("h3", place, same.map(m => m.name).join(" · "));
    promises(place, same[0].guarantees);
  }
}

function choosing(place) {
  for (const sentence of facts.choosing) make("p", place, sentence);
}

function fairness(place) {
  make("p", place, "Equal for all methods, seed by seed: the data, their partition over clients, the cohorts, the initial weights and the evaluation. No row is a best round, and nothing was chosen on test data.");
  table(place, { columns: ["equal for all", "value"], words: ["value"], rows: facts.equal, caption: "What was held equal", wide: true });
  make("p", place, "What differs:");
  table(place, { columns: ["method", "settings"], words: ["settings"], rows: methods.map(m => [m.name, m.differs]), caption: "What differs", wide: true });
}

function again(place) {
  make("p", place, "This command makes the comparison again; finished runs are not repeated:");
  make("pre", place, facts.command, { tabindex: "0" });
  for (const m of methods) folded(place, `Configuration of ${m.name}, seed 0`, m.experiment, "experiment.toml");
  folded(place, "Environment", JSON.stringify(facts.environment, null, 2));
}
