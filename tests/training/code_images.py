"""Images with one to three codes each, of which one can be told from the picture, as a manifest."""

import numpy as np
import polars as pl
from PIL import Image


def write_code_images(folder, n_images=72, n_codes=12, seed=0):
    """``images.csv`` beside blurred patches of noise; all have a code of 9.1, every third a second one."""
    rng = np.random.default_rng(seed)
    bases = rng.integers(0, 256, (n_codes, 8, 8, 3))
    rows = []
    for number in range(n_images):
        own, other = number % n_codes, int(rng.integers(n_codes))
        pixels = np.clip(bases[own] + rng.integers(-60, 60, bases[own].shape), 0, 255).astype(np.uint8)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((40, 36), Image.Resampling.BILINEAR).save(folder / f"{number}.png")
        codes = [f"{1 + own // 6}.{1 + own // 3 % 2}.{own % 3 + 1}", f"9.1.{number % 2 + 1}"]
        codes += [f"{1 + other // 6}.{1 + other // 3 % 2}.{other % 3 + 1}"] if number % 3 == 0 and other != own else []
        rows.append((f"{number}.png", "train", ";".join(codes)))
    pl.DataFrame(rows, ["path", "split", "codes"], orient="row").write_csv(folder / "images.csv")
    return folder / "images.csv"
