"""A page in a real browser (chromium, headless): what went wrong, what it tried to load, what it drew, what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FIRST = """<script>window.failures = []; window.requests = [];
addEventListener("error", e => failures.push(String(e.message)));
addEventListener("unhandledrejection", e => failures.push(String(e.reason)));
addEventListener("securitypolicyviolation", e => requests.push(e.blockedURI));
console.error = (...said) => failures.push(said.join(" "));</script>"""

# A chart counts as drawn when its canvas has ink, or its picture has shapes.
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const inked = c => c.width > 0 && c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(v => v);
  const plots = [...document.querySelectorAll(".plot")];
  const drawn = plots.filter(p => [...p.querySelectorAll("canvas")].some(inked) || p.querySelectorAll("svg > :not(text)").length > 3);
  const line = document.querySelector(".plot[tabindex]");
  if (line) line.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  setTimeout(() => {
    const rows = table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent));
    const seen = {
      failures, requests: [...requests, ...performance.getEntriesByType("resource").map(e => e.name)],
      plots: plots.map(p => p.closest("figure").querySelector("figcaption").firstChild.textContent), drawn: drawn.length,
      unlabelled: plots.filter(p => p.getAttribute("role") !== "img" || !p.getAttribute("aria-label")).length,
      fits: document.documentElement.scrollWidth <= innerWidth, ground: getComputedStyle(document.body).backgroundColor,
      reading: line ? line.closest("figure").querySelector(".reading").textContent : "",
      tables: Object.fromEntries([...document.querySelectorAll("table")].map(t => [t.caption.textContent, rows(t)])),
      badges: [...document.querySelectorAll(".badge")].map(b => b.textContent),
      text: document.querySelector("main").textContent, dangling: [...document.querySelectorAll("h1 > *")].length,
    };
    document.title = JSON.stringify(seen);
  }, 300);
}, 400));</script>"""

NO_BROWSER = "no browser"
MANDATORY = "SORDINO_BROWSER_TESTS"  # set by .ci/run: no browser is then a failure
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
CONSOLE = re.compile(r':CONSOLE[:(][^"]*"(.*)", source: ')
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


class Seen(NamedTuple):
    raw: dict[str, Any]

    @property
    def wrong(self) -> list[str]:
        """Everything that no page may do."""
        r, found = self.raw, []
        found += [f"error: {text}" for text in r["failures"]]
        found += [f"request: {name}" for name in r["requests"]]
        if not r["plots"] or r["drawn"] < len(r["plots"]):
            found.append(f"drawn: {r['drawn']} of {len(r['plots'])}")
        if r["unlabelled"]:
            found.append(f"charts without words: {r['unlabelled']}")
        if not r["fits"]:
            found.append("wider than the window")
        return found


def look(page: str, folder: Path, theme: str = "light", width: int = 1100) -> Seen:
    """Open it from disk and let it report on itself."""
    source = folder / f"{theme}-{width}.html"
    source.write_text(page.replace("<head>", f"<head>{FIRST}", 1).replace("</body>", f"{PROBE}</body>"))
    dumped = _chromium(folder, source, theme, f"--window-size={width},2000", "--virtual-time-budget=6000", "--dump-dom")
    title = re.search(r"<title>(.*?)</title>", dumped, re.S)
    assert title is not None
    text = title.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return Seen(json.loads(text))


def picture(source: Path, target: Path, theme: str, width: int, height: int) -> None:
    """A screenshot of the top of a page."""
    size, shot = f"--window-size={width},{height}", f"--screenshot={target}"
    _chromium(target.parent, source, theme, size, "--virtual-time-budget=4000", shot)


def _chromium(folder: Path, source: Path, theme: str, *flags: str) -> str:
    own = f"--user-data-dir={folder}/profile"
    command = [browser(), *FLAGS, *QUIET, own, *_themed(theme), *flags, source.resolve().as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


def browser() -> str:
    """The one that is installed. Where there is none the test is skipped, or fails where browsers are mandatory."""
    from sordino.report.run_page import BROWSERS  # not loaded by those who only count what was skipped

    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None and os.environ.get(MANDATORY):
        pytest.fail(f"{NO_BROWSER}, and {MANDATORY} is set")
    if found is None:
        pytest.skip(NO_BROWSER)
    return found


def _themed(theme: str) -> list[str]:
    return ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []


@contextmanager
def opened(address: str, folder: Path, theme: str = "light") -> Iterator[Iterator[str]]:
    """A page that stays open: what it writes to its console, line by line, for a minute at the most."""
    command = [browser(), *FLAGS, *QUIET, *_themed(theme), f"--user-data-dir={folder}/profile"]
    command += ["--enable-logging=stderr", "--v=0", "--remote-debugging-port=0", address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        late = threading.Timer(60, process.kill)
        late.start()
        try:
            assert process.stderr is not None
            yield (found[1] for line in process.stderr if (found := CONSOLE.search(line)))
        finally:
            late.cancel()
            process.terminate()
