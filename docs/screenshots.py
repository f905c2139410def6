"""The pictures of the pages: python docs/screenshots.py [FOLDER] writes docs/images/*.png from seeded runs (chromium
and pillow needed, some 30 s).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

import sordino

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tests.helpers.browser import picture  # noqa: E402  (the browser that tests the pages)

WIDTH = 1160
METHODS = {
    "no privacy": 'name = "fedavg"\nlr = 0.1\nlocal_epochs = 1\n',
    "Gaussian, exact": 'name = "gaussian_gdp"\nclip = 1.0\nlr = 2.0\n[privacy]\nepsilon = 8.0\n',
    "one subset, as published": 'name = "gaussian_sampled"\nvariant = "published"\nrate = 0.1\nclip = 1.0\nlr = '
    "2.0\n[privacy]\nepsilon = 8.0\n",
}


def main(images: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        run = sordino.run(out=place / "digits").report()
        files = []
        for i, (method, algorithm) in enumerate(METHODS.items()):
            files.append(place / f"{i}.toml")
            files[-1].write_text(f'name = "{method}"\nrounds = 40\n[algorithm]\n{algorithm}')
        compared = sordino.compare(*files, out=place / "compared").report()
        for source, target, theme, height in (
            (run, "report-light.png", "light", 1190),
            (run, "report-dark.png", "dark", 1190),
            (compared, "comparison-light.png", "light", 1240),
        ):
            picture(source, place / target, theme, WIDTH, height)
            shrunk = Image.open(place / target).convert("RGB").quantize(128, dither=Image.Dither.NONE)
            shrunk.save(images / target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "images")
