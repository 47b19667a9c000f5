"""The examples run, small, on characters drawn from fonts."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from sightline import Encoder, Gallery, embed_manifest, evaluate_table, read_card, read_manifest
from sightline.data.readers.glyphs import draw_glyph

EXAMPLES = Path(__file__).parent.parent / "examples"
TYPEFACES = ("dejavu-sans", "dejavu-sans-bold", "dejavu-serif", "dejavu-serif-bold", "dejavu-mono", "stix")


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """``script/character/typeface.png``: 15 characters in 6 typefaces."""
    root = tmp_path_factory.mktemp("examples") / "characters"
    for script, letters in {"latin": "ABEKQ", "greek": "ΓΔΘΞΨ", "cyrillic": "ДЖШЮЯ"}.items():
        for letter in letters:
            folder = root / script / f"U+{ord(letter):04X}"
            folder.mkdir(parents=True)
            for typeface in TYPEFACES:
                draw_glyph(letter, typeface).save(folder / f"{typeface}.png")
    return root


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_a_notebook_of_cells(file):
    text = file.read_text()
    assert text.startswith("# %% [markdown]\n# # ")
    assert text.count("\n# %%\n") >= 4
    compile(text, str(file), "exec")


def test_train_on_your_folder(characters, tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLES / "train_on_your_folder.py"))["main"]
    small = ["model.backbone=tiny", "model.weights=none", "model.embedding_dim=16", "data.image_size=32"]
    small += [
        "model.adaptation=upper:2",
        "data.n_workers=0",
        "sampler.batch_size=16",
        "schedule.epochs=2",
        "optimizer.lr=0.01",
    ]
    result, found = main(characters, tmp_path, small)
    out = capsys.readouterr().out
    images = read_manifest(tmp_path / "images.csv")
    test, training = images.split("test"), images.split("train")
    assert (len(test), len(training)) == (18, 72)
    assert not set(test.table["label_0"]) & set(training.table["label_0"])
    encoder = Encoder.from_pretrained(tmp_path / "run/encoder")
    wanted = evaluate_table(embed_manifest(encoder, test))
    np.testing.assert_allclose(result["map@r"], wanted["map@r"])
    assert json.loads((tmp_path / "result.json").read_text())["fingerprint"] == encoder.fingerprint()
    assert found[0] == test.table["id"][0], "an image is most like itself"
    with Gallery.open(tmp_path / "gallery") as gallery:
        assert len(gallery) == 90
    assert "90 added" in out
    assert read_card(tmp_path / "run/encoder").as_markdown() in out
    again, _ = main(characters, tmp_path, small)  # nothing is done twice
    assert again.means == result.means
    assert "90 unchanged" in capsys.readouterr().out


def test_bring_your_own_loop_learns_each_way(characters, capsys):
    main = runpy.run_path(str(EXAMPLES / "bring_your_own_loop.py"))["main"]
    results = main(characters, "tiny", None, image_size=32, epochs=30, batch_size=40, lr=0.003)
    assert list(results) == ["before", "plain torch", "their style", "Trainer"]
    for way in ("plain torch", "their style", "Trainer"):
        assert results[way]["map@r"] > results["before"]["map@r"] + 0.05, way
    assert results["Trainer"]["h_ap"] > results["before"]["h_ap"]
    assert "plain torch: R@1 0." in capsys.readouterr().out
