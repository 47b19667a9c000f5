"""Draw `ood_caught.png` of docs/ood.md: outliers that `gmm` on emoji is surest of, and those that it takes for emoji.

`python benchmarks/ood_pictures.py --sets sets --work work --out docs`, with the folders of `ood_inputs.py`. Only sets whose
pictures may be shown: Openclipart is in the public domain, glyphs are drawn from free fonts.
"""

import argparse
from pathlib import Path

from matplotlib.figure import Figure
from ood_cells import Inputs
from ood_inputs import MOST_OUTSIDE, SETTINGS, drawn, manifest_of
from PIL import Image

from sightline import ood

SHOWN = {"openclipart": "clip art", "glyphs": "glyphs"}
N_PICTURES, SIDE = 10, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the picture")
    options = parser.parse_args()
    inputs = Inputs(options.work / "inputs" / "emoji", SETTINGS["emoji"], 0)
    scorer = ood.create("gmm").fit(inputs.fitted["vectors"], inputs.labels)
    scorer.calibrate(inputs.tested["vectors"])
    figure = Figure(figsize=(N_PICTURES, 1.25 * 2 * len(SHOWN)), layout="constrained")
    rows = iter(figure.subplots(2 * len(SHOWN), N_PICTURES))
    for name, called in SHOWN.items():
        paths, energies = (
            drawn(manifest_of(options.sets, name), MOST_OUTSIDE).paths(),
            scorer.score(inputs.outside[name]["vectors"]),
        )
        order, caught = energies.argsort(), 100 * float(scorer.is_outlier(inputs.outside[name]["vectors"]).mean())
        for what, chosen in (("caught", order[::-1]), ("missed", order)):
            line = next(rows)
            for axes, place in zip(line, chosen[:N_PICTURES], strict=True):
                with Image.open(paths[place]) as image:
                    plain = Image.new("RGBA", image.size, "white")
                    plain.alpha_composite(image.convert("RGBA"))
                    axes.imshow(plain.convert("RGB").resize((SIDE, SIDE)))
                axes.set_axis_off()
            share = caught if what == "caught" else 100 - caught
            line[0].set_title(f"{called}: {what} ({share:.0f} %)", loc="left", fontsize=9)
    file = options.out / "ood_caught.png"
    figure.savefig(file, dpi=80)
    with Image.open(file) as drawn_image:
        drawn_image.convert("RGB").quantize(128).save(file, optimize=True)


if __name__ == "__main__":
    main()
