"""``torch.compile`` around a loss: breaks in the graph, the same value and gradient."""

import pytest
import torch
from torch.testing import assert_close

from sightline.losses import create_loss

LABELS = torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1]]).repeat(3, 1)


@pytest.mark.filterwarnings("ignore")  # of the compiler's own making
@pytest.mark.parametrize("name", ["smooth_h_ap", "roadmap", "csl"])
def test_compiled_is_uncompiled(name):
    options = {"n_classes": 4, "embedding_dim": 6, "n_levels": 2} if name == "csl" else {}
    layer, loss = torch.nn.Linear(5, 6), create_loss(name, **options)
    images = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))

    def step(images):
        return 2 * loss(layer(images), LABELS)

    torch.compiler.reset()
    results = []
    for run in (torch.compile(step, backend="aot_eager"), step):  # as the default backend, less the C++ compiler
        layer.zero_grad()
        value = run(images)
        value.backward()
        results.append((value.detach(), layer.weight.grad.clone()))
    assert results[0][1].abs().sum() > 0
    assert_close(*results)


@pytest.mark.filterwarnings("ignore")
def test_a_graph_without_a_break_is_refused():
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(create_loss("sup_ap"), backend="aot_eager", fullgraph=True)(torch.randn(12, 6), LABELS)
