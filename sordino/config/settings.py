"""Settings of an experiment: its tables and keys, their types, defaults, ranges and meanings.

The text below a field is its meaning: it stands in the reference, in the JSON Schema and in editors.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidatorFunctionWrapHandler, WrapValidator

from sordino import user_code
from sordino.accounting.claims import is_real
from sordino.errors import COUNT, FRACTION, INSIDE, NOT_NEGATIVE, POSITIVE, SEVERAL, Range

Table = dict[str, Any]
Encoding = Literal["utf-8", "utf-16", "cp1250", "cp1252", "latin-1", "iso-8859-15"]

# pydantic warns that the field `schema` hides a method of its own, which is deprecated and which nothing here calls
warnings.filterwarnings("ignore", r'Field name "schema" in "Data" shadows', UserWarning)


class Section(BaseModel):
    """Base of every table of an experiment: unknown keys and other types are errors, and values do not change."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


def _or_own(source: Any, known: ValidatorFunctionWrapHandler) -> Any:
    """Validator that accepts one of the known names, or a user's own `module:Class`."""
    return source if isinstance(source, str) and user_code.is_own(source) else known(source)


class Data(Section):
    source: Annotated[
        Literal["digits", "images", "folder", "tabular", "quadratic", "synthetic"], WrapValidator(_or_own)
    ] = "digits"
    """source of the examples (`sordino data list` says what each source needs); module:Class: a class of your own"""
    path: str | list[str] | None = None
    """a file or a folder; of tables also a pattern like "clinics/*.csv" or a list of files; of images also the id
    of a data set on the hub"""
    label: str | None = None
    """of a table: the column to predict"""
    group: str | None = None
    """of a table: the column that names the client"""
    key: str | None = None
    """of a table: the column that names the row; the seed and this name alone decide whether the row is held
    back"""
    schema: str | None = None  # type: ignore[assignment]
    """of a table: the file that declares what columns hold, or "learned\""""
    separator: Literal[",", ";", "\t", "|"] | None = None
    """of a table: column separator; none: found from the first line"""
    decimal: Literal[".", ","] | None = None
    """of a table: decimal mark; none: a comma where semicolons separate columns, else a point"""
    encoding: Encoding | None = None
    """of a table: character encoding; none: found from the first line"""
    missing: Literal["refuse", "drop", "fill"] = "refuse"
    """of a table: what becomes of a row that lacks a value; fill: it gets what the schema declares for the
    column"""
    classes: list[str] | None = Field(default=None, min_length=2)
    """of images: the names of all classes, in the order of their numbers; none: found from the images, and then a run
    with real noise guarantees nothing about an image"""
    colours: bool | None = None
    """of images: true converts all to colour, false to grey; none: found from the images, and then a run with real
    noise guarantees nothing about an image"""
    download: bool = False
    """allow downloads from the hub (needs the extra `hub`)"""
    test_fraction: Annotated[float | None, INSIDE] = None
    """the share of examples held back for testing where the source has no test set: 0.2, of synthetic devices
    0.1"""
    merge: bool = False
    """of images: put training and test images together; then each client holds back `test_fraction` of its own"""
    standardise: Literal["fixed", "channel", "pixel", "none"] | None = None
    """fixed: to [-1, 1] by public numbers; channel: by mean and deviation of each channel (of a table: column);
    pixel: by those of each pixel; none: not at all; not set: fixed if ranges are known"""
    augment: Literal["none", "crop_flip"] = "none"
    """of images: shift (4 pixels) and mirror at random"""
    side: Annotated[int | None, Range(least=1, most=4096, whole=True)] = None
    """of images: resize each to this width and height in pixels; folders: 32 by default"""
    fraction: Annotated[float, FRACTION] = 1.0
    """of folders: the share of every class that is used, but at least `at_least` images"""
    at_least: Annotated[int, COUNT] = 20
    """of folders: the fewest images of a class that are used, whatever `fraction` is"""
    train: int | None = None
    """use only this number of training examples, in the proportions of the classes"""
    test: int | None = None
    """use only this number of test examples"""
    probe: int | float | None = None
    """labelled examples of each class that the server keeps before clients get theirs: a number, or a share below
    1"""
    clients: Annotated[int | None, Range(least=1, most=10**6, whole=True)] = None
    """of quadratics: number of clients (10 by default); of synthetic devices: 30"""
    dim: Annotated[int, Range(least=1, most=10**6, whole=True)] = 10
    """of quadratics: number of dimensions"""
    heterogeneity: Annotated[float, NOT_NEGATIVE] = 1.0
    """of quadratics: how much clients differ"""
    alpha: Annotated[float, NOT_NEGATIVE] = 1.0
    """of synthetic devices: how much the true models of clients differ"""
    beta: Annotated[float, NOT_NEGATIVE] = 1.0
    """of synthetic devices: how much their inputs differ"""
    iid: bool = False
    """of synthetic devices: all clients are alike"""
    options: Table = {}
    """of a source of your own: the arguments of its class"""
    largest: Annotated[int | None, SEVERAL] = None
    """of synthetic devices: the most examples that a client has"""


