"""What a rejector says of the images shown, and of strangers."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.embedding_table import EmbeddingTable
from sightline.errors import InputError
from sightline.evaluation.detection import detection_metrics
from sightline.ood.rejector import Rejector
from sightline.report.curves import Panel
from sightline.report.style import INK, MODELS, drawing, dress
from sightline.training.run_folder import RunFolder

N_BINS = 60


@dataclass(frozen=True, eq=False)
class Outliers:
    """Energies, higher being further out.

    Attributes:
        scorer: its name.
        threshold: energies up to it belong.
        inside: of the images shown.
        outside: of strangers; None where none were given.
        match: the cosine from which on the best result is a match; None where it was not calibrated.
    """

    scorer: str
    threshold: float
    inside: NDArray[np.float64]
    outside: NDArray[np.float64] | None
    match: float | None

    def sentences(self) -> list[str]:
        """What the energies say."""
        kept = float((self.inside <= self.threshold).mean())
        told = [f"{100 * kept:.1f} % of the {len(self.inside):,} images belong, says {self.scorer}."]
        if self.outside is not None:
            auroc = detection_metrics(self.inside, self.outside)["auroc"]
            refused = float((self.outside > self.threshold).mean())
            told.append(f"Of {len(self.outside):,} strangers {100 * refused:.1f} % are refused; AUROC {100 * auroc:.1f} %.")
        return told


def held_rejector(run: Path) -> Path | None:
    """The rejector that lies in the encoder's folder of a run, if there is one."""
    folder = RunFolder(run).encoder / "rejector"
    return folder if folder.is_dir() else None


def read_outliers(folder: Path, table: EmbeddingTable, strangers: Path | None = None) -> Outliers:
    """Ask a rejector about a table.

    Args:
        folder: written by ``sightline ood fit``, or an encoder or gallery that holds one.
        table: of the encoder that it was fitted for.
        strangers: an embedding table of images that do not belong, of the same encoder.
    """
    rejector = Rejector.load(folder, table.fingerprint)
    if rejector.scorer.threshold is None:
        raise InputError(f"{folder}: the rejector has no threshold")
    outside = None
    if strangers is not None:
        others = EmbeddingTable.read(strangers)
        rejector.check_encoder(others.fingerprint, strangers)
        outside = rejector.scorer.score(others.vectors)
    inside = rejector.scorer.score(table.vectors)
    return Outliers(rejector.scorer.name, rejector.scorer.threshold, inside, outside, rejector.similarity_threshold)


def outlier_panel(found: Outliers) -> Panel:
    """Densities of the energies, and the threshold."""
    kinds = {"images shown": found.inside} | ({} if found.outside is None else {"strangers": found.outside})
    everything = np.concatenate([*kinds.values(), [found.threshold]])
    # A few far out would squeeze all others into one bin: they stand in the last one.
    low, high = float(everything.min()), max(float(np.quantile(everything, 0.995)), found.threshold)
    edges = np.linspace(low, high if high > low else low + 1, N_BINS + 1)
    with drawing() as (figure, axes):
        for (colour, line), (name, energies) in zip(MODELS, kinds.items(), strict=False):
            density = np.histogram(np.clip(energies, low, edges[-1]), edges, density=True)[0]
            axes.stairs(density, edges, color=colour, fill=True, alpha=0.15)
            axes.stairs(density, edges, color=colour, linestyle=line, linewidth=1.6, label=name)
        axes.axvline(found.threshold, color=INK, linewidth=1.2, linestyle=":", label="threshold")
        dress(axes, f"Energies by {found.scorer}", "further out →", "density")
        figure.legend(loc="outside lower center", fontsize=9, ncols=len(kinds) + 1)
    return Panel("outliers", "densities of energies: how far out images are, and the threshold", figure)
