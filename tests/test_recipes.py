"""Every shipped recipe is valid, has the values of its paper, and trains at small size."""

import math
import re
from importlib import resources
from pathlib import Path

import pytest
import torch

from loss_cases import create
from sightline import Encoder, train
from sightline.losses import list_losses
from sightline.models import backbones
from sightline.models.stages import UpperEncoder
from sightline.training.logs import read_log
from sightline.training.recipe import Recipe, read_recipe, shipped_recipes

FOUNDATION = [name for name in shipped_recipes() if name.startswith(("dinov3", "siglip2"))]
PAPERS = [name for name in shipped_recipes() if name not in ("glyphs", "images", *FOUNDATION)]


def small(name, image_tree):
    """The recipe with a tiny backbone, tiny images and batches, an epoch of warm-up where it has any, and one after it."""
    recipe = read_recipe(name)
    warmup = min(1, recipe.schedule.warmup_epochs)
    overrides = f"""data.manifest={image_tree} data.image_size=16 data.resize=18 data.n_workers=0 data.check_images=false
        data.val_fraction=0 precision=32-true model.backbone=tiny model.weights=none sampler.batch_size=16
        memory.start_epoch=0 model.pooling={"avg" if recipe.model.pooling in ("cls", "native") else recipe.model.pooling}
        schedule.warmup_epochs={warmup} schedule.epochs={warmup + 1}""".split()
    where_it_has = {
        "model.adaptation=upper:2": recipe.model.adaptation.startswith("upper"),  # the tiny backbone has three stages
        f"data.train_resize={18 if recipe.data.train_resize == 256 else [18, 18]}": recipe.data.train_resize is not None,
        "sampler.per_class=4": recipe.sampler.name != "random",
        "model.embedding_dim=16": recipe.model.embedding_dim is not None,
        "chunk_size=5": recipe.chunk_size is not None,
        "sampler.batches_per_pair=2": recipe.sampler.name == "hierarchical",
        "sampler.n_batches=2": recipe.sampler.n_batches is not None,
    }
    return read_recipe(name, [*overrides, *(override for override, has in where_it_has.items() if has)])


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_is_valid_and_trains(name, image_tree, tmp_path):
    recipe = read_recipe(name)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert recipe.loss.name in list_losses()
    assert recipe.sampler.batch_size % recipe.sampler.per_class == 0
    reduced = small(name, image_tree)
    train(reduced, tmp_path / "run")
    losses = [value for _, _, what, value in read_log(tmp_path / "run/log.csv") if what == "loss"]
    # 12 classes of 6 images under 3 super-labels: two batches for each of 3 pairs, 72 images, or one group of 4 a class
    n_batches = reduced.sampler.n_batches or {"hierarchical": 6, "random": 4, "class_balanced": 3}[reduced.sampler.name]
    assert len(losses) == n_batches * reduced.schedule.epochs
    assert all(math.isfinite(value) for value in losses)


ROWS = """
roadmap-neurips-cub            adam   1e-6  1  4e-4  constant  0     200   64
roadmap-neurips-sop            adam   1e-5  2  1e-4  step      0     100   64
roadmap-neurips-inat           adam   1e-5  2  4e-4  step      0      90   64
roadmap-neurips-inshop         adam   1e-5  2  1e-4  constant  0     100  128
roadmap-neurips-cub-deit       adamw  1e-6  1  5e-4  constant  0     100  128
roadmap-neurips-sop-deit       adamw  1e-5  1  5e-4  step      0      75  128
roadmap-neurips-inat-deit      adamw  1e-5  1  5e-4  step      0      90  128
roadmap-neurips-sfm120k-deit   adamw  1e-5  1  5e-4  constant  0      50  128
roadmap-tpami-sop              adam   5e-5  2  1e-4  cosine    0     100  256
roadmap-tpami-inat             adam   1e-5  2  4e-4  cosine    1e-6  100  256
roadmap-tpami-cub              adam   1e-6  2  4e-4  cosine    0     200  256
roadmap-tpami-cars             adam   1e-4  2  4e-4  cosine    0     100  256
roadmap-tpami-cub-deit         adamw  1e-6  2  5e-4  cosine    0     200  256
roadmap-tpami-sop-deit         adamw  1e-5  2  5e-4  cosine    0     100  256
roadmap-tpami-inat-deit        adamw  1e-5  2  5e-4  cosine    0     100  256
roadmap-tpami-cub-vit          adamw  1e-6  2  5e-4  cosine    0     200  256
roadmap-tpami-sop-vit          adamw  1e-5  2  5e-4  cosine    0     100  256
roadmap-tpami-inat-vit         adamw  1e-5  2  5e-4  cosine    0     100  256
happier-sop                    adam   5e-5  2  1e-4  cosine    0     100  256
happier-inat-base              adam   1e-5  2  4e-4  cosine    1e-6  100  256
happier-inat-full              adam   1e-5  2  4e-4  cosine    1e-6  100  256
happier-dyml-vehicle           sgd    0.1   1  1e-4  cosine    1e-6  100  256
happier-dyml-animal            sgd    0.1   1  1e-4  cosine    1e-6  100  256
happier-dyml-product           sgd    0.01  2  1e-4  cosine    1e-5   20  256
happier-hgldv2                 adam   1e-5  1  1e-4  cosine    0      10  256
softbin-ap-landmarks           adam   1e-4  1  1e-6  linear    0      30 4096
rambo-cub                      adam   5e-6 10  4e-4  step      0      80  128
rambo-sop                      adam   3e-6 10  4e-4  step      0      80  128
rambo-inshop                   adam   1e-5 10  4e-4  step      0      80  128
"""


