import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from sightline.errors import InputError
from sightline.training.recipe import Recipe, read_recipe, shipped_recipes


@pytest.fixture
def recipe_file(tmp_path):
    """Writes the text to a recipe file and gives its path."""

    def write(text):
        (tmp_path / "own.toml").write_text(text, encoding="utf-8")
        return str(tmp_path / "own.toml")

    return write


def test_the_recipes_to_start_from_are_shipped():
    assert {"glyphs", "images"} < set(shipped_recipes())
    for name in ("glyphs", "images"):
        assert read_recipe(name).loss.name == "roadmap"


def test_a_file_is_read_and_the_rest_are_defaults(recipe_file):
    recipe = read_recipe(
        recipe_file(
            'seed = 7\n[data]\nmanifest = "Fotos/Äpfel"\ncrop_area = [0.5, 1]\n[loss]\nname = "sup_ap"\ntau = 0.02\n'
        )
    )
    assert recipe.seed == 7
    assert recipe.data.manifest == Path("Fotos/Äpfel")
    assert recipe.data.crop_area == (0.5, 1.0)
    assert recipe.data.image_size == 224
    assert recipe.loss.options() == {"tau": 0.02}
    assert recipe.optimizer == Recipe.model_validate({"data": {"manifest": "x"}}).optimizer


def test_a_recipe_is_utf_8_whatever_the_computer_speaks(recipe_file):
    file = recipe_file('[data]\nmanifest = "Äpfel"')
    code = "import sys; from sightline.training.recipe import read_recipe; print(ascii(read_recipe(sys.argv[1])))"
    speaks_ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    told = subprocess.run([sys.executable, "-c", code, file], env=os.environ | speaks_ascii, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert r"\xc4pfel" in told.stdout


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("optimizer.lr=3e-4", "optimizer", "lr", 3e-4),
        ("optimizer.lr=1", "optimizer", "lr", 1.0),
        ("schedule.epochs=3", "schedule", "epochs", 3),
        ("model.pooling=avg", "model", "pooling", "avg"),
        ('model.pooling="avg"', "model", "pooling", "avg"),
        ("data.manifest=my photos/a=b.csv", "data", "manifest", Path("my photos/a=b.csv")),
        ("data.manifest=/tmp/x#1", "data", "manifest", Path("/tmp/x#1")),
        ("data.check_images=false", "data", "check_images", False),
        ("data.crop_area=[0.5, 0.75]", "data", "crop_area", (0.5, 0.75)),
        ("schedule.milestones=[3, 5]", "schedule", "milestones", (3, 5)),
        ("model.weights=none", "model", "weights", None),
        ("model.embedding_dim=none", "model", "embedding_dim", None),
        ("optimizer.clip_norm=0.5", "optimizer", "clip_norm", 0.5),
        ("model.freeze_batch_norm=none", "model", "freeze_batch_norm", "none"),
        ("model.feature_norm=none", "model", "feature_norm", "none"),
    ],
)
def test_an_override_reaches_its_value_and_no_other(override, section, key, value):
    plain, changed = read_recipe("images").model_dump(), read_recipe("images", [override]).model_dump()
    assert changed[section].pop(key) == value
    plain[section].pop(key)
    assert changed == plain


def test_none_in_a_file_is_no_value_where_there_may_be_none(recipe_file):
    written = '[data]\nmanifest = "none"\n[model]\nweights = "none"\nembedding_dim = "none"\nfreeze_batch_norm = "none"\n'
    recipe = read_recipe(recipe_file(written))
    assert (recipe.model.weights, recipe.model.embedding_dim) == (None, None)
    assert (recipe.model.freeze_batch_norm, recipe.data.manifest) == ("none", Path("none"))
    with pytest.raises(InputError, match=r"'optimizer\.lr' is 'none'"):
        read_recipe(recipe_file(f'{written}[optimizer]\nlr = "none"\n'))


def test_overrides_at_the_top_and_inside_the_loss_the_last_one_counting():
    recipe = read_recipe("images", ["seed=1", "seed=2", "loss.name=sup_ap", "loss.rho=none", "loss.inner.depth=2"])
    assert recipe.seed == 2
    assert recipe.loss.name == "sup_ap"
    assert recipe.loss.options() == {"rho": None, "inner": {"depth": 2}}


