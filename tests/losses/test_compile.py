"""``torch.compile`` around a loss: on a CPU breaks in the graph, elsewhere none; the same value and gradient."""

import pytest
import torch
from torch.testing import assert_close

from sightline.kernels import row_loops
from sightline.losses import create_loss, list_losses, loss_options

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


# Blackbox losses take a gradient inside the loss; a sum over levels with proxies numbers the paths it meets.
WITH_BREAKS = {"blackbox_ap", "blackbox_recall", "sum_binary_cross_entropy", "sum_norm_softmax", "sum_proxy_nca_pp"}
WHOLE = [name for name in list_losses() if name not in WITH_BREAKS]
KNOWN = {
    "n_classes": 20,
    "embedding_dim": 6,
    "n_levels": 2,
    "terms": [{"name": "sup_ap", "weight": 0.9}, {"name": "csl", "weight": 0.1}],
}


def assert_one_graph(name, n_items, backend):
    """The way of other devices, here on the CPU, compiled without a break: as it is uncompiled."""
    fine = torch.arange(n_items) // 2
    labels = torch.stack([fine, fine // 4], 1)
    loss = create_loss(name, **{key: value for key, value in KNOWN.items() if key in loss_options(name)})
    torch.compiler.reset()
    results = []
    for run in (torch.compile(loss, backend=backend, fullgraph=True), loss):
        leaf = torch.randn(n_items, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
        value = run(leaf, labels)
        value.backward()
        results.append((value.detach(), leaf.grad))
    assert results[0][1].abs().sum() > 0
    assert_close(*results, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WHOLE)
def test_on_other_devices_a_loss_is_one_graph(name, monkeypatch):
    monkeypatch.setattr(row_loops, "DEVICES", ())
    assert len(WHOLE) == 28
    assert_one_graph(name, 12, "eager")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("smooth_h_ap", "eager"),
        *(pytest.param(name, "inductor", marks=pytest.mark.slow) for name in ("sup_h_ap", "sup_ap")),
    ],
)
def test_blocks_of_sorted_rows_are_one_graph(name, backend, monkeypatch):
    monkeypatch.setattr(row_loops, "DEVICES", ())
    assert_one_graph(name, 40, backend)
