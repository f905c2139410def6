"""Disclosures of what private rows decide without noise, such as classes, scaling or partition: a receipt must state
them. Before a run a site may announce nothing of its rows but their number; anything more is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino import user_code
from sordino.config import Data, Experiment
from sordino.data.dataset import CLASSES, COLOURS, DRAWN, STRATIFIED, Dataset, Stats
from sordino.data.schema import BYTES, TableSchema, TokenColumn
from sordino.errors import UnsoundGuarantee
from sordino.partition import Natural
from sordino.privacy.readers import SIZES
from sordino.runs.declared_data import INVENTED, LEARNED, DeclaredData

COUNTED = "the number of classes was learned from the labels of all rows"
COLUMNS = "types and levels of the table's columns were learned from all rows: one row can change the model's shape"
DRAFTED = "the table's schema is an unconfirmed draft made from the rows"
DEALT = "the client of each row follows from its position among all rows, which is treated as public"
PARTITION = "the client of each example was drawn from all labels: the partition is treated as public"
RESERVED = (
    "the examples that are used, and those that the server keeps, were drawn from all labels: the choice is public"
)
CHOSEN = (STRATIFIED, DRAWN, PARTITION, RESERVED)  # drawn from secret labels; places of rows are no secret
SEVERAL = "an example is one row: a person with several rows (those of one {}) is not protected as a whole"
ONE_TEXT = "an example is one row with the text in it: whoever wrote several is not protected as a whole"
TOKENIZER = "the tokenizer of {} was trained on public text: its tokens show what it was trained on"
SCALING = "inputs are scaled by the mean and deviation of all training data, whose release is not accounted for"
TRUSTED = "{} is user code, trusted not to keep or send the data that it sees, and to fail at none of them"
ALONE = (
    "each example of {} was made from one record alone: no noise covers what was computed from several, such as their "
    "mean or maximum"
)
COPIES = "a record from which several examples were made, such as windows or copies, is not protected as a whole"
HOLDERS = "which clients hold an example to train on is public"
FITS = (
    "that the run began is public: a run is refused if a row does not fit the schema, if more than a fifth of a "
    "column's values at one owner are outside it, if a key has more rows than it allows, or if two names of keys or "
    "clients look alike"
)
READS = (
    "that the run began is public: a run is refused if a row or an image cannot be read or has no declared label, or "
    "if two names look alike"
)
DECLARED = (
    "what is declared of the rows (columns, ranges, levels, classes) is public, and was chosen without looking at them"
)
WARM = "the initial values of {} are public: the data that they were made from are not accounted for"
BROUGHT = "{} are public: the data that they are, or were made from, are not accounted for"


@dataclass(frozen=True)
class Disclosures:
    """Choices that rows decided before any noise, as sentences. Guarantees hold only between neighbouring data sets
    that agree on these choices.
    """

    source: DeclaredData
    loaded: Dataset
    pooled: bool  # the server keeps public examples out of the training set

    @property
    def scaled_by_rows(self) -> bool:
        """True where inputs are scaled by a mean and a deviation of examples, which no noise covers."""
        return self.source.scaling in ("channel", "pixel")

    @property
    def learned_from_rows(self) -> tuple[str, ...]:
        """Shapes, classes and scales that were inferred from the data instead of being declared."""
        source, schema, own = self.source, self.source.schema, self.source.own
        if source.data.source in INVENTED:
            return ()
        found: tuple[str, ...] = ()
        if source.data.source == "tabular":
            found = (COLUMNS, CLASSES) if schema is None else (DRAFTED,) if schema.draft else ()
        if own is not None and own.classes is None:
            found = (COUNTED,)
        counted = () if source.problem.outcome is None else (CLASSES, COUNTED)
        scaled = (SCALING,) if self.scaled_by_rows else ()
        return (*scaled, *self.loaded.learned, *(sentence for sentence in found if sentence not in counted))

    @property
    def drawn_from_labels(self) -> tuple[str, ...]:
        """Choices that depend on the labels or the order of all examples, such as the partition."""
        source, data = self.source, self.source.data
        if data.source in INVENTED:
            return ()
        chosen = [*self.loaded.taken_as_public]
        if source.scheme.reads_labels:
            chosen.append(PARTITION)
        elif not (source.known_to_all or isinstance(source.scheme, Natural)):
            chosen.append(DEALT)
        if any(part is not None for part in (data.train, data.test, data.probe)) or self.pooled:
            chosen.append(RESERVED)
        return tuple(chosen)

    @property
    def void(self) -> tuple[str, ...]:
        """Reasons why guarantees for single examples do not hold: with real noise, each choice that secret rows decide
        without noise.
        """
        if not self.source.experiment.privacy.real:
            return ()
        chosen = (
            () if self.source.known_to_all else (sentence for sentence in self.drawn_from_labels if sentence in CHOSEN)
        )
        return (*self.learned_from_rows, *chosen)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions of all guarantees that follow from how the data were read and which user code runs."""
        made, data, void = self.source.experiment, self.source.data, self.void
        shown = made.algorithm, made.model, made.partition, made.loss, made.evaluation.metrics, data.source
        code = dict.fromkeys(user_code.named(shown))
        trusted = tuple(TRUSTED.format(name) for name in code if name != user_code.ROWS)
        secret = made.privacy.real and not self.source.known_to_all
        named = data.source if self.source.own is not None else ""
        rows = named or ("the table" if data.source == "tabular" else "the images")
        own = (ALONE.format(rows),) if secret or named else ()
        sizes = ((SIZES if made.privacy.public_sizes else HOLDERS),) if secret else ()
        name = str(made.model.get("name"))
        warm = (WARM.format(name),) if user_code.is_own(name) else ()
        taken = (sentence for sentence in (*self.learned_from_rows, *self.drawn_from_labels) if sentence not in void)
        unsaid = data.key not in (None, data.group) and self.source.rows_per_key == 1
        several = (SEVERAL.format(data.key),) if unsaid else (ONE_TEXT,) if self.source.problem.columns == () else ()
        copies = (COPIES,) if own and data.key is None else ()
        texts = {} if self.source.schema is None else self.source.schema.features
        trained = (name for name, one in texts.items() if isinstance(one, TokenColumn) and one.tokenizer != BYTES)
        unread = (READS,) if secret else ()
        fits = unread if self.source.schema is None else (FITS,)
        of_rows = (*several, *taken, *sizes, *fits, *(DECLARED,) * secret, *map(TOKENIZER.format, trained), *own)
        return (*of_rows, *copies, *trusted, *warm, *brought(made))


