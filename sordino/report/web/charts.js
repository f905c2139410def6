// Charts. Each is painted anew when the width or the theme changes, and every number in it is in a table below it.
const painters = [];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const HEIGHT = 270, NAMED = 24; // of so many bars each has its name

function figure(parent, { title, about, columns, rows, unproved = false }) {
  const made = make("figure", parent, null, unproved ? { class: "unproved" } : {});
  const caption = make("figcaption", made, title);
  if (unproved) make("span", caption, "nominal: not a guarantee", { class: "badge unproved" });
  make("small", caption, about);
  const box = make("div", made, null, { class: "plot", role: "img", "aria-label": `${title}. ${about} The numbers are in the table below.` });
  const below = make("div", made), fold = make("details", made);
  make("summary", fold, "Numbers");
  // a thousand clients make a large table: it is built when somebody wants it
  const fill = () => { if (fold.open && fold.children.length === 1) table(fold, { columns, rows: rows(), caption: title }); };
  fold.addEventListener("toggle", fill);
  const renew = () => { if (fold.children.length > 1) fold.lastChild.remove(); fill(); }; // the numbers have changed
  return { box, below, renew };
}

function paint(box, draw) {
  painters.push({ box, draw, width: 0 });
}

function paintAll(force) {
  for (const painter of painters) {
    const width = Math.max(260, Math.floor(painter.box.clientWidth));
    if (force || width !== painter.width) { painter.width = width; painter.draw(width); }
  }
}

function start() {
  paintAll(true);
  let timer;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(paintAll, 120); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paintAll(true));
}

// Lines ------------------------------------------------------------------------------------------------------------------
// series: [{ label, data, colour, dash, band: [low, high] }], all over the same x; null where there is no point.
// Gives a function that draws the same series with other numbers.

function lines({ box, below }, { x, xLabel, series, format, xFormat = v => digits(v, 4), range, logX = false, whole = true }) {
  const HINT = "Point at the chart, or focus it and press ← →, to read values.";
  const keys = make("ul", below, null, { class: "legend" }), reading = make("div", below, null, { class: "reading", "aria-live": "polite" });
  reading.textContent = HINT;
  const columns = () => [x, ...series.flatMap(s => [s.data, ...(s.band || [])])], at = []; // position of each series and of its band
  series.reduce((next, s) => { at.push(next); return next + (s.band ? 3 : 1); }, 1);
  const shown = series.map(() => true);
  let chart;
  const show = i => {
    const last = at[i] + (series[i].band ? 2 : 0);
    for (let k = at[i]; k <= last; k++) chart.setSeries(k, { show: shown[i] });
  };
  series.forEach((s, i) => {
    const key = make("button", make("li", keys), null, { type: "button", "aria-pressed": "true", title: "show or hide" });
    swatch(key, s);
    key.append(s.label);
    key.addEventListener("click", () => { shown[i] = !shown[i]; key.setAttribute("aria-pressed", shown[i]); show(i); });
  });

  const tell = u => {
    const idx = u.cursor.idx;
    reading.textContent = idx === null || idx === undefined ? HINT :
      `${xLabel} ${xFormat(x[idx])}: ` + series.map((s, i) => [s.label, s.data[u.cursor.idxs[at[i]]], shown[i]])
        .filter(([, v, on]) => on && v !== null && v !== undefined).map(([label, v]) => `${label} ${format(v)}`).join("; ");
  };
  box.tabIndex = 0;
  box.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -x.length, End: x.length }[event.key];
    if (!step) return;
    event.preventDefault();
    const idx = Math.min(x.length - 1, Math.max(0, (chart.cursor.idx ?? (step > 0 ? -1 : x.length)) + step));
    chart.setCursor({ left: chart.valToPos(x[idx], "x"), top: 1 });
  });

  paint(box, width => {
    if (chart) chart.destroy();
    const axis = { stroke: css("soft"), grid: { stroke: css("line"), width: 1 }, ticks: { stroke: css("line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const plain = { width: 0, stroke: "transparent", points: { show: false } };
    const drawn = series.flatMap(s => [
      { label: s.label, stroke: css(s.colour), width: 2, dash: s.dash, spanGaps: true, points: { show: () => x.length < 4, size: 6, fill: css(s.colour) } },
      ...(s.band ? [{ ...plain, spanGaps: true }, { ...plain, spanGaps: true }] : []),
    ]);
    const bands = series.flatMap((s, i) => (s.band ? [{ series: [at[i] + 2, at[i] + 1], fill: css(s.colour) + "2b" }] : []));
    chart = new uPlot({
      width, height: HEIGHT, bands, legend: { show: false }, padding: [12, 14, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, dataIdx: (u, s, idx) => nearest(u.data[s], idx), points: { size: 7 } },
      scales: { x: { time: false, distr: logX ? 3 : 1 }, y: { range: range ?? ((u, low, high) => uPlot.rangeNum(low, high, 0.1, true)) } },
      axes: [
        { ...axis, label: xLabel, size: 34, labelSize: 16, labelGap: -4, labelFont: "12px system-ui, sans-serif", space: 56, ...(whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4] } : {}), values: (u, ticks) => ticks.map(v => (v === null ? "" : xFormat(v).replace(".0 ", " "))) },
        { ...axis, size: 62, values: (u, ticks) => ticks.map(v => (v === null ? "" : format(v).replace(".0 ", " "))) },
      ],
      series: [{ label: xLabel }, ...drawn], hooks: { setCursor: [tell] },
    }, columns(), box);
    series.forEach((s, i) => { if (!shown[i]) show(i); });
  });
  return (nextX, nextSeries) => {
    x = nextX;
    series = series.map((s, i) => ({ ...s, ...nextSeries[i] }));
    if (chart) chart.setData(columns());
  };
}

