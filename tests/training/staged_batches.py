"""A small encoder, every loss and batches of images, for tests of staged back-propagation in one process and in two."""

import numpy as np
import torch
from PIL import Image
from torch import nn

from sightline.data.dataset import ImageDataset, derived_seed, load_batches
from sightline.data.transforms import Preprocessing, train_transform
from sightline.labels.codes import CodeRelevance
from sightline.losses import create_loss, list_losses, loss_options
from sightline.losses.several_codes import CodesLoss, ItemCodes
from sightline.losses.sums import takes_references
from sightline.training.batch_loss import BatchLoss, CrossBatchMemory
from sightline.training.large_batch import Examples, back_propagate

KNOWN = {"n_classes": 4, "embedding_dim": 5, "n_levels": 2, "class_counts": [4, 2]}
CODES = [[f"1.{n % 4 + 1}", "3.1"] if n % 3 else [f"1.{n % 4 + 1}", f"2.{n % 2 + 1}", "2.3"] for n in range(16)]
SUM = {"terms": [{"name": "sup_h_ap", "weight": 0.7}, {"name": "norm_softmax", "weight": 0.3}]}  # of weighted_sum
N_ITEMS, SIDE = 16, 8


def new_encoder():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(54, 5)
    return nn.Sequential(*layers).double()


def draw(step=0, part=slice(None), by_codes=False):
    """Some images of a batch, read and augmented as training does: another view at each step; labels or numbers."""
    noise = np.random.default_rng(1).integers(0, 256, (N_ITEMS, 12, 12, 3), dtype=np.uint8)
    transform = train_transform(Preprocessing(crop=SIDE, resize=SIDE), colour_jitter=0.3, rotation=20.0)
    dataset = ImageDataset([Image.fromarray(image) for image in noise], transform, seed=derived_seed(0, step))
    places = torch.arange(N_ITEMS)[part]
    (batch,) = load_batches(dataset, [places.tolist()])
    labels = places[:, None] if by_codes else torch.stack([places % 4, places % 4 // 2], 1)
    return Examples(batch.images.double(), labels, places)


def new_loss(name):
    """A loss by its name, which may be followed by its mining after a colon, by ``on codes`` and by ``with memory``."""
    torch.manual_seed(0)
    name, *words = name.split()
    name, *mining = name.split(":")
    known = KNOWN | SUM
    codes = ItemCodes(CODES, CodeRelevance(2)) if "codes" in words else None
    if codes is not None:
        known |= {"n_classes": codes.counts[0], "class_counts": codes.counts, "code_counts": codes.counts}
    options = {key: value for key, value in known.items() if key in loss_options(name)}
    module = create_loss(name, **options | ({"mining": mining[0]} if mining else {})).double()
    module = module if codes is None else CodesLoss(module, codes)
    memory = CrossBatchMemory(40, 5, 2 if codes is None else 1).double() if "memory" in words else None
    return BatchLoss(module, memory, start=1 if memory else 0)


def gradients(*modules):
    return [weight.grad.clone() for module in modules for weight in module.parameters()]


def steps(fabric, name, part=slice(None)):
    """Value, gradients and state of a loss after two steps in chunks of 4, each with some images that the other has not."""
    encoder, loss = new_encoder(), new_loss(name)
    module = fabric.setup_module(encoder)
    for step in range(2):
        batch = draw(step, part, "codes" in name)
        value = back_propagate(fabric, module, loss, batch._replace(ids=batch.ids + 8 * step), step, 4)
    return [value, gradients(encoder, loss), loss.state_dict()]


ALL = list_losses()
REMEMBERING = [f"{name} with memory" for name in ALL if takes_references(new_loss(name).loss)]
ON_CODES = [
    *(f"{name} on codes" for name in ("happier", "roadmap", "each_label_ap", "sum_norm_softmax", "binary_cross_entropy")),
    *("happier on codes with memory", "sup_ndcg on codes with memory"),
]
IN_PROCESSES = [*ALL, "triplet:distance-weighted", *REMEMBERING, *ON_CODES]
