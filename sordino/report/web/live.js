// A run that goes on: the page is as the server wrote it, and the stream brings what has happened since.
const connection = document.getElementById("line"), MOST = 1000; // events that are kept in sight
const source = new EventSource(`stream?from=${document.getElementById("main").dataset.cursor}`), lists = document.querySelectorAll(".events");
const heard = (name, does) => source.addEventListener(name, message => does(JSON.parse(message.data)));

heard("event", ({ list: name, line }) => {
  const list = document.getElementById(name);
  if (!list) return;
  list.insertAdjacentHTML("afterbegin", line);
  while (list.children.length > MOST) list.lastChild.remove();
});
heard("state", parts => {
  for (const [id, inside] of Object.entries(parts)) {
    const part = document.getElementById(id);
    if (part) renew(part, inside);
  }
});
heard("anew", () => lists.forEach(list => list.replaceChildren()));
source.addEventListener("open", () => { connection.textContent = ""; });
source.addEventListener("error", () => { connection.textContent = "No connection to the dashboard: what is shown may be old. Trying again."; });

// Put in a part as the server wrote it, where every text is text, and leave a reader where she was.
function renew(part, inside) {
  const all = name => [...part.querySelectorAll(name)], can = "[tabindex], button, summary";
  const open = all("details").map(fold => fold.open), shown = all(".legend button").map(key => key.getAttribute("aria-pressed") === "true");
  const focus = all(can).indexOf(document.activeElement), at = all(charts).map(plot => plot.dataset.row);
  part.innerHTML = inside;
  ready(part);
  all("details").forEach((fold, i) => { fold.open = Boolean(open[i]); });
  all(".legend button").forEach((key, i) => { if (shown[i] === false) press(key, false); });
  all(charts).forEach((plot, i) => { if (at[i] !== undefined) read(plot, Number(at[i])); });
  all(can)[focus]?.focus({ preventScroll: true });
}
