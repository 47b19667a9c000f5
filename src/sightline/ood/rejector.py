"""A calibrated scorer bound to one encoder: is a query out-of-distribution, and does it have a match?"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import floor
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError

from sightline.data.embedding_table import EmbeddingTable
from sightline.errors import InputError, choose
from sightline.files import check_folder, read_json_object, recovered_folder, replaced_folder
from sightline.ood.heat import ALL_PRIORS
from sightline.ood.label_thresholds import LabelThresholds, fit_label_thresholds
from sightline.ood.recommend import recommend
from sightline.ood.scorer import Inputs, Scorer, check_tpr, create_named, load
from sightline.ranking.similarity import score_blocks

FORMAT = 1
FOLDER = "rejector"  # inside an encoder's or a gallery's folder
SETTINGS_FILE = "rejector.json"
HELD_OUT = 0.2  # share of a table's classes or images to calibrate on if no other table is given
AUTO = "auto"
GIVEN = ("vectors", "features", "feature maps")  # what an encoder gives: no logits
FEWEST_CLASSES = 20  # with fewer, a fifth of them are too few to stand for others
BLOCK_ELEMENTS = 1 << 24
Policy = Literal["reject", "flag", "ignore"]
HoldOut = Literal["auto", "classes", "images"]
HOLD_OUTS: dict[str, HoldOut] = {by: by for by in get_args(HoldOut)}
POLICIES: dict[str, Policy] = {policy: policy for policy in get_args(Policy)}


@dataclass(frozen=True)
class Verdict:
    """The rejector's verdict on one query.

    Attributes:
        belongs: whether it is in distribution: ``energy`` is at most ``threshold``, or the query is an item of the gallery.
        energy: how far out of distribution it is; None for an item of the gallery if the scorer takes more than vectors.
        threshold: calibrated to accept the stated share of in-distribution images.
        matched: whether the gallery has a match: ``similarity`` is at least ``similarity_threshold``; None if either is
            unknown.
        similarity: to the best item of the gallery.
        similarity_threshold: calibrated to recognise the stated share of queries that have a match.
        quantile: the share of the calibration images with a lower energy, in [0, 1]; None if unknown, as for rejectors
            saved by an earlier version.
    """

    belongs: bool
    energy: float | None
    threshold: float
    matched: bool | None
    similarity: float | None
    similarity_threshold: float | None
    quantile: float | None

    @property
    def typicality(self) -> str:
        """``quantile`` in words, as the page has it: energies differ in scale from scorer to scorer."""
        if self.quantile is None:
            return "less typical than almost all images of the collection"
        if self.quantile >= 1:
            return "less typical than every image that the rejector was calibrated on"
        percent = f"{floor(1000 * self.quantile) / 10:g} %"
        return f"less typical than {percent} of the images that the rejector was calibrated on"


def withholds(policy: str | None, verdict: Verdict | None) -> bool:
    """Whether a query gets no results: the policy is ``reject`` and the query is out-of-distribution."""
    return policy == "reject" and verdict is not None and not verdict.belongs


@dataclass
class Rejector:
    """Detects out-of-distribution queries; see :func:`fit_rejector`.

    Attributes:
        scorer: fitted and calibrated; see :attr:`needs`.
        fingerprint: of the encoder whose vectors it judges.
        policy: for out-of-distribution queries: ``reject`` returns no results, ``flag`` returns them with a remark,
            ``ignore`` without.
        similarity_threshold: below it the best item is no match; None if it was fitted without a gallery.
        similarity_acceptance: the share of queries with a match that reach it.
        generation: of the gallery that it is in and was fitted on; None if it was fitted on a table.
        advice: why its scorer was recommended; None if it was chosen by name.
        by_label: thresholds of labels, which replace the scorer's; None for one threshold.
    """

    scorer: Scorer
    fingerprint: str
    policy: Policy = "reject"
    similarity_threshold: float | None = None
    similarity_acceptance: float | None = None
    generation: int | None = None
    advice: str | None = None
    by_label: LabelThresholds | None = None

    def __post_init__(self) -> None:
        check_inputs(self.scorer)
        if self.scorer.threshold is None:
            raise InputError(f"scorer {self.scorer.name!r} has no threshold; calibrate it on held-out items first")
        choose(POLICIES, self.policy, "policy")
        if not isinstance(self.similarity_threshold, float | int | None):
            raise InputError(f"similarity_threshold must be a number or None, got {self.similarity_threshold!r}")

    @property
    def needs(self) -> tuple[str, ...]:
        """What it takes of each query, by the names of :meth:`Encoder.scorer_inputs`; most take ``vectors`` alone."""
        own = self.scorer.needs
        return own if self.by_label is None or "vectors" in own else (*own, "vectors")

    @property
    def needs_images(self) -> bool:
        """Whether vectors do not suffice: queries must be images, encoded with the inputs of scorers."""
        return self.needs != ("vectors",)

    def judge(
        self, inputs: Inputs, best_scores: ArrayLike | None = None, is_item: ArrayLike | None = None
    ) -> list[Verdict]:
        """One verdict for each query.

        Args:
            inputs: (Q, D) vectors of the rejector's encoder; or a dictionary of all that it :attr:`needs`.
            best_scores: (Q,) the similarity of each query to the best item of the gallery.
            is_item: (Q,) bool, the queries that are items of the gallery, from
                :func:`~sightline.gallery.query.best_matches`: they belong, even if added after the rejector was fitted.
        """
        given = inputs if isinstance(inputs, Mapping) else {"vectors": inputs}
        if missing := [kind for kind in self.needs if kind not in given]:
            raise InputError(
                f"the rejector's scorer {self.scorer.name!r} takes {' and '.join(missing)} as well as vectors: queries "
                "must be images, or what Encoder.scorer_inputs returns of them"
            )
        energies = self.scorer.score({kind: given[kind] for kind in self.scorer.needs})
        best = [None] * len(energies) if best_scores is None else np.ravel(best_scores).astype(float).tolist()
        if len(best) != len(energies):
            raise InputError(f"best_scores must have one value for each of the {len(energies)} queries, got {len(best)}")
        items = [False] * len(energies) if is_item is None else np.asarray(is_item, bool).tolist()
        common = cast(float, self.scorer.threshold)
        limits = [common] * len(energies) if self.by_label is None else self.by_label.of(given["vectors"], common).tolist()
        known = self.scorer.quantiles(energies)
        quantiles = [None] * len(energies) if known is None else known.tolist()
        return [
            Verdict(energy <= limit or item, energy, limit, *self._matched(score), quantile)
            for energy, limit, score, item, quantile in zip(energies.tolist(), limits, best, items, quantiles, strict=True)
        ]

    def of_item(self, best_score: float) -> Verdict:
        """The verdict on an item of the gallery that is known by its vector alone: it belongs."""
        return Verdict(True, None, cast(float, self.scorer.threshold), *self._matched(best_score), None)

    def _matched(self, score: float | None) -> tuple[bool | None, float | None, float | None]:
        limit = self.similarity_threshold
        return None if score is None or limit is None else score >= limit, score, limit

    def energies(self, table: EmbeddingTable) -> NDArray[np.float64]:
        """(N,) of a table's images; refused if it lacks what the scorer needs."""
        return self.scorer.score(table.scorer_inputs(self.scorer.needs))

    def thresholds(self, table: EmbeddingTable) -> NDArray[np.float64]:
        """(N,) energies above which a table's images are out-of-distribution."""
        common = cast(float, self.scorer.threshold)
        return np.full(len(table), common) if self.by_label is None else self.by_label.of(table.vectors, common)

    def check_encoder(self, fingerprint: str, where: object = "rejector") -> None:
        """Raise InputError for an encoder, gallery or table with another fingerprint."""
        if fingerprint != self.fingerprint:
            raise InputError(
                f"{where}: the rejector was fitted on vectors of encoder {self.fingerprint}, these are from {fingerprint}; "
                "fit another with `sightline ood fit`"
            )

    def save(self, folder: Path | str) -> Path:
        """Write the rejector to a folder, which appears complete or not at all."""
        with replaced_folder(Path(folder), SETTINGS_FILE, "a rejector") as scratch:
            self.scorer.write(scratch)
            described = {
                field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("scorer", "by_label")
            }
            if self.by_label is not None:
                described["by_label"] = self.by_label.write(scratch)
            text = json.dumps({"format": FORMAT} | described, indent=2)
            (scratch / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")
        return Path(folder)

    @classmethod
    def load(cls, folder: Path | str, fingerprint: str | None = None, *, trust: bool = False) -> "Rejector":
        """Load the rejector that :meth:`save` wrote to a folder, or to ``rejector`` inside it.

        Args:
            folder: its own, or that of an encoder or gallery that contains one.
            fingerprint: of the encoder in use; raises InputError if the rejector has another.
            trust: allow importing a scorer named ``package.module:Name``.
        """
        places = (recovered_folder(place) for place in (Path(folder), Path(folder) / FOLDER))
        held = next((place for place in places if (place / SETTINGS_FILE).is_file()), None)
        if held is None:
            raise InputError(f"{folder}: not a rejector: it has no {SETTINGS_FILE}")
        described = read_json_object(held / SETTINGS_FILE, held)
        if (found := described.pop("format", None)) != FORMAT:
            raise InputError(f"{held}: the rejector's format must be {FORMAT}, found {found!r}")
        scorer = load(held, trust=trust)
        try:
            if described.get("by_label") is not None:
                described["by_label"] = LabelThresholds.read(held, described["by_label"])
            rejector = cls(scorer, **described)
        except (ValueError, TypeError, KeyError, OSError, SafetensorError) as error:
            raise InputError(f"{held / SETTINGS_FILE}: not the settings of a rejector: {error}") from error
        if fingerprint is not None:
            rejector.check_encoder(fingerprint, held)
        return rejector


def check_inputs(scorer: Scorer) -> None:
    """Raise InputError for a scorer of logits, which no encoder gives."""
    if unknown := [kind for kind in scorer.needs if kind not in GIVEN]:
        raise InputError(
            f"the scorer of a rejector must take what an encoder gives ({', '.join(GIVEN)}), {scorer.name!r} takes "
            f"{' and '.join(unknown)}"
        )


def wants_images(scorer: str, options: Mapping[str, object], has_feature_maps: bool, *, trust: bool = False) -> bool:
    """Whether :func:`fit_rejector` is to be given a table with inputs of scorers.

    Args:
        scorer: by name; ``auto`` compares scorers of vectors if it is given vectors alone.
        options: the scorer's.
        has_feature_maps: whether the encoder has what ``heat`` takes without ``priors``.
        trust: allow importing a scorer named ``package.module:Name``.
    """
    if scorer == AUTO:
        return False
    if scorer == "heat" and "priors" not in options:
        return has_feature_maps
    return create_named(scorer, options, trust=trust).needs != ("vectors",)


def check_place(folder: Path | str) -> None:
    """Raise the InputError of :meth:`Rejector.save`, if any: to be called before a long fit."""
    check_folder(Path(folder), SETTINGS_FILE, "a rejector")


def fit_rejector(
    table: EmbeddingTable,
    scorer: str = AUTO,
    tpr: float = 0.95,
    held_out: EmbeddingTable | None = None,
    gallery: EmbeddingTable | None = None,
    policy: str = "reject",
    level: int = 0,
    seed: int = 0,
    show_progress: bool = False,
    *,
    hold_out: HoldOut = "auto",
    per_label: int | None = None,
    trust: bool = False,
    **options: object,
) -> Rejector:
    """Fit a scorer on a table's images and calibrate it on images it was not fitted on.

    Args:
        table: in-distribution images; with the inputs of scorers, if the scorer takes more than vectors.
        scorer: one of :func:`~sightline.ood.list_scorers` that takes what encoders give; ``auto`` for what
            :func:`~sightline.ood.recommend.recommend` finds. ``heat`` without ``priors`` has ``ALL_PRIORS`` if the table
            has what they take, else ``gmm``.
        tpr: the share of in-distribution images to accept, and of queries with a match to recognise.
        held_out: in-distribution images to calibrate on; None for a part of the table, as ``hold_out`` says.
        gallery: what queries are searched in, to calibrate the similarity threshold of a match; None for no threshold.
        policy: ``reject``, ``flag`` or ``ignore``.
        level: label level to fit on; 0 is the finest.
        seed: random seed of the held-out part and of the scorer.
        show_progress: draw a progress bar.
        hold_out: a random fifth of the ``classes`` of the finest level (for queries of classes that the collection lacks)
            or of the ``images``; ``auto``: of the classes if there are 20 or more of at least 2 images on average.
        per_label: label level whose labels get thresholds of their own, see :class:`LabelThresholds`; None for one of all.
        trust: allow importing a scorer named ``package.module:Name``.
        options: the scorer's.
    """
    check_tpr(tpr)  # all checks before a long fit
    policy = choose(POLICIES, policy, "policy")
    hold_out = choose(HOLD_OUTS, hold_out, "hold_out")
    if scorer == AUTO and options:
        raise InputError(f"option {min(options)!r} requires a scorer by name, got scorer 'auto'")
    if scorer == "heat" and table.inputs:
        options = {"priors": list(ALL_PRIORS)} | options
    made = create_named("gmm" if scorer == AUTO else scorer, options, trust=trust, seed=seed)
    check_inputs(made)
    for one in (table, held_out):
        if one is not None:
            one.scorer_inputs(made.needs)
    _check_tables(table, held_out, gallery)
    n_levels = _checked_levels(table, level, per_label)
    if held_out is None:
        table, held_out = _hold_out(table, seed, hold_out)
    labels = table.manifest.labels()[:, level] if n_levels else None
    limit = None if gallery is None else match_threshold(held_out, gallery, tpr)
    advice = recommend(table, seed, show_progress, level) if scorer == AUTO else None
    if advice is not None:
        made = create_named(advice.name, advice.options, seed=seed)
    made.fit(table.scorer_inputs(made.needs), labels, show_progress=show_progress)
    made.calibrate(held_out.scorer_inputs(made.needs), tpr)
    reason = None if advice is None else advice.reason
    rejector = Rejector(made, table.fingerprint, policy, limit, None if gallery is None else tpr, advice=reason)
    if per_label is not None:
        of_fitted = table.vectors, table.manifest.labels()[:, per_label]
        of_held_out = held_out.vectors, rejector.energies(held_out)
        labelled = table.manifest.class_names(per_label)
        rejector.by_label = fit_label_thresholds(of_fitted, of_held_out, labelled, per_label, tpr)
    return rejector


def _checked_levels(table: EmbeddingTable, level: int, per_label: int | None) -> int:
    """The number of label levels; raises InputError unless the table has those asked for."""
    n_levels = table.manifest.n_levels
    asked = {"level": (level, max(1, n_levels))} | ({} if per_label is None else {"per_label": (per_label, n_levels)})
    for name, (given, n_valid) in asked.items():
        if given not in range(n_valid):
            raise InputError(f"{name} must be below the number of label levels, {n_levels}, got {given}")
    return n_levels


def _check_tables(table: EmbeddingTable, *others: EmbeddingTable | None) -> None:
    """Raise InputError unless all have finite vectors of one encoder."""
    for other in (table, *others):
        if other is not None:
            other.check_finite()
            if other.fingerprint != table.fingerprint or not len(other):
                found = f"{len(other)} vectors of encoder {other.fingerprint}"
                raise InputError(
                    f"{other.manifest.source}: must have vectors of encoder {table.fingerprint}, found {found}"
                )


def match_threshold(queries: EmbeddingTable, gallery: EmbeddingTable, tpr: float = 0.95) -> float:
    """The similarity that a share ``tpr`` of queries reach with an item of their own class.

    A query is not compared with itself (by id); queries without an item of their class are left out.
    """
    if not queries.manifest.n_levels or not gallery.manifest.n_levels:
        raise InputError("the similarity threshold requires labels in both tables")
    names = [table.manifest.table["label_0"].cast(pl.String).to_numpy() for table in (queries, gallery)]
    ids = np.array(queries.ids, object), np.array(gallery.ids, object)
    blocks = score_blocks(torch.from_numpy(queries.vectors), torch.from_numpy(gallery.vectors), BLOCK_ELEMENTS)
    best = [
        np.where((names[0][rows, None] == names[1]) & (ids[0][rows, None] != ids[1]), scores.numpy(), -np.inf).max(1)
        for rows, scores in blocks
    ]
    found: NDArray[np.float64] = np.concatenate(best)
    found = found[np.isfinite(found)]
    if not len(found):
        raise InputError(f"no query of {queries.manifest.source} has an image of its class in {gallery.manifest.source}")
    return float(np.quantile(found, 1 - tpr, method="lower"))


def _hold_out(table: EmbeddingTable, seed: int, by: str) -> tuple[EmbeddingTable, EmbeddingTable]:
    """A part to fit on, and a held-out part: other classes of the finest level, or other images of all."""
    n_images = len(table)
    if n_images < 2:
        raise InputError(f"{table.manifest.source}: must have 2 images or more, one to calibrate on, found {n_images}")
    codes = np.unique(table.manifest.labels()[:, 0], return_inverse=True)[1] if table.manifest.n_levels else None
    n_classes = 0 if codes is None else int(codes.max()) + 1
    if by == "classes" and n_classes < 2:
        raise InputError(f"{table.manifest.source}: must have 2 classes or more to hold some out, found {n_classes}")
    if by == "images" or (by == "auto" and not FEWEST_CLASSES <= n_classes <= n_images / 2):
        codes = None
    groups = np.arange(n_images) if codes is None else codes
    n_groups = int(groups.max()) + 1
    drawn = np.random.default_rng(seed).permutation(n_groups)[: max(1, round(HELD_OUT * n_groups))]
    held_out = pl.lit(pl.Series(np.isin(groups, drawn)))
    return table.where(~held_out), table.where(held_out)
