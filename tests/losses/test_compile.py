"""``torch.compile`` around a loss: on a CPU breaks in the graph, elsewhere none; the same value and gradient."""

import pytest
import torch
from torch.testing import assert_close

from loss_cases import TREE, create, options_of, value_and_gradient
from sightline.kernels import row_loops
from sightline.losses import create_loss, list_losses

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler's own making
# Blackbox losses take a gradient inside the loss; a sum over levels with proxies numbers the paths it meets.
WITH_BREAKS = {"blackbox_ap", "blackbox_recall", "sum_binary_cross_entropy", "sum_norm_softmax", "sum_proxy_nca_pp"}
WHOLE = [name for name in list_losses() if name not in WITH_BREAKS]


@pytest.mark.parametrize("name", ["smooth_h_ap", "roadmap", "csl"])
def test_compiled_is_uncompiled(name):
    layer, loss = torch.nn.Linear(5, 6), create(name)
    images = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))

    def step(images):
        return 2 * loss(layer(images), TREE)

    torch.compiler.reset()
    results = []
    for run in (torch.compile(step, backend="aot_eager"), step):  # as the default backend, less the C++ compiler
        layer.zero_grad()
        value = run(images)
        value.backward()
        results.append((value.detach(), layer.weight.grad.clone()))
    assert results[0][1].abs().sum() > 0
    assert_close(*results)


def test_a_graph_without_a_break_is_refused():
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(create_loss("sup_ap"), backend="aot_eager", fullgraph=True)(torch.randn(12, 6), TREE)


@pytest.mark.parametrize(
    ("name", "n_items", "backend"),
    [
        *((name, 12, "eager") for name in WHOLE),
        ("smooth_h_ap", 40, "eager"),  # in blocks of sorted rows
        *(pytest.param(name, 40, "inductor", marks=pytest.mark.slow) for name in ("sup_h_ap", "sup_ap")),
    ],
)
def test_on_other_devices_a_loss_is_one_graph(name, n_items, backend, monkeypatch):
    """The way of other devices, here on the CPU, compiled without a break: as it is uncompiled."""
    assert len(WHOLE) == 28
    monkeypatch.setattr(row_loops, "DEVICES", ())
    fine = torch.arange(n_items) // 2
    labels, loss = torch.stack([fine, fine // 4], 1), create(name, **options_of(name, {"n_classes": 20}))
    torch.compiler.reset()
    leaf = torch.randn(n_items, 6, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    found, expected = (value_and_gradient(run, leaf, labels) for run in (compiled, loss))
    assert found[1].abs().sum() > 0
    assert_close(found, expected, rtol=1e-4, atol=1e-6)