@pytest.mark.parametrize("row", ROWS.strip().splitlines(), ids=lambda row: row.split()[0])
def test_optimiser_schedule_and_batch_are_those_of_the_papers(row):
    name, optimizer, lr, head, decay, schedule, last_lr, epochs, batch_size = row.split()
    recipe = read_recipe(name)
    assert (recipe.optimizer.name, recipe.schedule.name) == (optimizer, schedule)
    assert (recipe.optimizer.lr, recipe.optimizer.head_lr_factor) == (float(lr), float(head))
    assert recipe.optimizer.weight_decay == float(decay)
    assert recipe.schedule.final_factor * recipe.optimizer.lr == pytest.approx(float(last_lr))
    assert (recipe.schedule.epochs, recipe.sampler.batch_size) == (int(epochs), int(batch_size))
    assert recipe.data.val_fraction == 0


def test_steps_warm_up_proxies_and_sampling_are_those_of_the_papers():
    recipes = {name: read_recipe(name) for name in PAPERS}
    assert (len(recipes), len({recipe.model.backbone for recipe in recipes.values()})) == (47, 6)
    assert all(backbones.timm.is_model(recipe.model.backbone) for recipe in recipes.values())
    milestones = {name: recipe.schedule.milestones for name, recipe in recipes.items() if recipe.schedule.name == "step"}
    assert milestones.pop("roadmap-neurips-sop-deit") == (25, 50)
    assert {milestones.pop(f"rambo-{data}") for data in ("cub", "sop", "inshop")} == {(35,)}
    assert set(milestones.values()) == {(30, 70)}
    for name, recipe in recipes.items():
        slow = any(data in name for data in ("sop", "inat", "dyml-product")) and "rambo" not in name
        assert recipe.schedule.warmup_epochs == (5 if slow and "neurips" not in name else 0), name
        of_other_papers = "rambo" in name or "landmarks" in name
        assert recipe.keep_every == (None if of_other_papers else 20), name
        assert recipe.validation.every == (1 if of_other_papers else 5 if "neurips" in name else 20), name
        own_rate = slow and "neurips" not in name and "dyml" not in name
        assert recipe.optimizer.proxy_lr == ((1e-5 if "deit" in name else 10) if own_rate else None), name
        is_transformer = name.endswith(("deit", "vit"))
        without_norm = is_transformer or "neurips" in name or "rambo" in name
        assert recipe.model.feature_norm == ("none" if without_norm else recipe.model.feature_norm)
        in_pairs = ("sop" in name or "inshop" in name) and name != "smooth-recall-sop"
        assert (recipe.sampler.name == "hierarchical") == in_pairs, name
        assert recipe.data.stretch == any(data in name for data in ("sop", "inshop", "sfm", "hgldv2", "rambo")), name
        first = (256, 256) if "rambo" in name else 256 if "sop" in name else None
        assert recipe.data.train_resize == first, name
        assert recipe.data.crop_area == (None if "rambo" in name else (0.16, 1.0)), name
        assert (recipe.model.embedding_dim is None) == name.endswith("deit"), name
        weights = {"deit": "distilled", "vehicle": None, "animal": None}
        assert recipe.model.weights == weights.get(name.split("-")[-1], "hub"), name
    assert recipes["happier-hgldv2"].sampler.n_batches * recipes["happier-hgldv2"].schedule.epochs == 55_000