class Privacy(Section):
    epsilon: float | Table | None = None
    """the budget of every client, or a rule for personal budgets; none: no budget, private algorithms need a
    multiplier"""
    delta: float = 1e-5
    """delta of (epsilon, delta)-differential privacy, below 1 / number of protected units"""
    schedule: Table = {"name": "uniform"}
    """how a budget is spread over the rounds in which a client takes part"""
    noise: Literal["counter", "system"] = "counter"
    """counter: a seeded simulation; system: real noise, for real people"""
    ledger: str | None = None
    """the path of a ledger that several runs share; none: one in the run folder"""
    public_sizes: bool = True
    """whether the number of examples of each client may be public"""

    @property
    def real(self) -> bool:
        """True for noise that protects people, not for seeded noise, which can be repeated."""
        return is_real(self.noise)


class SlowClients(Section):
    share: float = 0.0
    """the share of the clients of a round that are slow"""
    policy: Literal["drop", "keep", "late"] = "drop"
    """drop: no answer; keep: less work; late: too late"""


class Chaos(Section):
    """Injected faults: after its budget was reserved, a client of the round may never answer, or answer too late."""

    drop: float = 0.0
    """the probability that it never answers"""
    slow: float = 0.0
    """the probability that it answers too late"""


class EvaluationSettings(Section):
    every: Annotated[int, COUNT] = 1
    """evaluate after every so many rounds"""
    models: list[str] = []
    """names of server models to evaluate; the first gives the headline accuracy. Empty: the model that clients
    get"""
    personal: list[Literal["own", "plain", "finetune", "proto"]] = []
    """ways to personalise; the first gives the headline. Empty: as the algorithm does"""
    scores: list[Literal["auroc", "f1", "calibration_error", "confusion", "rmse", "r2"]] = []
    """of the server's model, beside accuracy, on all test examples together; none: accuracy and loss alone"""
    metrics: list[str] = []
    """functions of your own, module:function, of all logits and labels; each gives one number"""
    final: Annotated[int, Range(least=0, whole=True)] = 10
    """this many last rounds are always evaluated: their mean is a headline number"""


class Network(Section):
    """The network between the server and its client processes. Only time is added; with a timeout, a client that is
    silent misses the round. A list has a number for each client process, in turn.
    """

    latency_ms: Annotated[float | list[float], NOT_NEGATIVE] = 0.0
    """milliseconds that every message takes longer"""
    down_mbit: Annotated[float | list[float] | None, POSITIVE] = None
    """megabits per second to a client process"""
    up_mbit: Annotated[float | list[float] | None, POSITIVE] = None
    """megabits per second from a client process"""
    compute: Annotated[float | list[float], Range(least=1)] = 1.0
    """how many times slower than this machine clients compute"""
    timeout_s: Annotated[float | None, POSITIVE] = None
    """seconds after which a round goes on without silent clients"""

    def of(self, process: int) -> dict[str, Any]:
        """Latency, bandwidths and slowness of one client process."""
        values = self.model_dump(exclude={"timeout_s"})
        return {name: v[process % len(v)] if isinstance(v, list) else v for name, v in values.items()}


