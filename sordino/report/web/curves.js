// The curves of a run, of one that is over and of one that goes on: each gives a function that draws it with other rounds.
function measured(rows) {
  const scored = rows.filter(r => "loss" in r), last = scored[scored.length - 1] || {}, judged = facts.headlines.find(h => typeof last[h.name] === "number") || judge("loss"), metric = judged.name;
  const score = judged.percent ? percent : v => digits(v, 4);
  const within = judged.percent ? (u, low, high) => { const [a, b] = uPlot.rangeNum(low, high, 0.1, true); return [Math.max(0, a), Math.min(1, b)]; } : undefined;
  return { scored, last, judged, metric, score, within };
}

function learned(place, model, rows) {
  const { judged, metric, score, within } = measured(rows);
  let scored;
  const numbers = now => {
    scored = measured(now).scored;
    const of = f => scored.map(r => (r.clients ? f(r.clients) : null));
    const band = judged.percent ? [of(c => Math.max(0, c.mean - c.std)), of(c => Math.min(1, c.mean + c.std))] : [of(c => c.mean - c.std), of(c => c.mean + c.std)];
    return [scored.map(r => r.round), [{ data: scored.map(r => r[metric]) }, { data: of(c => c.mean), band }, { data: of(c => c.worst_tenth) }]];
  };
  const looks = [
    { label: model, colour: "c0" },
    { label: "mean over clients", colour: "c2", dash: facts.dashes[2] },
    { label: "worst 10 % of clients", colour: "c1", dash: facts.dashes[1] },
  ];
  return curves(place, numbers, rows, looks, {
    title: `Test ${judged.full}`, about: "Band: mean over clients ± one standard deviation. Every point is this round's, never the best so far.",
    columns: ["round", model, "mean over clients", "± std", "worst 10 %"],
    rows: () => scored.map(r => [r.round, score(r[metric]), ...["mean", "std", "worst_tenth"].map(name => either(r.clients && r.clients[name], score))]),
  }, { format: score, range: within });
}

function traffic(place, rows) {
  let cost;
  const numbers = now => {
    let down = 0, up = 0;
    cost = now.map(r => [r.round, (down += r.bytes_down), (up += r.bytes_up)]);
    return [cost.map(c => c[0]), [{ data: cost.map(c => c[1]) }, { data: cost.map(c => c[2]) }]];
  };
  const looks = [{ label: "down, to clients", colour: "c3" }, { label: "up, from clients", colour: "c2", dash: facts.dashes[1] }];
  return curves(place, numbers, rows, looks, {
    title: "Traffic", about: "Bytes really serialised, added up over rounds and clients.",
    columns: ["round", "down", "up"], rows: () => cost.map(([t, d, u]) => [t, size(d), size(u)]),
  }, { format: size, range: (u, low, high) => [0, high * 1.05 || 1] });
}

function curves(place, numbers, rows, looks, shown, how) {
  const [x, data] = numbers(rows), box = figure(place, shown);
  const redraw = lines(box, { x, xLabel: "round", series: looks.map((look, i) => ({ ...look, ...data[i] })), ...how });
  return now => { redraw(...numbers(now)); box.renew(); };
}
