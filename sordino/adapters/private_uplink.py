"""Private uplink inside another federated learning program: its clip, noise, budget and receipt, kept in a run folder;
and the declared arrays that may pass between its server and clients.

The other program trains, and carries messages. The folder is that of a run which trains elsewhere: its plan, ledger and
receipt are those of any run, so `sordino privacy spent` and `verify` read it.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sordino import config, tree
from sordino.budget.plan import Price
from sordino.errors import BudgetExhausted, ConfigError, RunError, SordinoError, WireError
from sordino.planning import Agreement, PublicNumbers
from sordino.planning.accounts import Accounts, OpenRound
from sordino.planning.phase import PlannedRun
from sordino.privacy.noise.sources import check_digits, for_client, for_round
from sordino.receipts import private
from sordino.receipts.folder import RunFolder, absolute_folder
from sordino.receipts.receipt import write_receipt
from sordino.runs.new_folder import create_folder, environment_of
from sordino.runs.witness import Witness
from sordino.sampling import alike
from sordino.types import Grant, Neighbours, NoiseSource, Params

Arrays: TypeAlias = dict[str, NDArray[Any]]
# not float16: its rounding would make a clipped change longer than the clip
REAL = tuple(map(np.dtype, ("float32", "float64")))


class DeclaredArrays:
    """Names, shapes and types of a model's arrays, as a user declares them: a `state_dict`, or a dictionary of arrays.

    Arrays that differ in any of these are refused, with an error text that repeats none of their values.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        arrays = {
            name: one.detach().cpu().numpy() if isinstance(one, torch.Tensor) else np.asarray(one)
            for name, one in model.items()
        }
        wrong = [name for name, one in arrays.items() if one.dtype not in REAL]
        if wrong or not arrays:
            raise ConfigError(
                f"the declared array {wrong[0]!r} is not of float32 or float64" if wrong else "no arrays are declared",
                why="a clip and noise are for real numbers, and the rounding of shorter ones would exceed the clip; "
                "the counter of a BatchNorm layer would leave without noise",
                fix="send the model as float32; in a network, use GroupNorm instead of BatchNorm",
                code="array-not-real",
            )
        self._kinds = {name: (one.shape, one.dtype) for name, one in arrays.items()}

    @classmethod
    def described(cls, model: Mapping[str, Sequence[Any]]) -> Self:
        """Declaration of a model's arrays from a configuration file: the shape and type of each."""
        return cls({name: np.empty(shape, dtype) for name, (shape, dtype) in model.items()})

    @property
    def zero(self) -> Params:
        return {name: torch.from_numpy(np.zeros(*kind)) for name, kind in self._kinds.items()}

    @property
    def coordinates(self) -> int:
        return sum(math.prod(shape) for shape, _ in self._kinds.values())

    def checked(self, arrays: object) -> Arrays:
        """The arrays, in the order of the declaration; refused where any of them differs from it."""
        if not isinstance(arrays, Mapping) or arrays.keys() != self._kinds.keys():
            raise undeclared()
        found = {name: arrays[name] for name in self._kinds}
        for name, one in found.items():
            if type(one) is not np.ndarray or (one.shape, one.dtype) != self._kinds[name]:
                raise undeclared()
        return found

    def from_npy(self, files: Mapping[str, bytes]) -> Arrays:
        """Arrays from the bytes of .npy files, each compared with the declaration before its numbers take memory."""
        if files.keys() != self._kinds.keys():
            raise undeclared()
        return {name: _array(files[name], *kind) for name, kind in self._kinds.items()}

    def tensors(self, arrays: object) -> Params:
        return {name: torch.from_numpy(one.copy()) for name, one in self.checked(arrays).items()}

    def change(self, before: object, after: object) -> Params:
        """The change from one model to another. Where it is not finite, the clip makes it zero."""
        old, new = self.checked(before), self.checked(after)
        with np.errstate(all="ignore"):
            return {name: torch.from_numpy(np.asarray(new[name] - old[name])) for name in old}

    def moved(self, before: object, change: Params) -> Arrays:
        """The model `before`, with a change added to it."""
        return {name: np.asarray(old + change[name].numpy()) for name, old in self.checked(before).items()}


