"""A data set from another package, in `sightline data list` and `sightline data prepare`."""

from sightline.data.manifest import read_manifest

CODE = '''
from pathlib import Path
from PIL import Image

def write_squares(out: Path, seed: int = 0) -> Path:
    """Coloured squares, for trying things out."""
    folder = Path(out)
    rows = ["path,split,label"]
    for place, colour in enumerate(["red", "green", "blue"]):
        file = folder / f"{colour}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + seed, 8), colour).save(file)
        rows.append(f"{colour}.png,train,{colour}")
    (folder / "manifest.csv").write_text("\\n".join(rows) + "\\n")
    return folder / "manifest.csv"
'''


def test_a_data_set_of_another_package_is_listed_and_prepared(other_package, tmp_path):
    python = other_package(CODE, readers="squares = others:write_squares")
    listed = python("-m", "sightline", "data", "list").stdout.splitlines()
    assert any(line.split()[:1] == ["squares"] and "Coloured squares" in line for line in listed)
    words = ["-m", "sightline", "data", "prepare", "others:write_squares", "--out", tmp_path / "squares"]
    refused = python(*words, status=2).stderr
    assert "--trust" in refused
    assert "'others'" in refused
    assert not (tmp_path / "squares").exists()
    python(*words, "--trust")
    manifest = read_manifest(tmp_path / "squares" / "manifest.csv")
    assert sorted(manifest.table["label_0"]) == ["blue", "green", "red"]
