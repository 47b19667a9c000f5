"""Compile what losses, evaluation, training and the service call, into NUMBA_CACHE_DIR: run when the image is built."""

import numpy as np
import torch
from PIL import Image

import sightline as sl

vectors, labels = torch.randn(64, 16, requires_grad=True), torch.arange(64) % 4
sl.create_loss("sup_ap")(vectors, labels).backward()
sl.evaluate(vectors.detach().numpy(), labels.numpy())
encoder = sl.Encoder.create("tf_efficientnet_lite0", embedding_dim=16, weights=None)
encoder.encode([Image.fromarray(np.zeros((64, 64, 3), np.uint8))], backend="torch")
encoder.train()(torch.randn(2, 3, 64, 64)).sum().backward()
