import importlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import nn

from changed_packages import write_package
from refusals import assert_refused
from sightline.registry import Registry, check_options


class Margin(nn.Module):
    """A loss with a margin."""

    def __init__(self, margin: float = 0.1, ks: Sequence[int] = (1,), mode: Literal["a", "b"] = "a", n_classes: int = 0):
        super().__init__()
        self.margin, self.ks, self.mode, self.n_classes = margin, ks, mode, n_classes


def is_module_class(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, nn.Module)


THINGS = Registry(
    "loss", {"margin": Margin, "lazy": "torch.nn:Identity"}, "sightline.test_things", is_module_class, "a module's class"
)


def test_known_values_are_handed_on_where_they_are_taken_and_not_given():
    made = THINGS.create("margin", {"margin": np.float64(0.2)}, n_classes=7, embedding_dim=3)
    assert (made.margin, made.n_classes) == (0.2, 7)
    assert THINGS.create("margin", {"n_classes": 2}, n_classes=7).n_classes == 2


def test_options_that_do_not_fit_or_are_missing_are_named():
    wrong = {"margni": 1.0, "margin": "much", "mode": "c", "ks": 3, "n_classes": 1.5}
    for name, value in [*wrong.items(), ("margin", True)]:
        facts = ["loss 'margin'", name, "margin" if name == "margni" else str(value)]
        assert_refused(facts, THINGS.create, "margin", {name: value})

    def maker(n_classes: int, dim: int, tau: float = 1.0) -> None: ...

    assert_refused("n_classes and dim", check_options, maker, {"tau": 2}, "proxy")
    check_options(maker, {"n_classes": 1, "dim": 2}, "proxy")


def test_an_import_path_is_followed_only_where_it_is_trusted(tmp_path, monkeypatch):
    code = "from pathlib import Path\nfrom torch import nn\nPath(__file__).with_name('ran').touch()\n"
    (tmp_path / "someones_losses.py").write_text(f"{code}class Own(nn.Module):\n    pass\nnumber = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert_refused(["someones_losses", "--trust"], THINGS.create, "someones_losses:Own", {})
    assert not (tmp_path / "ran").exists()
    assert type(THINGS.create("someones_losses:Own", {}, trust=True)).__name__ == "Own"
    assert_refused("a module's class", THINGS.find, "someones_losses:number", trust=True)
    for wrong in ("someones_losses:Nothing", "no_such_module:Own"):
        assert_refused(wrong, THINGS.find, wrong, trust=True)


def test_other_packages_add_names_by_entry_points(tmp_path, monkeypatch):
    code = "from torch import nn\nclass Theirs(nn.Module):\n    '''Theirs.'''\n"
    lines = "theirs = others:Theirs\nmargin = others:Theirs\nbroken = others:Nothing"
    write_package(tmp_path, "others", code, test_things=lines)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    registry = Registry("loss", {"margin": Margin}, "sightline.test_things", is_module_class)
    assert registry.names() == ["broken", "margin", "theirs"]
    assert registry.find("theirs").__name__ == "Theirs"
    assert registry.find("margin") is Margin
    assert_refused("others:Nothing", registry.find, "broken")
