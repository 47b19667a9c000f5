"""Which of the papers' findings hold here: ``python benchmarks/scoreboard.py`` writes it to ``docs/benchmarks.md``.

Reads the finished runs in ``benchmarks/evidence/results`` (no images), the questions in ``benchmarks/findings.toml`` and
the suites that they name. Unfinished runs count as undecided.
"""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from measure import table, write_section

from sightline.evaluation.result import holm
from sightline.studies.cells import Outcome
from sightline.studies.findings import Effect, paired_effect, verdict
from sightline.studies.papers import published_value
from sightline.studies.suite import WITHOUT_EFFECT, Row, Suite, read_suite, recipe_of, slug

HERE = Path(__file__).parent
GAP = "gap at "  # and a batch size: the decomposability gap of AP
RESULTS, PAGE = HERE / "evidence/results", HERE.parent / "docs/benchmarks.md"


def outcomes(suite: Suite, row: Row, data: str) -> dict[int, Outcome]:
    """The finished runs of a row by seed, found by their recipe: no images are looked at."""
    found = {}
    for seed in suite.seeds if row.trained else suite.seeds[:1]:
        recipe = recipe_of(suite, row, Path("manifest"), seed)
        wanted = json.loads(recipe.model_dump_json(exclude=WITHOUT_EFFECT))
        chosen = json.loads(recipe.model_dump_json(exclude=WITHOUT_EFFECT, exclude_defaults=True))
        name = slug(recipe.loss.name) if row.trained else "untrained"
        for file in RESULTS.glob(f"{data}-{name}-seed{seed}-*.json"):
            outcome = Outcome.read(file)
            stored = outcome.about["recipe"]  # of an earlier version, it may lack what is at its default
            if outcome.about["split"] == suite.split and is_within(chosen, stored) and agrees(wanted, stored):
                found[seed] = outcome
    return found


def is_within(wanted: Any, stored: Any) -> bool:
    if isinstance(wanted, dict):
        return all(key in stored and is_within(value, stored[key]) for key, value in wanted.items())
    return bool(wanted == stored)


def agrees(wanted: Any, stored: Any) -> bool:
    if isinstance(wanted, dict):
        return all(agrees(wanted[key], stored[key]) for key in wanted.keys() & stored.keys())
    return bool(wanted == stored)


def relative_gain(finding: dict[str, Any], names: dict[str, str]) -> float:
    """What the papers gained, as a share of what they started from; a decrease is below 0."""
    gains = []
    for one in finding["published"]:
        metric = one.get("metric") or names[finding.get("metric", "map@r")]
        rows = [one["decrease"]] if "decrease" in one else [one["better"], one["base"]]
        values = [published_value(one["table"], one["dataset"], row, metric) for row in rows]
        gains.append(-values[0] / 100 if "decrease" in one else values[0] / values[1] - 1)
    return float(np.mean(gains))


def effect_on(suite: Suite, data: str, finding: dict[str, Any]) -> tuple[Effect, float] | None:
    """The difference in percent, and our base; None unless two seeds have both rows."""
    rows, metric = {row.name: row for row in suite.all_rows}, finding.get("metric", "map@r")
    better, base = (outcomes(suite, rows[finding[side]], data) for side in ("better", "base"))
    seeds = sorted(better.keys() & base.keys())
    if len(seeds) < 2:
        return None
    if metric.startswith(GAP):
        pairs = [[side[seed].about.get("decomposability_gap") for side in (better, base)] for seed in seeds]
        if any(gap is None for pair in pairs for gap in pair):
            return None
        ours, theirs = np.array([[gap[metric.removeprefix(GAP)] for gap in pair] for pair in pairs]).T
        differences, level = np.repeat((ours - theirs)[:, None], 2, 1), theirs.mean()  # of seeds alone: no class has a gap
    else:
        differences = np.array([better[seed].class_means[metric] - base[seed].class_means[metric] for seed in seeds])
        level = np.mean([base[seed].means[metric] for seed in seeds])
    return paired_effect(100 * differences.astype(np.float64)), 100 * float(level)


def scoreboard(findings: list[dict[str, Any]], names: dict[str, str], suites: dict[str, Suite]) -> str:
    """A row for each finding and set; p-values are corrected for all of them together (Holm)."""
    asked = [
        (finding, data.name, effect_on(suites[name], data.name, finding))
        for finding in findings
        for name in finding["suites"]
        if name in suites
        for data in suites[name].data
    ]
    known = [number for number, (*_, found) in enumerate(asked) if found]
    corrected = dict(zip(known, holm(np.array([asked[one][2][0].p_value for one in known])), strict=True)) if known else {}
    lines = []
    for finding in findings:
        places = [number for number, (other, *_) in enumerate(asked) if other is finding]
        gain = relative_gain(finding, names)
        found = [asked[number][2] for number in places]
        is_whole = len(found) > 0 and all(found)
        sizes = [gain * one[1] for one in found if one]
        effects = [one[0] for one in found if one]
        said = verdict(effects, [corrected[number] for number in places], sizes) if is_whole else "undecided"
        for number, one in zip(places, found, strict=True):
            cells = [f"{finding['claim']} ({finding.get('metric', 'map@r')})", asked[number][1], f"{100 * gain:+.1f} %"]
            if one:
                effect, level = one
                low, high = effect.interval
                cells += [f"{gain * level:+.2f}", f"{effect.mean:+.2f} ({low:+.2f} to {high:+.2f})"]
                cells += [f"{corrected[number]:.3f}", f"{effect.detectable:.2f}"]
            else:
                cells += ["", "not run yet", "", ""]
            lines.append([*cells, f"**{said}**"])
    header = ["finding (metric)", "set", "published", "so expected", "found (95 %)", "p", "could see", "verdict"]
    return table(header, lines)


def ledger(suites: dict[str, Suite]) -> str:
    """Runs and processor time of each suite, each run counted once."""
    lines, counted = [], set[str]()
    for name, suite in suites.items():
        wanted = sum(len(suite.seeds) if row.trained else 1 for row in suite.all_rows) * len(suite.data)
        done = [one for data in suite.data for row in suite.all_rows for one in outcomes(suite, row, data.name).values()]
        fresh = {one.about["key"]: one.about["cpu_seconds"] for one in done if one.about["key"] not in counted}
        counted |= fresh.keys()
        seconds = sum(fresh.values())
        each = f"{seconds / len(fresh):.0f}" if fresh else ""
        lines.append([f"`{name}`", f"{len(done)} of {wanted}", each, f"{seconds / 3600:.2f}"])
    total = sum(float(line[-1]) for line in lines)
    return table(["suite", "runs", "seconds each", "core-hours"], [*lines, ["all", "", "", f"{total:.2f}"]])


def main() -> None:
    asked = tomllib.loads((HERE / "findings.toml").read_text())
    files: Iterable[Path] = sorted((HERE / "suites").glob("*.toml"))
    suites = {file.stem: read_suite(file) for file in files if file.stem != "glyphs-smoke"}
    write_section(PAGE, "Scoreboard", scoreboard(asked["findings"], asked["metrics"], suites))
    write_section(PAGE, "Ledger", ledger(suites))


if __name__ == "__main__":
    main()
