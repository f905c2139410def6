"""Epsilons of a receipt's rows, from the claims in its ledger, as docs/receipt-format.md defines them.

A draw is (kind, sampling rate, noise): what is left of an event. Gaussian noise is composed by its exact curve, pure
noise by sums, everything else by dp-accounting.
"""

import json
import logging
import math
from collections import Counter, defaultdict, namedtuple
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from scipy.optimize import brentq
from scipy.special import log_ndtr

logging.getLogger("absl").setLevel(logging.ERROR)  # orders that do not converge are left out
UNITS = ("pixel", "image", "example", "cell", "client")  # from small to large
STATUSES = ("proved", "conditional", "nominal", "none")  # from strong to empty
CHANGES, ADVERSARIES = ("replace", "zero_out"), ("server", "participants", "public")
WORDS = {"unit": UNITS, "neighbours": CHANGES, "adversary": ADVERSARIES, "status": STATUSES}
ORDERS = (*(k / 10 for k in range(11, 120) if k % 10), *range(2, 257))
FEW_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
NOISE = {"gaussian": "noise_multiplier", "discrete_gaussian": "noise_multiplier", "laplace": "scale"}
FIELDS = {"response": "epsilon levels", "poisson": "rate event", "repeat": "event count", "once": "name event"}
FIELDS |= NOISE | {"together": "events", "non_private": "reason", "nothing": ""}  # of each kind of event
BARE, NO_NOISE = ("bare", 1), ("no noise", 1)  # draws that protect nobody
WIDEST, MANY, ROUNDING, DEEPEST, MOST_DRAWS = 700.0, 10**6, 2.0**-50, 40, 500

Claim = namedtuple("Claim", "unit change adversary status draws because drift")
Cost = namedtuple("Cost", "parts draws status because drift releases")  # a part: unit, change, steps, counted draws
Row = namedtuple("Row", "epsilon delta status because accountants worst")  # worst: costs at the largest loss


class Wrong(Exception):
    """A file is not what the page says."""


class NotChecked(Exception):
    """Something that this program does not know."""


def number(value, least=0.0, most=math.inf, whole=False):
    """The value, where it is a number in this range."""
    if type(value) not in ((int,) if whole else (int, float)) or not least <= value <= most or value == math.inf:
        raise Wrong(f"{value!r:.80} stands where a number between {least} and {most} belongs")
    return value


def draws(event, depth=0):
    """Draws of an event with their counts; those that happen once stay together, under their name."""
    kind = event.get("kind") if isinstance(event, dict) and depth < DEEPEST else None
    if kind not in FIELDS or set(event) != {"kind", *FIELDS[kind].split()}:
        raise NotChecked(f"an event of the kind {kind!r:.80}, or with other fields")
    if kind in ("nothing", "non_private"):
        return Counter([BARE] if kind == "non_private" else [])
    if kind == "response":
        return Counter([(kind, 1, number(event["epsilon"], 1e-300), number(event["levels"], 2, whole=True))])
    if kind == "together":
        return sum((draws(part, depth + 1) for part in event["events"]), Counter())
    if kind in NOISE:
        level = number(event[NOISE[kind]])
        return Counter([(kind, 1, min(float(level), 1e9)) if level >= 1e-6 else NO_NOISE])
    inside = draws(event["event"], depth + 1)
    if kind == "once":
        return Counter([(kind, json.dumps(event, sort_keys=True), tuple(sorted(inside.items())))])
    if kind == "repeat":
        count = number(event["count"], 1, whole=True)
        return Counter({draw: count * one for draw, one in inside.items()})
    rate, inside = number(event["rate"], 0, 1), merged(unfolded(inside))
    if rate == 1 or not inside:
        return inside
    if {BARE, NO_NOISE} & inside.keys():
        return Counter([NO_NOISE])
    if inside.total() > 1 or {draw[0] for draw in inside} == {"response"} or {draw[1] for draw in inside} != {1}:
        raise NotChecked("this event on a secret sample")
    return Counter([(draw[0], rate, *draw[2:]) for draw in inside])


def unfolded(found):
    """Draws with their counts, without names."""
    made = Counter()
    for draw, count in found.items():
        made += unfolded(Counter(dict(draw[2]))) if draw[0] == "once" else Counter({draw: count})
    return made


def merged(found):
    """Draws with their counts, all plain Gaussians as one."""
    plain = [draw for draw in found if draw[:2] == ("gaussian", 1)]
    square = math.fsum(found[draw] / draw[2] ** 2 for draw in plain)
    rest = Counter({draw: count for draw, count in found.items() if draw not in plain})
    return rest + Counter([("gaussian", 1, 1 / math.sqrt(square))] if plain else [])


