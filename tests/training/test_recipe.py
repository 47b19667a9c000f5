"""Recipes: read, extended, overridden, refused in the words of their author."""

from pathlib import Path

import pytest

from refusals import assert_refused
from sightline.training.recipe import Recipe, override_recipe, read_recipe, recipe_as_toml, shipped_recipes


@pytest.fixture
def recipe_file(tmp_path):
    """Writes the text to a recipe file and gives its path."""

    def write(text):
        (tmp_path / "own.toml").write_text(text, encoding="utf-8")
        return str(tmp_path / "own.toml")

    return write


def test_a_file_is_read_and_the_rest_are_defaults(recipe_file):
    written = 'seed = 7\n[data]\nmanifest = "Fotos/Äpfel"\ncrop_area = [0.5, 1]\n[loss]\nname = "sup_ap"\ntau = 0.02\n'
    recipe = read_recipe(recipe_file(written))
    assert recipe.seed == 7
    assert (recipe.data.manifest, recipe.data.crop_area, recipe.data.image_size) == (Path("Fotos/Äpfel"), (0.5, 1.0), 224)
    assert recipe.loss.options() == {"tau": 0.02}
    assert recipe.optimizer == Recipe.model_validate({"data": {"manifest": "x"}}).optimizer
    assert {"glyphs", "images"} < set(shipped_recipes())


def test_an_override_reaches_its_value_and_no_other():
    plain = read_recipe("images").model_dump()
    for override, value in (
        ("optimizer.lr=3e-4", 3e-4),
        ("optimizer.clip_norm=.5", 0.5),
        ('model.pooling="avg"', "avg"),
        ("data.manifest=my photos/a=b.csv#1", Path("my photos/a=b.csv#1")),
        ("data.check_images=false", False),
        ("data.crop_area=[0.5, 0.75]", (0.5, 0.75)),
        ("model.weights=none", None),
        ("model.freeze_batch_norm=none", "none"),
    ):
        section, key = override.partition("=")[0].split(".")
        assert read_recipe("images", [override]).model_dump() == plain | {section: plain[section] | {key: value}}


def test_none_is_no_value_where_there_may_be_none_and_the_last_override_counts(recipe_file):
    written = '[data]\nmanifest = "none"\n[model]\nweights = "none"\nembedding_dim = "none"\nfreeze_batch_norm = "none"\n'
    recipe = read_recipe(recipe_file(written))
    assert (recipe.model.weights, recipe.model.embedding_dim) == (None, None)
    assert (recipe.model.freeze_batch_norm, recipe.data.manifest) == ("none", Path("none"))
    assert_refused(r"'optimizer\.lr'.*'none'", read_recipe, recipe_file(f'{written}[optimizer]\nlr = "none"\n'))
    recipe = read_recipe("images", ["seed=1", "seed=2", "loss.name=sup_ap", "loss.rho=none", "loss.inner.depth=2"])
    assert (recipe.seed, recipe.loss.name) == (2, "sup_ap")
    assert recipe.loss.options() == {"rho": None, "inner": {"depth": 2}}
    assert read_recipe(recipe_file(""), ["data.manifest=x"]).data.manifest == Path("x")  # the section is made


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("sede=1", ["'sede'", "'seed'"]),
        ("optimiser.lr=1", ["'optimiser'", "'optimizer'"]),
        ("epochs=1", ["'epochs'", "'schedule.epochs'"]),
        ("model.image_size=64", ["'model.image_size'", "'data.image_size'"]),
        ("data.qqq=3", ["'data.qqq'", "'check_images', 'codes', 'colour_jitter'"]),
        ("seed=one", ["'seed'", "'one'", "integer"]),
        ("schedule.name=square", ["'schedule.name'", "'square'", "'cosine'"]),
        ("optimizer.lr=0", ["'optimizer.lr'", "0", "greater than 0"]),
        ("optimizer.lr=inf", ["'optimizer.lr'", "inf", "finite"]),
        ("optimizer.lr=1e38", ["'optimizer.lr'", "1e+38"]),
        ("data=5", ["'data'", "5"]),
        ("data.crop_area=[0.5]", ["'data.crop_area.1'", "missing"]),
        ("data.train_resize=4", ["'data.train_resize'", "4", "at least 8"]),
        ("data.crop_area=[1.0, 0.2]", ["'data.crop_area'", "[1.0, 0.2]"]),
        ("data.crop_area=[0.0, 1.0]", ["'data.crop_area'", "[0.0, 1.0]"]),
        ("memory.size=0", ["'memory.size'", "0", "at least 1"]),
        ("loss.name=none", ["'loss.name'", "None", "string"]),
        ("optimizer.accumulate=4", ["'optimizer.accumulate'", "sampler.batch_size", "chunk_size"]),
        ("seed", ["'seed'", "loss.name=sup_ap"]),
        ("optimizer..lr=1", ["'optimizer..lr=1'"]),
        ("data.manifest.x=1", ["'data.manifest.x=1'", "'manifest'"]),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_does(override, facts):
    assert_refused(facts, read_recipe, "images", [override])


