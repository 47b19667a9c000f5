"""Write the receipts of docs/ood.md from the cells in `benchmarks/evidence/ood`.

`python benchmarks/ood_tables.py` prints them, `--out docs` writes them.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import table, write_section
from ood_cells import EVIDENCE, HEAT, OF_PART, PLAIN, PRIORS, RECOMMENDED, Cells
from ood_inputs import SETTINGS

HEADING = "What scorers do on real sets"
ROWS = (*PLAIN, *PRIORS, *(key for key in HEAT if key not in PRIORS))
LEAST_GAIN, MOST_LOST, MOST_LOST_FPR, NEAR_BEST = 0.5, 0.1, 0.5, 0.5  # the bars, in points
Found = dict[str, dict]  # by seed


def spread(values: list[float], sign: str = "") -> str:
    """Mean and deviation."""
    mean = f"{np.mean(values):{sign}.1f}"
    return mean + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def of(found: Found, name: str, metric: str) -> list[float]:
    return [seed["sets"][name][metric] for seed in found.values()]


def mean_over_sets(found: Found, metric: str) -> list[float]:
    return [float(np.mean([values[metric] for values in seed["sets"].values()])) for seed in found.values()]


def settings_table() -> str:
    rows = []
    for key, setting in SETTINGS.items():
        if found := Cells(EVIDENCE, key).read("gmm"):
            one = next(iter(found.values()))
            counts = ["–".join(f"{n:,}" for n in _range(found, kind)) for kind in ("dimensions", "fitted", "tested")]
            outside = ", ".join(f"{name} ({far}) {one['sets'][name]['tested']:,}" for name, far in setting.outside.items())
            encoder = f"`{setting.encoder}`: {setting.training}"
            rows.append([setting.inside, encoder, f"{setting.image_size} px", *counts, outside])
    return table(
        ["in-distribution", "encoder and training", "image size", "dimensions", "fitted", "tested", "outliers"], rows
    )


def _range(found: Found, kind: str) -> list[int]:
    """The one number, or the smallest and the largest."""
    return sorted({min(one[kind] for one in found.values()), max(one[kind] for one in found.values())})


def setting_table(key: str) -> str:
    """Every scorer against every outlier set."""
    cells, outside = Cells(EVIDENCE, key), SETTINGS[key].outside
    rows = []
    for scorer in ROWS:
        if found := cells.read(scorer):
            own = [f"{spread(of(found, name, 'auroc'))} / {spread(of(found, name, 'fpr95'))}" for name in outside]
            mean = f"{spread(mean_over_sets(found, 'auroc'))} / {spread(mean_over_sets(found, 'fpr95'))}"
            rows.append([f"`{scorer}`", *own, mean, str(len(found))])
    return table(["scorer", *(f"{name} ({far})" for name, far in outside.items()), "mean", "seeds"], rows)


def gains(key: str, scorer: str, before: str, name: str, metric: str) -> list[float]:
    """What one scorer has over another on a pair, seed by seed."""
    cells = Cells(EVIDENCE, key)
    after, prior = cells.read(scorer), cells.read(before)
    return [after[s]["sets"][name][metric] - prior[s]["sets"][name][metric] for s in after if s in prior]


def pairs() -> list[tuple[str, str]]:
    return [(key, name) for key, setting in SETTINGS.items() for name in setting.outside]


def gains_table(scorers: dict[str, str]) -> str:
    """HEAT less its prior on every pair."""
    rows = []
    for scorer, before in scorers.items():
        for key, name in pairs():
            if auroc := gains(key, scorer, before, name, "auroc"):
                found = Cells(EVIDENCE, key).read(scorer)
                kept = sum(any("kept" in note for note in one["notes"]) for one in found.values())
                both = spread(auroc, "+"), spread(gains(key, scorer, before, name, "fpr95"), "+")
                rows.append([f"`{scorer}`", SETTINGS[key].inside, name, *both, f"{kept} of {len(found)}"])
    return table(["scorer", "in-distribution", "outliers", "AUROC gained", "FPR95 gained", "residual kept"], rows)


def best_prior_gains(metric: str) -> dict[tuple[str, str], float]:
    """By pair, HEAT less the best of its own priors, means over the same seeds."""
    found = {}
    for key, name in pairs():
        cells = Cells(EVIDENCE, key)
        scorer, own = ("heat", ["gmm", "gmm_std", "energy"]) if cells.read("heat") else ("heat-gmm", ["gmm"])
        if cells.read(scorer):
            less = [float(np.mean(gains(key, scorer, one, name, metric))) for one in own]
            found[key, name] = min(less) if metric == "auroc" else max(less)
    return found


def bars() -> str:
    """Whether each bar held, on the pairs that are measured."""
    auroc, fpr = best_prior_gains("auroc"), best_prior_gains("fpr95")
    counts = sorted({len(Cells(EVIDENCE, key).read("heat-gmm")) for key in SETTINGS} - {0})
    seeds = "–".join(map(str, counts[:1] + counts[1:][-1:]))
    gained = {
        (key, name): np.mean(gains(key, "heat-gmm", "gmm", name, "auroc"))
        for key, name in pairs()
        if Cells(EVIDENCE, key).read("heat-gmm")
    }
    short = {pair: short_of_best(*pair) for pair in pairs() if Cells(EVIDENCE, pair[0]).read("recommend")}
    lines = []
    if auroc:
        worst, worst_fpr = min(auroc, key=lambda pair: auroc[pair]), max(fpr, key=lambda pair: fpr[pair])
        held, held_fpr = sum(v >= -MOST_LOST for v in auroc.values()), sum(v <= MOST_LOST_FPR for v in fpr.values())
        lines += [
            "- HEAT (of all three priors where there are feature maps, else of `gmm`) less the best of its own priors, "
            f"mean over {seeds} seeds, {len(auroc)} pairs: {np.mean([*auroc.values()]):+.2f} AUROC and "
            f"{np.mean([*fpr.values()]):+.2f} FPR95 on average.",
            f"- {held} of them lose at most {MOST_LOST} AUROC (worst: {auroc[worst]:+.2f}, {_pair(worst)}), "
            f"{held_fpr} at most {MOST_LOST_FPR} FPR95 (worst: {fpr[worst_fpr]:+.2f}, {_pair(worst_fpr)}).",
            f"- `heat-gmm` gains at least {LEAST_GAIN} AUROC over `gmm` on "
            f"{sum(v >= LEAST_GAIN for v in gained.values())} of {len(gained)} pairs.",
        ]
    if short:
        worst, near = max(short, key=lambda pair: short[pair]), sum(v <= NEAR_BEST for v in short.values())
        lines.append(
            f"- The recommended scorer is within {NEAR_BEST} AUROC of the best of the table on {near} of {len(short)} "
            f"pairs; {np.mean([*short.values()]):.1f} below it on average, {short[worst]:.1f} at worst ({_pair(worst)})."
        )
    return "\n".join(lines)


def _pair(pair: tuple[str, str]) -> str:
    return f"{SETTINGS[pair[0]].inside} against {pair[1]}"


def recommended(key: str) -> dict[str, str]:
    """By seed, what was recommended, as a row of the table has it."""
    return {seed: _shown(one["name"], one["options"]) for seed, one in Cells(EVIDENCE, key).read("recommend").items()}


def _shown(name: str, options: dict[str, object]) -> str:
    if name == "composition":
        return "mean of " + ", ".join(_shown(member.pop("name"), member) for member in map(dict, options["scorers"]))
    shown = name + "".join(f", {option}={value}" for option, value in options.items())
    return "heat-gmm" if shown == "heat" else shown


def short_of_best(key: str, name: str) -> float:
    """AUROC of the best scorer of the table, by its mean over seeds, less that of the recommended ones."""
    cells, chosen = Cells(EVIDENCE, key), recommended(key)
    means = {row: np.mean(of(cells.read(row), name, "auroc")) for row in ROWS if cells.read(row)}
    best = cells.read(max(means, key=lambda row: means[row]))
    measured = {seed: cells.read(row).get(seed) for seed, row in chosen.items()} | cells.read(RECOMMENDED)
    both = [
        (best[seed]["sets"][name]["auroc"], one["sets"][name]["auroc"])
        for seed, one in measured.items()
        if seed in best and one is not None
    ]
    return float(np.mean([a - b for a, b in both])) if both else 0.0


def recommend_table() -> str:
    rows = []
    for key, name in pairs():
        if chosen := recommended(key):
            cells = Cells(EVIDENCE, key)
            means = {row: float(np.mean(of(cells.read(row), name, "auroc"))) for row in ROWS if cells.read(row)}
            best = max(means, key=lambda row: means[row])
            names = ", ".join(f"`{row}` ({[*chosen.values()].count(row)})" for row in sorted(set(chosen.values())))
            rows.append(
                [SETTINGS[key].inside, name, names, f"`{best}` {means[best]:.1f}", f"{short_of_best(key, name):.1f}"]
            )
    return table(["in-distribution", "outliers", "recommended (seeds)", "best of the table", "AUROC below it"], rows)


def trainers_table() -> str:
    """Both trainers, on the seeds that both have."""
    rows = []
    for key, setting in SETTINGS.items():
        cells = Cells(EVIDENCE, key)
        for scorer in ("heat-gmm", *OF_PART.values()):
            if (found := cells.read(scorer)) and scorer in HEAT:
                seconds = [one["seconds"] for one in found.values() if one["seconds"]]
                aurocs = spread(mean_over_sets(found, "auroc"))
                gmm = {seed: one for seed, one in cells.read("gmm").items() if seed in found}
                shown = f"{np.mean(seconds):.0f}" if seconds else "with `heat`"
                rows.append(
                    [setting.inside, f"`{scorer}`", spread(mean_over_sets(gmm, "auroc")), aurocs, shown, str(len(found))]
                )
    return table(["in-distribution", "energy", "`gmm`, mean AUROC", "mean AUROC", "fit, s of one core", "seeds"], rows)


def total_hours() -> float:
    seconds = [
        one.get("seconds", 0) for file in EVIDENCE.glob("*.json") for one in json.loads(file.read_text())["seeds"].values()
    ]
    return float(np.sum(seconds)) / 3600


def page() -> str:
    parts: list[tuple[str, Callable[[], str]]] = [
        ("### The bars", bars),
        ("### HEAT less its prior", lambda: gains_table(PRIORS)),
        ("### What `recommend` picks", recommend_table),
        ("### Trainers", trainers_table),
    ]
    text = (
        "Made by `python benchmarks/ood_tables.py --out docs` from the cells in `benchmarks/evidence/ood`, each a scorer "
        "on one in-distribution set; how they are made: `benchmarks/ood_networks.py`, `ood_inputs.py`, `ood_cells.py`. "
        "AUROC / FPR95 in percent, mean and deviation over seeds. A seed draws the classes (of a classifier: the images) "
        "that are tested, and is that of the scorer; the encoder is the same. Vectors of more than 256 dimensions are "
        "reduced to the first 256 principal components of the images fitted. Options are the defaults, nothing was "
        "chosen on outliers. CIFAR-10's images have 32 pixels: enlarged for an encoder of larger ones, that alone tells "
        f"them apart. Fitting took {total_hours():.1f} hours of one core.\n\n{settings_table()}"
    )
    for heading, make in parts:
        text += f"\n\n{heading}\n\n{make()}"
    for key, setting in SETTINGS.items():
        if Cells(EVIDENCE, key).read("gmm"):
            text += f"\n\n### In-distribution: {setting.inside} (`{setting.encoder}`)\n\n{setting_table(key)}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="folder of ood.md")
    options = parser.parse_args()
    if options.out is None:
        print(page())  # noqa: T201
    else:
        write_section(options.out / "ood.md", HEADING, page())


if __name__ == "__main__":
    main()