# accountants ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def bounds(found, change, delta):
    """Epsilon of all draws together by each accountant. `found`: pairs of a draw and its count."""
    found = merged(Counter(dict(found)))
    if {BARE, NO_NOISE} & found.keys():
        return {"none": math.inf}
    if (change != "zero_out" and any(draw[1] != 1 for draw in found)) or len(found) > MOST_DRAWS:
        raise NotChecked(f"a secret sample under {change}, or more than {MOST_DRAWS} different draws")
    if all(draw[:2] == ("gaussian", 1) for draw in found):
        return {"gdp": gaussian_epsilon(sum(1 / draw[2] for draw in found), delta)}
    each = [(pure_of(draw), count) for draw, count in found.items()]
    pure = None if None in dict(each) else math.fsum(epsilon * count for epsilon, count in each)
    if pure is not None and pure > WIDEST:
        return {"pure": pure}
    made = {"pure": pure, "rdp": renyi_epsilon(found, delta, ORDERS), "pld": loss_epsilon(found, delta, pure)}
    return {name: epsilon for name, epsilon in made.items() if epsilon is not None} or {"none": math.inf}


def taken(listed):
    """Accountant whose epsilon is the row's: the exact one, else that of the smallest."""
    return "gdp" if "gdp" in listed else min(listed, key=listed.get)


def gaussian_epsilon(mu, delta):
    """The least epsilon of Gaussian noise, by its exact curve."""
    if mu == 0 or delta == 0:
        return math.inf if mu else 0.0

    def over(epsilon):
        first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return first + math.log(-math.expm1(min(second - first, -1e-300))) - math.log(delta)

    most = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    return brentq(over, 0.0, most, xtol=1e-12 * most, rtol=1e-12) if over(0.0) > 0 else 0.0


def pure_of(draw):
    """Epsilon of one draw of pure noise; None for any other."""
    epsilon = {"laplace": lambda: 1 / draw[2], "response": lambda: draw[2]}.get(draw[0], lambda: None)()
    return epsilon and epsilon + math.log(draw[1] + (1 - draw[1]) * math.exp(-epsilon))


@lru_cache(maxsize=1024)
def renyi(draw, orders):
    """Renyi divergences of one draw at these orders; None where none are known."""
    kind, rate, level = draw[:3]
    a = np.array(orders, dtype=float)
    if kind == "response":
        above = a * level + np.log(np.expm1(-a * level) * np.expm1((1 - a) * level))  # of the moment, beside its 1
        return np.logaddexp(0, above - level - math.log1p((draw[3] - 1) * math.exp(-level))) / (a - 1)
    if rate == 1 and kind != "laplace":
        return a / (2 * level**2)
    if rate != 1 and kind == "laplace":
        return None
    event = LaplaceDpEvent(level) if rate == 1 else PoissonSampledDpEvent(rate, GaussianDpEvent(level))
    found = RdpAccountant(orders).compose(event).rdp
    return found if kind != "discrete_gaussian" else np.where(a % 1 == 0, found, math.inf)


def renyi_epsilon(found, delta, orders):
    curves = [(renyi(draw, orders), count) for draw, count in found.items()]
    if delta == 0 or any(curve is None for curve, _ in curves):
        return None
    total = sum(count * curve for curve, count in curves)
    usable = np.isfinite(total) & (total >= 0)
    if not usable.any():
        return math.inf
    return float(rdp_privacy_accountant.compute_epsilon(np.array(orders)[usable], total[usable], delta)[0])


def span_and_size(draw):
    """Span and typical size of the privacy loss of one draw; None where the page defines no loss distribution."""
    kind, rate, level = draw[:3]
    if kind == "discrete_gaussian":
        return None
    size = 1 / level if kind == "gaussian" else pure_of((kind, 1, level))
    span = size * size / 2 + 10 * size if kind == "gaussian" else size
    return span, min(rate * math.exp(min(size, 5.0) ** 2 / 2), 1.0) * size


def loss_epsilon(found, delta, pure):
    """Epsilon by the privacy loss distribution; None where the page defines none."""
    sizes, mixed = [span_and_size(draw) for draw in found], len({draw[0] == "response" for draw in found}) > 1
    lost, many = ROUNDING * found.total(), found.total() > MANY
    if lost >= delta / 2 or None in sizes or mixed or many or max(sizes)[0] > WIDEST:
        return None
    rough = [epsilon for epsilon in (pure, renyi_epsilon(found, delta, FEW_ORDERS)) if epsilon is not None]
    widest = max(max(sizes)[0], min(rough, default=0.0))
    step = max(min(widest / 5e4, min(size for _, size in sizes) / 10), widest / 3e5) * max(1.0, len(sizes) / 10)
    composed = losses(frozenset(found.items()), 2.0 ** round(math.log2(step)))
    return max(0.0, float(composed.get_epsilon_for_delta(delta - lost)))


@lru_cache(maxsize=16)
def losses(found, step):
    """Privacy loss distribution of all draws together, on a grid with this step."""
    total = pld.identity(step)
    for (kind, rate, level, *levels), count in found:
        if kind == "response":
            replaced = levels[0] / (levels[0] - 1 + math.exp(min(level, WIDEST)))
            one = pld.from_randomized_response(replaced, levels[0], value_discretization_interval=step)
        else:
            made = pld.from_gaussian_mechanism if kind == "gaussian" else pld.from_laplace_mechanism
            one = made(level, sampling_prob=rate, value_discretization_interval=step)
        total = total.compose(one.self_compose(count))
    return total


