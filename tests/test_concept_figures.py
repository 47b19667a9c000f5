import importlib.util
from pathlib import Path

import torch
from PIL import Image
from torch.testing import assert_close

from sightline.losses.blackbox import blackbox_ranks

SCRIPT = Path(__file__).parents[1] / "docs" / "make_concepts.py"
script = importlib.util.module_from_spec(importlib.util.spec_from_file_location("make_concepts", SCRIPT))
script.__spec__.loader.exec_module(script)


def test_the_toy_example_is_that_of_the_papers():
    found = list(script.toy_gradients().values())
    expected = [[-0.591562, 0.591525, 3.75e-5], [-9.2e-6, -2.8e-5, 3.7e-5], [-0.6406859, -0.4540935, 1.0947793]]
    assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-6, rtol=0)


def test_only_sup_ap_ends_in_the_right_order():
    ends = {name: script.followed(loss, 100)[-1] for name, loss in script.toy_losses().items()}
    assert min(ends["sup_ap"][:2]) > ends["sup_ap"][2]
    assert max(ends["smooth_ap"][:2]) < ends["smooth_ap"][2]


def test_the_interpolations_slope_is_the_blackbox_gradient():
    section, relevant = script.landscape_section()
    assert int(relevant.sum()) == 6
    weights = torch.randn(20, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    scores, strength, step = section.centre[None], 0.05, 1e-7 * torch.eye(20, dtype=torch.float64)
    moved, back = (script.interpolation(at, weights, strength) for at in (scores + step, scores - step))
    leaf = scores.clone().requires_grad_()
    ranks = 20 * blackbox_ranks(leaf, torch.zeros(1, 20, dtype=torch.bool), strength=strength / 20)
    (ranks @ weights).sum().backward()
    assert leaf.grad.abs().sum() > 1
    assert_close((moved - back) / 2e-7, leaf.grad[0], atol=1e-4, rtol=1e-4)


def test_every_picture_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "SIDE", 21)
    monkeypatch.setattr(script, "ARROWS", 4)
    files = script.write_concepts(tmp_path)
    names = ["rank-surrogates", "toy-gradients", "loss-landscapes", "rank-landscapes"]
    assert [file.name for file in files] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    for picture, drawing in zip(files[::2], files[1::2], strict=True):
        with Image.open(picture) as image:
            assert image.width > 700
        assert drawing.stat().st_size < 1_000_000
        assert "slope" in drawing.read_text() or picture.stem != "rank-surrogates"