def _array(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        file = io.BytesIO(data)
        if np.lib.format.read_magic(file) != (1, 0):
            raise undeclared()
        found_shape, by_column, kind = np.lib.format.read_array_header_1_0(file)
    except Exception:  # a parser of untrusted bytes may raise anything
        raise undeclared() from None
    start, numbers = file.tell(), math.prod(shape)
    if (found_shape, kind) != (shape, dtype) or len(data) != start + numbers * dtype.itemsize:
        raise undeclared()
    return np.frombuffer(data, dtype, numbers, start).reshape(shape, order="F" if by_column else "C")


def undeclared() -> WireError:
    return WireError(
        "a model came that is not the declared one",
        why="what is not exactly the declared arrays could carry data past the clip and the noise",
        fix="declare the arrays that are trained, and send these alone, with their names, shapes and types",
        code="array-not-declared",
    )


log = logging.getLogger(__name__)
ELSEWHERE = (
    "the clients were trained by another program: of experiment.toml, rounds, [uplink], [cohort], [privacy] and the "
    "number of clients say what was done"
)
HIDDEN = "what a client answers beside its arrays is dropped; that it answers, and when, is not protected"
BEGAN = "the arrays with which the job began are public: the data that they were made from are not accounted for"


class UplinkTerms(NamedTuple):
    """Privacy guarantee of an uplink: its budget, and the numbers from which its noise follows."""

    epsilon: float
    delta: float
    clip: float  # the longest change of the model by one client
    rounds: int  # number of rounds for which the budget pays
    clients: int = 1
    neighbours: Neighbours = "replace"
    rate: float | None = None  # of hidden Poisson sampling; None: each client pays for every round


class PrivateUplink:
    """Clips, noises and releases one upload a round, until the budget in the folder is spent. `side` "client": the
    client's own upload; `side` "server": the sum of all uploads.
    """

    def __init__(
        self, folder: Path | str, coordinates: int, terms: UplinkTerms, side: Literal["client", "server"]
    ) -> None:
        noise, bound = {"name": "noise", "neighbours": terms.neighbours}, {"name": "clip", "radius": float(terms.clip)}
        uplink = (
            {"client": [bound, noise], "server": []} if side == "client" else {"client": [bound], "server": [noise]}
        )
        experiment = config.load(
            {
                "name": f"uplink of a {side}",
                "rounds": terms.rounds,
                "data": {"source": "elsewhere:Program"},
                "partition": {"scheme": "iid", "clients": terms.clients},
                "cohort": {"name": "everyone"} if terms.rate is None else {"name": "poisson", "rate": terms.rate},
                "algorithm": {"name": "fedavg"},
                # unknown code: in one process it could put rows of one client into another's upload
                "model": {"name": "elsewhere:Program"},
                "uplink": uplink,
                "privacy": {
                    "epsilon": float(terms.epsilon),
                    "delta": terms.delta,
                    "noise": "system",
                    "public_sizes": False,
                },
            }
        )
        public = PublicNumbers(
            kind="table",
            shape=(1,),
            classes=2,
            named=2,
            sizes=alike(1, terms.clients),
            assumed=(ELSEWHERE, HIDDEN, BEGAN),
        )
        self.folder = RunFolder(absolute_folder(folder))
        self._phase = PlannedRun(experiment, public, {"": coordinates}).phases[-1]
        self._own = (0,) if side == "client" else None  # a client's accounts trust no number of the server
        _ = self._phase.plan  # refuses settings whose guarantee would be false
        check_digits()
        self._open_folder(side)

    def _open_folder(self, side: str) -> None:
        """Creates the run folder; an existing one must have the same terms, so that no budget is granted twice."""
        files, phase = self.folder, self._phase
        agreement = phase.whole.agreement("")
        if not files.begun:
            environment = environment_of(phase.experiment).beside(site=side, clients=self._own)
            create_folder(files.path, phase, agreement, environment, b"")
        files.check()
        if files.environment.config != phase.experiment.digest() or not Agreement.read(files.path).says(agreement):
            raise RunError(
                f"{files.path} belongs to other terms",
                why="its budget was founded for another epsilon, delta, clip, number of rounds or clients, or model",
                fix="give the terms that its experiment.toml says; other data of other people need another folder",
                code="other-terms",
            )

    @contextmanager
    def _books(self) -> Iterator[Accounts]:
        """Opens the folder's privacy accounts (ledger and spent budget), locked for this process alone."""
        files = self.folder
        with files.locked():
            private.check_place(files.path, moved=False)
            books = self._phase.accounts(Accounts, "", files.own_ledger, files.environment.run, self._own)
            with books.ledger:
                books.witness = witness = Witness.of(files.path)
                witness.check(books.ledger, moved=False)
                witness.begin(books.ledger)
                books.replay()
                yield books

    def check_left(self) -> None:
        """Raises an error if the budget does not suffice for another release."""
        with self._books() as books:
            self._prices(books)

    def _prices(self, books: Accounts) -> tuple[OpenRound, dict[int, Price | None]]:
        """The next round, and what each client pays for it; an error if the budget is spent."""
        now = books.open(len(books.entries()))
        prices = books.prices(now, books.members, stalled=False)
        if len(prices) < len(books.members):
            raise BudgetExhausted(
                f"the budget is spent, after {now.t} releases",
                why="another release would exceed the epsilon that was promised",
                fix="stop here; a larger promise about the same people is a new decision, in a new folder",
            )
        return now, prices

    @contextmanager
    def _release(self) -> Iterator[tuple[Accounts, OpenRound, NoiseSource]]:
        """Context for one release: charges the next round to the budget, on disk, before its noise is drawn. A crash
        may waste a paid round, but never releases an unpaid one.
        """
        with self._books() as books:
            now = books.reserve(*self._prices(books))
            books.begin(now)
            yield books, now, for_round(books.policy.noise, books.key, now.t)

    def of_client(self, upload: Params) -> Params:
        """A client's upload, clipped and noised."""
        with self._release() as (books, now, source):
            price = now.prices[0]
            grant = Grant(0, 1, 1, for_client(source, 0), None if price is None else price.multiplier)
            if not tree.finite(upload):
                log.warning("an upload that is not finite counts as zeros: nothing was learned in this round")
            released: Params = books.algorithm.uplink.encode(upload, grant)
            self._publish(books, now, released)
        return released

    def of_server(self, uploads: Iterable[Params], zero: Params, asked: float) -> Params:
        """The sum of clipped uploads with noise, divided by the number of clients that were asked, or by its
        expectation under Poisson sampling."""
        with self._release() as (books, now, source):
            uplink, most = books.algorithm.uplink, len(books.sizes)
            encoded = ((k, uplink.encode(one, Grant(k, 1, 1, source))) for k, one in enumerate(uploads))
            received = uplink.receive(
                encoded, zero, [1.0] * most, asked, now.central, source.child("server"), each=False
            )
            released: Params = received.mean
            self._publish(books, now, released)
        return released

    def _publish(self, books: Accounts, now: OpenRound, released: Params) -> None:
        digest = hashlib.sha256()
        for name, leaf in tree.named(released):
            digest.update(name.encode())
            digest.update(leaf.contiguous().numpy().data)
        books.publish(now.t, digest.digest())
        write_receipt(self.folder.path, self._phase, books)


def failed(error: BaseException) -> SordinoError:
    """An error without details, to raise in place of one whose text could leak data; the original is logged on this
    machine, as a warning, since NVFlare sends its server what a job logs as an error.
    """
    log.warning("a private round failed", exc_info=error)
    return RunError(
        "the round failed at this client",
        why="what went wrong may tell something of its data, so only the client itself is told",
        fix="look into the log of the client",
        code="failed-at-client",
    )