class Engine(Section):
    device: str = "cpu"
    """where a run computes: cpu, cuda, cuda:1 and so on, or auto for an accelerator where there is one; with
    "cuda" each client process, or rank, takes the one of its own number"""
    executor: Literal["auto", "loop", "stack", "pooled", "processes", "ranks"] = "auto"
    """how clients are computed: one by one, several in one call, in other processes; auto chooses by the algorithm. All
    give the same result but for rounding"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """floating-point format of training; sums, clipping, noise and evaluation always use fp32 or wider"""
    workers: Annotated[int | Literal["auto"], Range(least=1, most=1024, whole=True)] = "auto"
    """how many cores train clients at once: threads and forks of this process, or client processes; auto: all
    there are"""
    threads: Annotated[int, Range(least=1, most=256, whole=True)] = 1
    """torch threads per process"""
    deadline_s: Annotated[float | None, POSITIVE] = None
    """of `processes`: the most seconds for the work of one client"""
    checkpoint_every: Annotated[int, COUNT] = 1
    """write a checkpoint after every so many rounds"""
    cache: str | None = None
    """a directory to keep candidates that take long to make; none: the user's own cache"""
    network: Network = Network()
    """delays and bandwidths that are put between the server and its client processes"""

    @property
    def client_processes(self) -> bool:
        """True where clients live in processes of their own, to which the server sends messages."""
        return self.executor == "processes"

    @property
    def one_process(self) -> bool:
        """True where all clients share the process of the server."""
        return self.executor not in ("processes", "ranks")


class Experiment(Section):
    """All settings of a run. Its digest leaves out `[engine]`, which changes no result, and the places of files."""

    name: str = "digits"
    """what the run is called in folders and tables; without it, the name of the file"""
    seed: Annotated[int, Range(least=0, below=2**63, whole=True)] = 0
    """the seed of everything that is random in a simulation"""
    rounds: Annotated[int, Range(least=1, most=10**5, whole=True)] = 40
    """how often the server asks clients and changes the model"""
    data: Data = Data()
    """the data set: its source, its columns or images, and its test examples"""
    partition: Table = {"scheme": "dirichlet", "clients": 20, "alpha": 0.5}
    """how the examples are divided among clients"""
    task: Table = {"name": "classification"}
    """the prediction problem: what is predicted, and what its labels are"""
    model: Table = {"name": "logistic"}
    """the network that is trained; `module:Class` names one of your own"""
    loss: Table | None = None
    """a loss of your own in place of cross-entropy: module:function, or module:Class"""
    cohort: Table = {"name": "everyone"}
    """which clients take part in a round"""
    algorithm: Table = {"name": "gaussian_gdp", "clip": 1.0, "lr": 2.0}
    """the training method; `module:Class` names one of your own"""
    read: Table | None = None
    """the reader: how client code may use examples; none: that of the algorithm"""
    uplink: Table | list[Any] | None = None
    """the uplink: what the server sees of uploads; none: that of the algorithm"""
    candidates: Table | None = None
    """images that the server draws from a public source"""
    privacy: Privacy = Privacy(epsilon=8.0)
    """privacy budget, and the source of the noise"""
    stragglers: SlowClients = SlowClients()
    """slow clients, and what becomes of their work"""
    chaos: Chaos = Chaos()
    """faults that are injected to test a federation"""
    evaluation: EvaluationSettings = EvaluationSettings()
    """which scores are measured, and when"""
    callbacks: list[str | Table] = []
    """called after each round, and at the end: module:Class of your own, or tables with a name and its
    arguments"""
    engine: Engine = Engine()
    """how a run is computed, which changes no guarantee"""
    _start: Path | None = PrivateAttr(default=None)  # of a run: where relative paths lead from (see `experiment`)

    def digest(self) -> str:
        """Hash of the settings that decide results, without `[engine]`, callbacks, and where and how files are
        written.
        """
        what = self.model_dump(mode="json", exclude={"engine", "callbacks"})
        del what["privacy"]["ledger"]
        for place in ("path", "separator", "decimal", "encoding"):
            del what["data"][place]
        if what["data"]["schema"] not in (None, "learned"):
            what["data"]["schema"] = "declared"
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


def _without_none(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