def brought(made: Experiment) -> tuple[str, ...]:
    """Assumptions about what the server has of its own, and makes models or choices of that all clients see."""
    given = {
        "the weights in algorithm.extractor": made.algorithm.get("extractor"),
        "the candidates (images of the server)": made.candidates,
        "the examples by which the server ranks models": made.data.probe,
    }
    return tuple(BROUGHT.format(what) for what, value in given.items() if value is not None)


# announcements of sites -----------------------------------------------------------------------------------------------


def declared_scale(
    data: Data, kind: str, shape: tuple[int, ...], found: TableSchema | None, reach: tuple[float, float] | None
) -> Stats:
    """Mean and deviation that scale inputs, from what is declared alone: the schema `found` of a table, the `reach` of
    a user's own rows.
    """
    check_announced(data)
    if found is not None:
        each = [one.scale for one in found.features.values() for _ in range(one.width)]
        return tuple(middle for middle, _ in each), tuple(half for _, half in each)
    if data.source in INVENTED or data.standardise == "none":
        middle, half = 0.0, 1.0
    elif kind == "image" and (reach is not None or not user_code.is_own(data.source)):
        middle, half = 0.5, 0.5
    elif reach is not None:
        middle, half = (reach[0] + reach[1]) / 2, (reach[1] - reach[0]) / 2 or 1.0
    else:
        raise _announces(SCALING)
    return (middle,) * shape[-1], (half,) * shape[-1]


def check_announced(data: Data, learned: tuple[str, ...] = ()) -> None:
    """Refuses, before anything leaves a site, an announcement of its data that would tell more of its rows than their
    number. `learned`: what was inferred from rows, where that is known; the settings are checked in any case.
    """
    sentences = list(learned)
    if data.standardise in ("channel", "pixel"):
        sentences.append(SCALING)
    if data.source == "tabular" and data.schema in (None, LEARNED):
        sentences.append(COLUMNS)
    if data.source in ("folder", "images"):
        sentences += [why for declared, why in ((data.classes, CLASSES), (data.colours, COLOURS)) if declared is None]
    if sentences:
        raise _announces("; ".join(dict.fromkeys(sentences)))


def _announces(what: str) -> UnsoundGuarantee:
    return UnsoundGuarantee(
        f"announcements of sites would be made of their rows: {what}",
        why="a site may announce only declarations and numbers of rows; a mean with a row and the mean without it "
        "give the row back to every reader of both files",
        fix="declare it: of a table a schema, of images data.classes and data.colours, of a source of your own classes "
        'and reach; and leave data.standardise out, or set it to "fixed"',
        code="announces-rows",
    )
