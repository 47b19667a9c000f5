"""A small encoder, every loss and batches of images, for tests of staged back-propagation in one process and in two."""

import numpy as np
import torch
from PIL import Image
from torch import nn

from sightline.data.dataset import ImageDataset, derived_seed, load_batches
from sightline.data.transforms import Preprocessing, train_transform
from sightline.losses import create_loss, list_losses, loss_options
from sightline.losses.sums import takes_references
from sightline.training.batch_loss import BatchLoss, CrossBatchMemory
from sightline.training.large_batch import Examples, back_propagate

KNOWN = {"n_classes": 4, "embedding_dim": 5, "n_levels": 2, "class_counts": [4, 2]}
SUM = {"terms": [{"name": "sup_h_ap", "weight": 0.7}, {"name": "norm_softmax", "weight": 0.3}]}  # of weighted_sum
N_ITEMS, SIDE = 16, 8


def new_encoder():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(54, 5)
    return nn.Sequential(*layers).double()


def draw(step=0, part=slice(None)):
    """Some images of a batch, read and augmented as training does: another view at each step."""
    noise = np.random.default_rng(1).integers(0, 256, (N_ITEMS, 12, 12, 3), dtype=np.uint8)
    transform = train_transform(Preprocessing(crop=SIDE, resize=SIDE), colour_jitter=0.3, rotation=20.0)
    dataset = ImageDataset([Image.fromarray(image) for image in noise], transform, seed=derived_seed(0, step))
    places = torch.arange(N_ITEMS)[part]
    (batch,) = load_batches(dataset, [places.tolist()])
    return Examples(batch.images.double(), torch.stack([places % 4, places % 4 // 2], 1), places)


def new_loss(name):
    """A loss by its name, which may be followed by its mining after a colon, or by ``with memory``."""
    torch.manual_seed(0)
    name, *with_memory = name.split()
    name, *mining = name.split(":")
    options = {key: value for key, value in (KNOWN | SUM).items() if key in loss_options(name)}
    module = create_loss(name, **options | ({"mining": mining[0]} if mining else {})).double()
    return BatchLoss(module, CrossBatchMemory(40, 5, 2).double(), start=1) if with_memory else BatchLoss(module)


def gradients(*modules):
    return [weight.grad.clone() for module in modules for weight in module.parameters()]


def steps(fabric, name, part=slice(None)):
    """Value, gradients and state of a loss after two steps in chunks of 4, each with some images that the other has not."""
    encoder, loss = new_encoder(), new_loss(name)
    module = fabric.setup_module(encoder)
    for step in range(2):
        batch = draw(step, part)
        value = back_propagate(fabric, module, loss, batch._replace(ids=batch.ids + 8 * step), step, 4)
    return [value, gradients(encoder, loss), loss.state_dict()]


ALL = list_losses()
REMEMBERING = [f"{name} with memory" for name in ALL if takes_references(new_loss(name).loss)]
IN_PROCESSES = [*ALL, "triplet:distance-weighted", *REMEMBERING]
