"""Settings in which the papers and their released code differ, by name: published runs can be repeated either way."""

from dataclasses import dataclass

from sightline.errors import choose
from sightline.ranking.ranks import SupStep


@dataclass(frozen=True)
class Preset:
    """What a paper's formula leaves open or its code does otherwise.

    Attributes:
        jump: of :class:`~sightline.ranking.ranks.SupStep`, like ``offset`` and ``strict``.
        offset: value just beyond delta.
        strict: an equal score gets no jump.
        include_self: a query is an item of its own list, of score 1 and relevant.
        reduction: of :func:`~sightline.losses.calibration_loss`.
    """

    jump: float = 0.5
    offset: float | None = None
    strict: bool = False
    include_self: bool = False
    reduction: str = "mean"


PRESETS = {
    "paper": Preset(),
    # SupRank, ROADMAP and HAPPIER as released, on every set but iNaturalist: the step drops by 0.053 at delta.
    "released-code": Preset(offset=1.44, strict=True, include_self=True, reduction="nonzero"),
    # Their iNaturalist configurations: no jump, so no upper bound between 0 and delta.
    "released-code-inaturalist": Preset(jump=0.0, offset=1.0, strict=True, include_self=True, reduction="nonzero"),
}


def preset_named(name: str) -> Preset:
    """The preset of that name; the nearest is suggested for one that does not exist."""
    return choose(PRESETS, name, "preset")


def sup_step(tau: float, rho: float, delta: float | None, preset: str) -> SupStep:
    """The step of these settings and what the preset adds."""
    chosen = preset_named(preset)
    return SupStep(tau, rho, delta, chosen.jump, chosen.offset, chosen.strict)


def released(preset: str, given: float | None, value: float) -> float | None:
    """What was given; where nothing was, the value of the released code if that is to be repeated.

    Example:
        >>> released("released-code", None, 0.5), released("released-code", 0.3, 0.5), released("paper", None, 0.5)
        (0.5, 0.3, None)
    """
    return value if given is None and preset != "paper" else given