# rows -----------------------------------------------------------------------------------------------------------------


def read_claim(told):
    """A claim, where the page names all that is in it."""
    if any(told[name] not in values for name, values in WORDS.items()):
        raise NotChecked("a claim about a unit, a change, an adversary or a status that the page does not name")
    return Claim(*map(told.get, WORDS), draws(told["event"]), told["because"], number(told.get("drift", 0)))


def steps(claimed, how, unit, change):
    """Changes of a claim's unit that make one change of another one; None where the claim does not cover it."""
    larger = UNITS.index(claimed) - UNITS.index(unit)
    if larger < 0 or ((how, change) == ("replace", "zero_out") and not (larger and claimed == "client")):
        return None
    return 1 if how == "replace" or (claimed, how) == (unit, change) else 2


def cost(history, unit, change, adversary):
    """Cost of a client's releases (pairs of claims and a count) to one subject."""
    parts, used, bare, open_, drift = defaultdict(Counter), [], [], False, 0.0
    for release, count in history:
        about = defaultdict(list)
        for claim in release:
            if claim.adversary == adversary:
                about[claim.unit, claim.change].append(claim)
        sound = [each for each, claims in about.items() if not any(BARE in claim.draws for claim in claims)]
        known = {each: many for each in sound if (many := steps(*each, unit, change))}
        if known:
            best = min(known, key=lambda each: (each != (unit, change), known[each], UNITS.index(each[0])))
            for claim in about[best]:
                parts[*best, known[best]] += Counter({draw: count * one for draw, one in claim.draws.items()})
                used, drift = [*used, claim], drift + count * claim.drift
        else:
            open_, bare = True, bare + [claim.status for claim in about[unit, change] if BARE in claim.draws]
    releases = sum(count for _, count in history)
    if open_:
        return Cost([], Counter(), max(bare or ["none"], key=STATUSES.index), set(), 0.0, releases)
    because = {reason for claim in used for reason in claim.because}
    made = [(*key, frozenset(unfolded(found).items())) for key, found in parts.items()]
    whole = unfolded(sum(parts.values(), Counter()))
    return Cost(made, whole, max((claim.status for claim in used), key=STATUSES.index), because, drift, releases)


def several(promise, delta, many):
    """Epsilon of one change with which `many` of them keep delta; `promise`: from a delta to what one costs."""
    smaller = delta
    for _ in range(40):
        epsilon, held = promise(smaller)
        if not epsilon * (many - 1) < 300:
            break
        if math.fsum(math.exp(i * epsilon) for i in range(many)) * held <= delta:
            return epsilon, smaller
        smaller = delta / math.fsum(math.exp(i * epsilon * 1.01) for i in range(many))
    return math.inf, delta


def alone(unit, change, many, found, delta):
    """Epsilon of one part by each accountant."""
    listed = bounds(found, change, delta)
    if many == 1:
        return listed
    one, _ = several(lambda smaller: (min(bounds(found, change, smaller).values()), smaller), delta, many)
    return {f"{taken(listed)}, two steps of the {unit} row": many * one}


def listed_epsilons(parts, change, delta):
    """Epsilon of a cost by each accountant."""
    if len(parts) < 2:
        return alone(*parts[0], delta) if parts else {"none": math.inf}
    each = [alone(*part, delta / len(parts)) for part in parts]
    made = {f"sum of {len(parts)} kinds of claims": math.fsum(listed[taken(listed)] for listed in each)}
    together = Counter()
    for _, _, many, found in parts:
        for (kind, rate, *told), count in found:
            if many > 1 and (rate != 1 or kind not in NOISE):
                return made
            together[kind, rate, *(level / many if many > 1 else level for level in told)] += count
    return made | bounds(frozenset(together.items()), change, delta)


def row(costs, change, delta):
    """Row of a subject: the client with the largest privacy loss, at the delta that its noise leaves."""
    drift, status = max(cost.drift for cost in costs), max((cost.status for cost in costs), key=STATUSES.index)
    because = {reason for cost in costs for reason in cost.because}

    def most(at):
        listed = [listed_epsilons(cost.parts, change, at) for cost in costs]
        found = [each[taken(each)] for each in listed]
        worst = [cost for cost, each in zip(costs, found, strict=True) if math.isclose(each, max(found))]
        return max(found), listed[found.index(max(found))], worst

    def lacking(epsilon):
        return (1 + math.exp(min(epsilon, WIDEST))) * drift

    tries, ideal, whole = 8, delta, delta
    while tries and ideal > 0:
        epsilon, listed, worst = most(ideal)
        if ideal + lacking(epsilon) <= delta:
            break
        tries, ideal = tries - 1, delta - lacking(epsilon) * (1 + 1e-6)
    if not tries or not ideal > 0:
        epsilon, listed, worst = most(delta)
        whole = delta + lacking(epsilon)
    if not worst[0].parts or whole >= 1:
        return Row(math.inf, delta, "none" if worst[0].parts else status, because, {"none": math.inf}, worst)
    return Row(epsilon, whole, status, because, listed, worst)