def test_files_that_are_no_recipes_are_refused(recipe_file, tmp_path):
    assert_refused(r"nowhere\.toml: no such file", read_recipe, str(tmp_path / "nowhere.toml"))
    assert_refused(r"own\.toml: not TOML: .*line 2", read_recipe, recipe_file("seed = 1\nseed = = 2\n"))
    (tmp_path / "own.toml").write_bytes('[data]\nmanifest = "Äpfel"'.encode("latin-1"))
    assert_refused(r"own\.toml: not TOML: .*utf-8", read_recipe, str(tmp_path / "own.toml"))
    assert_refused("int", read_recipe, 3)
    assert_refused(r"list.*'seed=1'", read_recipe, "images", "seed=1")
    facts = ["own.toml", "'data'", "'optimizer.lr'", "-1", "'sede'", "'seed'"]
    assert_refused(facts, read_recipe, recipe_file("sede = 1\n[optimizer]\nlr = -1\n"))
    assert_refused(r"own\.toml: extends itself", read_recipe, recipe_file(f"extends = '{tmp_path / 'own.toml'}'"))
    assert_refused(r"'imagse'.*did you mean 'images'", read_recipe, recipe_file("extends = 'imagse'"))
    assert_refused(r"'zzz'.*known: .*'glyphs', .*'images'", read_recipe, "zzz")


def test_a_recipe_extends_another_key_by_key_and_its_loss_as_a_whole(recipe_file, tmp_path):
    (tmp_path / "base.toml").write_text(
        'seed = 3\n[data]\nmanifest = "x"\nflip = 0.0\n[loss]\nname = "sup_ap"\ntau = 0.5\n[schedule]\nepochs = 7\n'
    )
    extends = f"extends = '{tmp_path / 'base.toml'}'\n"
    changed = read_recipe(recipe_file(f'{extends}[data]\nmanifest = "y"\n[loss]\nname = "smooth_ap"\n'), ["data.flip=0.25"])
    assert (changed.seed, changed.schedule.epochs) == (3, 7)
    assert (changed.data.manifest, changed.data.flip) == (Path("y"), 0.25)
    assert (changed.loss.name, changed.loss.options()) == ("smooth_ap", {})
    assert read_recipe(recipe_file("extends = 'base.toml'")).seed == 3  # beside it, whatever the current folder
    kept = read_recipe(recipe_file(f"{extends}[loss]\nrho = 5.0\n"))
    assert (kept.loss.name, kept.loss.options()) == ("sup_ap", {"tau": 0.5, "rho": 5.0})


def test_a_recipe_as_toml_is_read_as_it_was(tmp_path):
    words = ["data.manifest=x", "loss.name=happier", "loss.alpha=2.5", "optimizer.clip_norm=1", "model.embedding_dim=none"]
    recipe = read_recipe("happier-sop", words)
    (tmp_path / "r.toml").write_text(recipe_as_toml(recipe))
    assert read_recipe(str(tmp_path / "r.toml")) == recipe
    assert override_recipe(recipe, ["loss.name=sup_ap"]).loss.options() == {}, "options of another loss go"


@pytest.mark.parametrize(
    "content",
    [
        "x = " + "[" * 5000,
        "seed = " + "9" * 5000,
        "[data]\nmanifest = 'x'\n[optimizer]\nlr = [0x" + "f" * 9000 + "]",
        "[data]\nmanifest = 'x'\n[optimizer]\nlr = ['" + "a" * 100_000 + "']",
        "extends = 'x/../odd.toml'",
        "data = []",
        "#" + " " * (1 << 20),
    ],
    ids=["deep", "digits", "hexadecimal", "long", "extends itself in other words", "list", "large"],
)
def test_odd_recipes_are_one_short_message(tmp_path, content):
    (tmp_path / "x").mkdir()
    (tmp_path / "odd.toml").write_text(content)
    assert len(assert_refused(r"odd\.toml: ", read_recipe, str(tmp_path / "odd.toml"))) < 2000