function nearest(values, idx) {
  for (let away = 0; away < values.length; away++) {
    for (const k of [idx - away, idx + away]) if (values[k] !== null && values[k] !== undefined) return k;
  }
  return idx;
}

function swatch(parent, { colour, dash }) {
  const draw = svg(parent, 24, 8, { "aria-hidden": "true" });
  draw("line", { x1: 0, x2: 24, y1: 4, y2: 4, stroke: `var(--${colour})`, "stroke-width": 3, "stroke-dasharray": dash ? dash.join(" ") : "none" });
}

function svg(parent, width, height, attributes = {}) {
  const space = "http://www.w3.org/2000/svg", root = document.createElementNS(space, "svg");
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, ...attributes })) root.setAttribute(name, value);
  parent.append(root);
  return (tag, attrs, text) => {
    const node = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attrs)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    root.append(node);
    return node;
  };
}

// Bars -------------------------------------------------------------------------------------------------------------------
// One per client, thin where there are thousands. colours: one name per bar; names: of the clients, written where there is room;
// limit: a dashed line with its name.

const short = (name, room) => { const text = String(name); return text.length <= room ? text : `${text.slice(0, Math.max(room - 1, 1))}…`; };

function bars({ box }, { values, names, colours, format, top, xLabel, limit }) {
  paint(box, width => {
    box.replaceChildren();
    const left = 56, right = 8, bottom = HEIGHT - 40, upper = 22, high = top || 1;
    const draw = svg(box, width, HEIGHT), y = v => bottom - (v / high) * (bottom - upper), step = (width - left - right) / values.length;
    for (const tick of [0, 0.25, 0.5, 0.75, 1].map(part => part * high)) {
      draw("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: "var(--line)" });
      draw("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, format(tick).replace(".0 ", " "));
    }
    const gap = step > 4 ? step * 0.15 : 0;
    values.forEach((v, i) => draw("rect", { x: left + i * step + gap, width: Math.max(step - 2 * gap, 0.4), y: y(v), height: Math.max(bottom - y(v), 0.5), fill: `var(--${colours[i]})` }));
    if (step > 40) (names || []).forEach((name, i) => draw("text", { x: left + (i + 0.5) * step, y: bottom + 15, "text-anchor": "middle" }, short(name, Math.floor(step / 8))));
    if (limit) {
      draw("line", { x1: left, x2: width - right, y1: y(limit.at), y2: y(limit.at), stroke: "var(--ink)", "stroke-width": 2, "stroke-dasharray": "6 4" });
      draw("text", { x: width - right, y: y(limit.at) - 6, "text-anchor": "end", class: "name" }, limit.name);
    }
    draw("text", { x: (left + width) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, xLabel);
  });
}

// Heat map ---------------------------------------------------------------------------------------------------------------
// counts[client][class], darker is more. Above 120 clients each row shows the mean of neighbours.

function heat({ box }, counts, names) {
  const group = Math.ceil(counts.length / 120), classes = counts[0].length, rows = [];
  for (let k = 0; k < counts.length; k += group) {
    const some = counts.slice(k, k + group);
    rows.push(counts[0].map((_, j) => some.reduce((sum, row) => sum + row[j], 0) / some.length));
  }
  const top = Math.max(...rows.flat(), 1), shade = v => Math.sqrt(v / top);
  paint(box, width => {
    box.replaceChildren();
    const longest = Math.max(...names.map(name => String(name).length)), left = Math.max(46, 30 + 7 * Math.min(longest, 12)), upper = 4, tall = Math.max(4, Math.min(18, Math.floor(400 / rows.length))), wide = (width - left - 4) / classes;
    const bottom = upper + tall * rows.length, height = bottom + 84, sharp = devicePixelRatio || 1;
    const canvas = make("canvas", box, null, { width: width * sharp, height: height * sharp, style: `width:${width}px;height:${height}px` });
    const g = canvas.getContext("2d");
    g.scale(sharp, sharp);
    g.fillStyle = css("c0");
    const gapX = wide > 6 ? 1 : 0, gapY = tall > 6 ? 1 : 0;
    rows.forEach((row, i) => row.forEach((v, j) => { g.globalAlpha = shade(v); g.fillRect(left + j * wide, upper + i * tall, wide - gapX, tall - gapY); }));
    const bar = Math.min(220, width - left - 110), y = height - 30;
    for (let k = 0; k < bar; k++) { g.globalAlpha = shade((k / bar) * top); g.fillRect(left + k, y, 1, 12); }
    g.globalAlpha = 1;
    g.strokeStyle = css("line");
    g.strokeRect(left - 0.5, upper - 0.5, width - left - 3, bottom - upper + 1);
    g.strokeRect(left - 0.5, y - 0.5, bar + 1, 13);
    g.fillStyle = css("soft");
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "right";
    const every = Math.ceil(16 / tall), between = Math.ceil(22 / wide);
    rows.forEach((_, i) => { if (i % every === 0) g.fillText(short(names[i * group], 12), left - 6, upper + i * tall + Math.min(tall, 18) / 2 + 4); });
    g.textAlign = "center";
    counts[0].forEach((_, j) => { if (j % between === 0) g.fillText(j, left + (j + 0.5) * wide, bottom + 15); });
    g.fillText("class", left + (width - left) / 2, bottom + 32);
    g.save(); g.translate(11, upper + (bottom - upper) / 2); g.rotate(-Math.PI / 2); g.fillText("client", 0, 0); g.restore();
    g.textAlign = "left";
    g.fillText(`0 to ${digits(top)} examples`, left + bar + 8, y + 11);
  });
}

// Points with a whisker --------------------------------------------------------------------------------------------------
// points: [{ name, colour, x, y, std, nominal }]: filled where x holds; where a formula only says so, a hollow red cross, tied to what holds.

function points({ box }, { list, xLabel, yLabel, format }) {
  const xs = list.flatMap(p => (p.nominal === null ? [p.x] : [p.x, p.nominal])), ys = list.flatMap(p => [p.y - (p.std || 0), p.y + (p.std || 0)]);
  const log = Math.max(...xs) > 8 * Math.min(...xs), scale = log ? Math.log : v => v, back = log ? Math.exp : v => v;
  const padded = (low, high, part) => { const room = (high - low) * part || Math.abs(high) * 0.15 || 1; return [low - room, high + room]; };
  const [x0, x1] = padded(scale(Math.min(...xs)), scale(Math.max(...xs)), 0.12), [y0, y1] = padded(Math.min(...ys), Math.max(...ys), 0.18);
  paint(box, width => {
    box.replaceChildren();
    const left = 74, right = 16, upper = 10, bottom = HEIGHT - 44, draw = svg(box, width, HEIGHT);
    const x = v => left + ((scale(v) - x0) / (x1 - x0)) * (width - left - right), y = v => bottom - ((v - y0) / (y1 - y0)) * (bottom - upper);
    for (const v of round(y0, y1)) {
      draw("line", { x1: left, x2: width - right, y1: y(v), y2: y(v), stroke: "var(--line)" });
      draw("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, format(v).replace(".0 ", " "));
    }
    for (const v of log ? decades(back(x0), back(x1)) : round(x0, x1)) {
      draw("line", { x1: x(v), x2: x(v), y1: upper, y2: bottom, stroke: "var(--line)" });
      draw("text", { x: x(v), y: bottom + 17, "text-anchor": "middle" }, digits(v, 4));
    }
    draw("text", { x: (left + width) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xLabel + (log ? ", logarithmic" : ""));
    draw("text", { transform: `translate(12 ${(upper + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel);
    const named = [];
    for (const p of list) {
      const colour = `var(--${p.colour})`, px = x(p.x), py = y(p.y);
      if (p.std) draw("path", { d: `M${px} ${y(p.y - p.std)}V${y(p.y + p.std)}`, stroke: colour, "stroke-width": 2 });
      if (p.nominal !== null) {
        const nx = x(p.nominal);
        draw("path", { d: `M${nx} ${py}H${px}`, stroke: "var(--warn)", "stroke-dasharray": "2 5", "stroke-width": 2 });
        draw("path", { d: `M${nx - 6} ${py - 6}l12 12m0 -12l-12 12`, stroke: "var(--warn)", "stroke-width": 2.5 });
        draw("text", { x: nx, y: py + 20, "text-anchor": "middle", style: "fill: var(--warn)" }, "nominal");
      }
      draw("circle", { cx: px, cy: py, r: 6, fill: colour });
      const flip = px > width * 0.6, free = y => named.every(([at, taken]) => Math.abs(at - px) > 180 || Math.abs(taken - y) > 13);
      const spot = [-8, 12, -22, 26, -36, 40].map(away => py + away).find(free) ?? py - 8;
      named.push([px, spot]);
      draw("text", { x: px + (flip ? -11 : 11), y: spot, "text-anchor": flip ? "end" : "start", class: "name" }, p.name);
    }
  });
}

// Some five round numbers between two.
function round(low, high) {
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough)), step = power * [1, 2, 5, 10].find(m => m * power >= rough);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(+(k * step).toPrecision(12));
  return found;
}

// 1, 2, 5, 10, 20, ... between two.
function decades(low, high) {
  const found = [];
  for (let p = Math.floor(Math.log10(low)); 10 ** p <= high; p++) found.push(...[1, 2, 5].map(m => m * 10 ** p));
  return found.filter(v => v >= low && v <= high);
}
