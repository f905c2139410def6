// A run that goes on: the page is as the server wrote it, and the stream brings what has happened since.
const rounds = new Map(facts.rows.map(row => [row.round, row])), place = document.getElementById("charts");
const connection = document.getElementById("line"), MOST = 1000; // events that are kept in sight
const drawn = {};
let waiting = false;

function draw() {
  waiting = false;
  const rows = [...rounds.values()].sort((a, b) => a.round - b.round);
  const curve = (name, make, there) => {
    if (there && drawn[name]) drawn[name](rows);
    else if (there) drawn[name] = make();
  };
  curve("learned", () => learned(place, facts.model, rows), measured(rows).scored.length);
  curve("traffic", () => traffic(place, rows), rows.length && rows.every(row => "bytes_up" in row));
  place.parentElement.hidden = !place.children.length;
  paintAll();
}

// Many rounds may come at once: they are drawn together.
function soon() {
  if (!waiting) { waiting = true; setTimeout(draw, 50); }
}

const source = new EventSource(`stream?from=${facts.cursor}`), lists = document.querySelectorAll(".events");
const heard = (name, does) => source.addEventListener(name, message => does(JSON.parse(message.data)));
heard("round", row => { rounds.set(row.round, row); soon(); });
heard("event", ({ list: name, line }) => {
  const list = document.getElementById(name);
  if (!list) return;
  list.insertAdjacentHTML("afterbegin", line);
  while (list.children.length > MOST) list.lastChild.remove();
});
heard("state", parts => {
  for (const [id, inside] of Object.entries(parts)) {
    const part = document.getElementById(id);
    if (!part) continue;
    const open = [...part.querySelectorAll("details")].map(fold => fold.open);
    part.innerHTML = inside; // as the server wrote it, where every text is text
    part.querySelectorAll("details").forEach((fold, i) => { fold.open = Boolean(open[i]); });
  }
});
heard("anew", () => { rounds.clear(); lists.forEach(list => list.replaceChildren()); soon(); });
source.addEventListener("open", () => { connection.textContent = ""; });
source.addEventListener("error", () => { connection.textContent = "No connection to the dashboard: what is shown may be old. Trying again."; });

draw();
start();
