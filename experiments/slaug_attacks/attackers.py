"""What SlaugFL's preparation tells whoever receives it: python experiments/slaug_attacks/attackers.py MNIST_FOLDER.
Writes table.md beside it, in a few minutes.

MNIST at 16x16, 2,500 images over 20 devices (Dirichlet, alpha 0.1), cnn_norm with 64 features. Each device trains alone
for ten epochs; for every class the device with the best F1 on 500 probe images is the one whose extractor makes the
prototype. Attacked prototypes are means over images that no model has seen, 200 of each class to draw from; the
attacker has 200 others, and scores 200 more. "all" is one extractor trained on the 2,500 images together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from class_shares import inferred
from inverting import by_network, by_pixels, ranks
from prototypes import SCORES, PrototypeRelease, mean, play, reference
from scipy.special import ndtr, ndtri
from sum_game import played
from torch import Tensor
from world import CLASSES, DEVICES, EACH, KEY, TRAIN, Eye, World, trained, world

from sordino import keys
from sordino.accounting.gaussian_dp import mu_of
from sordino.attacks.methods.inversion import fitted
from sordino.attacks.methods.members import Separation, losses, separation
from sordino.attacks.reconstruction import psnr, ssim
from sordino.audits.noise_sources import Weak
from sordino.audits.records import class_sums
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers import taken
from sordino.privacy.readers.class_sums import ClassSums
from sordino.synthesis.slaug.generator import ranked, skill
from sordino.types import Examples, Grant, Params

HERE = Path(__file__).parent
SIZES, TRIALS, DELTA = (1, 2, 5, 10, 20, 50), 200, 1e-5


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in lines) + "\n"


# membership -----------------------------------------------------------------------------------------------------------


def noised(eye: Eye, epsilon: float) -> PrototypeRelease:
    """The mean as a device with a promise tells it; how many images are in it is given away."""
    long = torch.linalg.vector_norm(eye.features(eye.rows.elsewhere), dim=1)
    reader = ClassSums(clip=float(long.median()), multiplier=1 / mu_of(epsilon, DELTA))

    def release(z: Tensor, key: Key) -> Tensor:
        n = len(z)
        grant = Grant(0, n, n, Counter(keys.word(key)))
        sums, _ = reader.open(Examples(z, torch.zeros(n, dtype=torch.int64)), grant, eye.on.task).by_class(
            lambda x: x, 1
        )
        return sums[0] / n

    return release


def strangers(eye: Eye) -> PrototypeRelease:
    """The control: a prototype that none of the images asked about is in."""
    z = eye.features(eye.rows.elsewhere)
    return lambda mine, key: mean(z[keys.permutation(key, len(z))[: len(mine)]], key)


def members(eyes: Sequence[Eye], n: int, by: Callable[[Eye], PrototypeRelease]) -> dict[str, Separation]:
    """Means over classes."""
    found: dict[str, list[Separation]] = {name: [] for name in SCORES}
    for eye in eyes:
        pool, others, seen = (eye.features(rows) for rows in (eye.rows.members, eye.rows.others, eye.rows.elsewhere))
        key = keys.fold(KEY, "play", eye.label)
        for name, one in play(pool, others, reference(seen), n, TRIALS, key, by(eye)).items():
            found[name].append(one)
    return {name: averaged(row) for name, row in found.items()}


def averaged(row: Sequence[Separation]) -> Separation:
    auc, low, high = np.mean([one[:3] for one in row], 0).tolist()
    return Separation(auc, low, high, tuple(np.mean([one.hits for one in row], 0).tolist()))


GAMES: Sequence[tuple[str, str, Callable[[Eye], PrototypeRelease]]] = (
    ("a device's", "device", lambda eye: mean),
    ("all", "all", lambda eye: mean),
    ("a device's, epsilon 4", "device", lambda eye: noised(eye, 4.0)),
    ("a device's, a prototype of strangers", "device", strangers),
)


def membership(eyes: Mapping[str, Sequence[Eye]]) -> str:
    rows, hits = [], []
    for name, own, release in GAMES:
        by = {n: members(eyes[own], n, release) for n in SIZES}
        for score in SCORES:
            rows.append([name, score, *(f"{by[n][score].auc:.3f}" for n in SIZES)])
        hits.append([name, *(" / ".join(f"{100 * hit:.1f}" for hit in by[n]["whitened"].hits) for n in SIZES)])
    half = max((one.high - one.low) / 2 for one in by[1].values())
    text = "## Is an image in a prototype of n images? AUC, mean over ten classes\n\n"
    text += table(["extractor", "score", *(f"n = {n}" for n in SIZES)], rows)
    text += f"\n{TRIALS} prototypes of each class. The 95% interval of one class is at most ± {half:.3f}.\n"
    text += "\n## The same: members found (%) with 1% / 0.1% false alarms, whitened\n\n"
    return text + table(["extractor", *(f"n = {n}" for n in SIZES)], hits)


def sums(eyes: Sequence[Eye]) -> str:
    """One client, twenty images of each class through one extractor, and one image more or less."""
    eye = eyes[0]
    z = torch.cat([eye.features(one.members[:21]) for one in eye.on.classes])
    long = torch.linalg.vector_norm(z, dim=1)
    examples = Examples(z, torch.arange(CLASSES).repeat_interleave(21))
    clip, targets = float(long.min()), torch.arange(0, len(z), 21)
    rows = []
    for epsilon in (1, 2, 4, 8):
        mu = mu_of(epsilon, DELTA)
        reader, source = ClassSums(clip=clip), Counter(keys.word(keys.fold(KEY, "game", epsilon)))
        game = class_sums(reader, examples, targets, lambda x: x, eye.on.task, 1 / mu)
        sound = played(reader, game, 1 / mu, DELTA, 20_000, source)
        twin = played(reader, game, 1 / mu, DELTA, 20_000, Weak(source, 2.0))
        told = sound.found
        bounds = [min(1.0, float(np.exp(epsilon)) * alarms + DELTA) for alarms in (0.01, 0.001)]
        exact = [float(ndtr(ndtri(alarms) + mu)) for alarms in (0.01, 0.001)]
        row = [epsilon, f"{told.auc:.3f} ({told.low:.3f}-{told.high:.3f})", f"{sound.ceiling:.3f}"]
        for hit, bound, tight in zip(told.hits, bounds, exact, strict=True):
            row += [f"{100 * hit:.2f}", f"{100 * tight:.2f} / {100 * bound:.2f}"]
        words = {False: "holds", True: "REFUTED"}
        rows.append(
            [*row, f"{sound.at_least:.2f}", words[sound.refuted], f"{twin.found.auc:.3f}, {words[twin.refuted]}"]
        )
    heads = [
        "epsilon",
        "AUC (99.99%)",
        "ceiling",
        "hits at 1%",
        "at most",
        "hits at 0.1%",
        "at most",
        "epsilon lost, at least",
        "promise",
        "halved noise",
    ]
    text = "\n## Is an image in a noised sum? Counted or not, 20,000 releases of either side, delta 1e-5\n\n"
    text += table(heads, rows)
    return (
        text
        + '\n"At most" is what Gaussian noise allows / what any (epsilon, delta) mechanism may allow. Thresholds for '
        "0.1% rest on 20 false alarms.\n"
    )


# inversion ------------------------------------------------------------------------------------------------------------


def inverted(eyes: Sequence[Eye], many: int, steps: int) -> str:
    cells = [(n, epsilon) for epsilon in (None, 4.0) for n in (1, 2, 5)]
    hows = ["mean of the class", "network", "pixels", "linear map"]
    found: dict[tuple[str, int, float | None], list[Tensor]] = {(how, *cell): [] for how in hows for cell in cells}
    grid: list[Tensor] = []
    for eye in eyes:
        elsewhere, own, others = eye.rows
        groups, prototypes = [], []
        for n, epsilon in cells:
            release = mean if epsilon is None else noised(eye, epsilon)
            for i in range(many):
                rows = own[keys.permutation(keys.fold(KEY, "invert", eye.label, n, i), len(own))[:n]]
                groups.append(rows)
                prototypes.append(release(eye.features(rows), keys.fold(KEY, "noise", eye.label, n, i)).float())
        z, seen = torch.stack(prototypes), eye.pictures(elsewhere)
        start = seen.mean(0)
        made = {
            "mean of the class": start.expand(len(z), -1, -1, -1),
            "network": by_network(eye.look, z, (1, 16, 16), keys.fold(KEY, "network", eye.label), steps),
            "pixels": by_pixels(eye.look, z, start),
            "linear map": fitted(eye.features(elsewhere), seen, z),
        }
        rest = eye.pictures(others[:99])
        for how, drawn in made.items():
            for j, cell in enumerate(cells):
                for i in range(many):
                    at = j * many + i
                    truth = eye.pictures(groups[at])
                    mine = drawn[at].expand_as(truth)
                    found[(how, *cell)].append(
                        torch.stack([ranks(mine, truth, rest), psnr(mine, truth), ssim(mine, truth)])
                    )
        grid.append(
            torch.cat(
                [
                    eye.pictures(groups[0][:1]),
                    *(made[how][:1] for how in hows[1:]),
                    *(made[how][3 * many : 3 * many + 1] for how in hows[1:]),
                ],
                0,
            )
        )
    picture(torch.stack(grid))
    lines = []
    for how in hows:
        told = [torch.cat(found[(how, *cell)], 1).mean(1).tolist() for cell in cells]
        lines.append([how, *(f"{place:.1f}" for place, _, _ in told), f"{told[0][1]:.1f}, {told[0][2]:.2f}"])
    heads = [
        "made by",
        *(f"n = {n}" + ("" if epsilon is None else f", epsilon {epsilon:g}") for n, epsilon in cells),
        "PSNR, SSIM at n = 1",
    ]
    text = (
        "\n## Which of 100 images of its class was it? Mean place of a member, 1 is found, 50.5 is chance\n\n"
        + table(heads, lines)
    )
    return text + f"\n{many} prototypes of each class and column, a device's extractor, the network of {steps} steps.\n"


def picture(grid: Tensor) -> None:
    """Rows: a true image, what three inverters make of it alone, and of it under epsilon 4. Columns: classes."""
    from PIL import Image

    count, rows = grid.shape[:2]
    sheet = np.full((rows * 18, count * 18), 255, np.uint8)
    for column in range(count):
        for row in range(rows):
            tile = (255 * grid[column, row, 0]).round().byte().numpy()
            sheet[row * 18 + 1 : row * 18 + 17, column * 18 + 1 : column * 18 + 17] = tile
    Image.fromarray(sheet).resize((3 * sheet.shape[1], 3 * sheet.shape[0]), Image.Resampling.NEAREST).save(
        HERE / "inverted.png"
    )


# models ---------------------------------------------------------------------------------------------------------------


def uploads(on: World, models: Sequence[Params]) -> str:
    counts = torch.stack([torch.bincount(on.every.y[rows], minlength=CLASSES) for rows in on.devices])
    recall = torch.stack([skill(on.task, model, on.probe).recall for model in models])
    told = inferred(recall, counts)
    unseen = torch.cat([one.others for one in on.classes])
    areas = []
    for model, rows in zip(models, on.devices, strict=True):
        own, other = on.every.y[rows], on.every.y[unseen]
        # as many of each class on both sides: a model misses classes that it has hardly seen, members or not
        many = [min(int((own == label).sum()), EACH) for label in range(CLASSES)]
        mine = torch.cat([rows[own == label][:most] for label, most in enumerate(many)])
        same = torch.cat([unseen[other == label][:most] for label, most in enumerate(many)])
        members, others = (-losses(on.task, model, taken(on.every, part)) for part in (mine, same))
        areas.append(separation(members, others).auc)
    lines = [
        [
            "label shares from recall: total variation",
            f"{float(told.total_variation.mean()):.3f}",
            f"{float(told.of_uniform.mean()):.3f} (all classes alike)",
        ],
        ["label shares from recall: Spearman", f"{float(told.spearman.mean()):.3f}", "0"],
        ["membership by loss: AUC", f"{np.mean(areas):.3f} ({min(areas):.3f}-{max(areas):.3f})", "0.5"],
    ]
    return f"\n## What the {DEVICES} uploaded models tell\n\n" + table(
        ["attack", "mean over devices", "guessing"], lines
    )


def main() -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    on = world(sys.argv[1])
    models = [trained(on, rows, keys.fold(KEY, "device", k)) for k, rows in enumerate(on.devices)]
    central = trained(on, torch.arange(TRAIN), keys.fold(KEY, "all"))
    skills = [skill(on.task, model, on.probe) for model in models]
    best = ranked(torch.stack([one.f1 for one in skills]), torch.stack([one.confidence for one in skills]))[0]
    eyes = {
        "device": [Eye(on, models[int(best[label])], label) for label in range(CLASSES)],
        "all": [Eye(on, central, label) for label in range(CLASSES)],
    }
    parts: tuple[Callable[[], str], ...] = (
        lambda: membership(eyes),
        lambda: sums(eyes["all"]),
        lambda: inverted(eyes["device"], 4, 500),
        lambda: uploads(on, models),
    )
    text = ""
    for part in parts:
        text += part()
        print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    (HERE / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