def test_the_losses_options_are_those_of_the_papers():
    for name, options in (
        ("roadmap-neurips-sop", {"decomposability": "calibration", "weight": 0.5}),
        ("roadmap-tpami-cub", {"decomposability": "proxy", "weight": 0.1}),
        ("rod-recall-inat", {"decomposability": "proxy", "weight": 0.5, "ks": [1, 2, 4, 8, 16]}),
        ("happier-dyml-animal", {"weight": 0.1, "alpha": 1.0}),
        ("happier-f-sop", {"weight": 0.1, "alpha": 5.0}),
        ("happier-f-inat-full", {"weight": 0.1, "alpha": 3.0}),
        ("rod-ndcg-inat-base", {"weight": 0.1}),
        ("rambo-sop", {"strength": 4.0, "margin": 0.02, "memory": 3}),
        ("rambo-inshop", {"strength": 0.2, "margin": 0.05, "memory": 3}),
        ("rambo-cub", {"strength": 0.2, "margin": 0.02, "memory": 3}),
    ):
        assert read_recipe(name).loss.options() == options, name


def test_the_variants_in_the_comments_of_recipes_are_valid():
    n_variants = 0
    for name in shipped_recipes():
        lines = (resources.files("sightline") / "recipes" / f"{name}.toml").read_text(encoding="utf-8").splitlines()
        comments = " ".join(line for line in lines if line.startswith("#") and " sightline train " not in line)
        for variant in re.findall(r"\b[a-z_]+\.[a-z_]+=[^\s;,]+", comments):
            changed = read_recipe(name, [variant])
            assert changed != read_recipe(name), (name, variant)
            create(changed.loss.name, **changed.loss.options())
            n_variants += 1
    assert n_variants == 47


@pytest.mark.parametrize("name", FOUNDATION)
def test_foundation_models_are_used_as_timm_and_their_papers_say(name, monkeypatch):
    assert len(FOUNDATION) == 6
    model, data = read_recipe(name).model, read_recipe(name).data
    assert model.backbone in backbones.timm.list_models(pretrained=True)
    config = backbones.timm.get_pretrained_cfg(model.backbone)
    assert (data.image_size, config.architecture) == (config.input_size[-1], model.backbone.split(".")[0])
    create, few = backbones.timm.create_model, {"embed_dim": 48, "depth": 2, "num_heads": 3}
    monkeypatch.setattr(backbones.timm, "create_model", lambda name, **given: create(name, **few | given))
    encoder = Encoder.create(model.backbone, 8, model.pooling, image_size=64, feature_norm=model.feature_norm)
    what = UpperEncoder(encoder, "frozen") if model.adaptation == "frozen" else encoder
    if model.adaptation == "lora":
        encoder.add_lora(model.lora_rank)
    features = what.resting(torch.rand(2, 3, 64, 64)) if model.adaptation == "frozen" else torch.rand(2, 3, 64, 64)
    what(features)[:, 0].sum().backward()
    learned = {weight for weight, value in encoder.named_parameters() if value.grad is not None}
    if model.adaptation == "frozen":
        assert all(weight.startswith("head.") for weight in learned)
    elif model.adaptation == "lora":
        assert all("lora_" in weight or weight.startswith("head.") for weight in learned)
        assert sum("lora_A" in weight for weight in learned) >= 8  # four linear layers in each of two blocks
    else:
        assert "backbone.patch_embed.proj.weight" in learned


def test_the_page_of_recipes_names_every_family():
    page = (Path(__file__).parent.parent / "docs/recipes.md").read_text(encoding="utf-8")
    rows = [re.split(r"\s*\|\s*", line) for line in page.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([a-z0-9-]+)`", page))
    for _, recipes, what, data, _ in (row for row in rows if len(row) == 5):
        for pattern in re.findall(r"`([^`]+)`", recipes):
            losses = re.findall(r"`([a-z-]+)`", what) if "<loss>" in pattern else [""]
            for part in re.findall(r"`([a-z0-9-]+)`", data):
                full = pattern.replace("…-", recipes.split("`")[1].removesuffix("<set>"))
                named |= {full.replace("<loss>", loss).replace("<set>", part) for loss in losses}
    assert set(shipped_recipes()) <= named