def test_an_override_makes_the_section_it_needs(recipe_file):
    assert read_recipe(recipe_file(""), ["data.manifest=x"]).data.manifest == Path("x")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sede=1", "unknown key 'sede': did you mean 'seed'"),
        ("optimiser.lr=1", "unknown key 'optimiser': did you mean 'optimizer'"),
        ("sampler.batchsize=3", "unknown key 'sampler.batchsize': did you mean 'batch_size'"),
        ("data.qqq=3", "unknown key 'data.qqq': known: 'check_images', 'colour_jitter', 'crop_area'"),
        ("seed=one", "'seed' is 'one': input should be a valid integer"),
        ("seed=-1", "'seed' is -1: input should be greater than or equal to 0"),
        ("schedule.epochs=2.5", "'schedule.epochs' is 2.5: input should be a valid integer"),
        ("schedule.name=square", "'schedule.name' is 'square': input should be 'constant', 'cosine', 'linear' or 'step'"),
        ("optimizer.lr=0", "'optimizer.lr' is 0: input should be greater than 0"),
        ("optimizer.lr=inf", "'optimizer.lr' is inf: input should be a finite number"),
        ("data.flip=nan", "'data.flip' is nan: input should be a finite number"),
        ("data=5", "'data' is 5"),
        ("data.crop_area=[0.5]", "'data.crop_area.1' is missing"),
        ("data.train_resize=4", "'data.train_resize' is 4: at least 8 pixels are needed, for the shorter side or for both"),
        ("data.train_resize=[256, 0]", r"'data.train_resize' is \[256, 0\]: at least 8 pixels are needed"),
        ("data.crop_area=[1.0, 0.2]", r"'data.crop_area' is \[1.0, 0.2\]: smallest and largest share"),
        ("data.crop_area=[0.0, 1.0]", ".* share of the area are needed, above 0 and up to 1"),
        ("data.crop_area=[0.5, 1.5]", ".* share of the area are needed, above 0 and up to 1"),
        ("loss.name=none", "'loss.name' is None: input should be a valid string"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_does(override, message):
    with pytest.raises(InputError, match=f"^images: {message}"):
        read_recipe("images", [override])


def test_all_faults_are_told_at_once(recipe_file):
    file = recipe_file("sede = 1\n[optimizer]\nlr = -1\n")
    with pytest.raises(InputError) as caught:
        read_recipe(file)
    faults = str(caught.value).removeprefix(f"{file}: ").split("; ")
    assert sorted(faults) == [
        "'data' is missing",
        "'optimizer.lr' is -1: input should be greater than 0",
        "unknown key 'sede': did you mean 'seed'?",
    ]


@pytest.mark.parametrize("override", ["seed", "=1", ".seed=1", "optimizer.=1", "optimizer..lr=1", ""])
def test_an_override_that_is_none_is_refused(override):
    with pytest.raises(InputError, match=f"override '{override}': a dotted key and a value are needed"):
        read_recipe("images", [override])


@pytest.mark.parametrize("override", ["seed.x=1", "data.manifest.x=1"])
def test_an_override_into_a_value_is_refused(override):
    inner = override.split(".")[-2]
    with pytest.raises(InputError, match=f"override '{override}': '{inner}' is a value, not a section"):
        read_recipe("images", ["seed=0", override])


def test_files_that_are_no_recipes_are_refused(recipe_file, tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml: no such file"):
        read_recipe(str(tmp_path / "nowhere.toml"))
    with pytest.raises(InputError, match=r"own\.toml: not TOML: .*line 2"):
        read_recipe(recipe_file("seed = 1\nseed = = 2\n"))
    (tmp_path / "own.toml").write_bytes('[data]\nmanifest = "Äpfel"'.encode("latin-1"))
    with pytest.raises(InputError, match=r"own\.toml: not TOML: .*utf-8"):
        read_recipe(str(tmp_path / "own.toml"))


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


def test_a_recipe_that_extends_itself_or_nothing_is_refused(recipe_file, tmp_path):
    with pytest.raises(InputError, match=r"own\.toml: extends itself"):
        read_recipe(recipe_file(f"extends = '{tmp_path / 'own.toml'}'"))
    with pytest.raises(InputError, match=r"'imagse' is neither .*: did you mean 'images'"):
        read_recipe(recipe_file("extends = 'imagse'"))


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(InputError, match=r"'glyhps' is neither a \.toml file nor a shipped recipe: did you mean 'glyphs'"):
        read_recipe("glyhps")
    with pytest.raises(InputError, match=r"known: .*'glyphs', .*'images'"):
        read_recipe("zzz")


def test_a_recipe_cannot_be_changed():
    recipe = read_recipe("images")
    for section, key in ((recipe, "seed"), (recipe.optimizer, "lr"), (recipe.loss, "name"), (recipe.data, "crop_area")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, key, getattr(section, key))
    recipe = read_recipe("images", ["loss.name=sup_ap", "loss.tau=0.5"])
    recipe.loss.options()["tau"] = 5
    assert recipe.loss.options() == {"tau": 0.5}


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
    with pytest.raises(InputError, match=r"odd\.toml: ") as caught:
        read_recipe(str(tmp_path / "odd.toml"))
    assert len(str(caught.value)) < 2000
