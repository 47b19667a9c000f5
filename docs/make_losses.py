"""Write ``losses.md`` from the docstrings of the losses: ``python docs/make_losses.py``."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

from sightline import losses

PAGE = Path(__file__).parent / "losses.md"
SECTIONS = ("Formula", "Use", "Cost", "Defaults", "Limit")
FAMILIES = {
    "average_precision": "Average precision",
    "recall": "Recall",
    "graded": "Grades and label trees",
    "sums": "With a decomposability term, and over levels",
    "losses": "Weighted sums",
    "histogram": "Histograms",
    "blackbox": "Blackbox ranks",
    "contrastive": "Pairs and triplets",
    "proxies": "Proxies",
    "classification": "Classification",
}  # by module
BESIDE = ("class_map", "all_classes_ap")  # no names of create_loss: they take class scores, not embeddings

HEAD = """\
<!-- Made by docs/make_losses.py from the docstrings; change those. -->
# Losses

```python
import torch
import sightline as sl

embeddings, labels = torch.randn(32, 128, requires_grad=True), torch.arange(32) % 8
loss = sl.create_loss("sup_ap", tau=0.01)
loss(embeddings, labels).backward()
references, ref_labels = torch.randn(500, 128), torch.arange(500) % 8
loss(embeddings, labels, ref_emb=references, ref_labels=ref_labels)  # ranks these instead of the batch
```

Labels may be tensors, numpy arrays or lists; embeddings are tensors. In a recipe the loss is `[loss]` with
`name = "sup_ap"` and the options as further keys. Every loss on pairs is also a function on `(scores, relevance, mask)`:
`sl.losses.sup_ap_loss`. A loss with a decomposability term is a module only; `loss.of_pairs(...)` takes scores.

## What labels do you have?

| labels | given as | losses |
|---|---|---|
| classes | integers `(B,)` | `roadmap`; `sup_recall`, `rod_recall` if you report recall; any other to compare |
| classes, few images of each | integers `(B,)` | `norm_softmax`, `arcface`; `roadmap` with `decomposability="proxy"` |
| levels of a tree | integers `(B, L)`, finest first | `happier`, `sup_h_ap`, `sup_ndcg`, `rod_ndcg`; to compare `csl` |
| sets of labels | bool `(B, C)` | `each_label_ap`; `sup_h_ap`, `sup_ndcg` by the share of labels; `sup_ap` by any shared |
| sets of labels, to compare | bool `(B, C)` | `binary_cross_entropy` |
| relevance of every pair | floating point `(B, G)` | `sup_h_ap`, `sup_ndcg`; `sup_ap` takes all above 0 for relevant |
| classes as queries: logits `(N, C)` | bool `(N, C)` | `sl.losses.DetectionAPLoss`: [detector.md](detector.md) |

`sl.losses.sum_over_levels(loss, embeddings, labels)` applies any loss on pairs to each level of a tree, with equal
weights; `sl.losses.SumOverLevels` is its module, with a proxy table for each level where the loss has proxies.

Losses on pairs and ranks take the first five kinds. Losses with proxies, sums over levels, `class_balanced` and
distance-weighted mining need integer labels.

## With pytorch-metric-learning

A loss is called as pytorch-metric-learning's are: `loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)`, the
last three optional. `indices_tuple` is what a miner returns, pairs or triplets; it needs classes, labels of shape `(B,)`.

| loss | with an `indices_tuple` |
|---|---|
| on pairs and ranks | a query's list holds the chosen items: positives are relevant, negatives not; a pair counts once |
| `triplet` | triplets are taken as they are, in place of its own mining; pairs limit the lists |
| `roadmap`, `happier` and the like with proxies | it limits the rank term; proxies see the whole batch |
| on proxies, over levels, with a `memory`, mixup, `include_query` or a preset of released code | refused: `InputError` |

Its wrappers accept its own classes only. `MetricLearningLoss` and `MetricLearningMemory` are such classes, and
`DistributedLossWrapper` takes both, `efficient` or not:

```python
from pytorch_metric_learning.miners import PairMarginMiner
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

from sightline.losses.metric_learning import MetricLearningLoss, MetricLearningMemory

loss(embeddings, labels, PairMarginMiner()(embeddings, labels))
memory = MetricLearningMemory(MetricLearningLoss(loss), embedding_size=128, memory_size=1024)  # a CrossBatchMemory
memory(embeddings, labels)
distributed = DistributedLossWrapper(MetricLearningLoss(loss))
```

A loss of another package is named by its import path: `sl.create_loss("pytorch_metric_learning.losses:MultiSimilarityLoss",
trust=True)`. It gets the finest labels, `(B,)`, unless it has an attribute `takes_levels = True`, and `indices_tuple` and a
reference set where its `forward` has these arguments. A package adds names of its own by entry points of the group
`sightline.losses`. Training calls a method `start_epoch()` of a loss, or of a part of it, before each epoch. The losses of
pytorch-metric-learning compute scores in half precision under autocast, and the gradient of its ArcFace is NaN on a proxy;
elsewhere ours equal them.

## What the core promises

The losses with SupRank or a sigmoid are formulas on ranks from one core, `sightline.ranking.profile`.

- **Cost.** On a CPU in float32: a sort of each row and a few passes over it, whatever the number of relevant items, and
  one more matrix of the scores' size. On other devices in float32: the same in blocks of a sorted row, a few times as long.
  In float64: every pair of a relevant item and another, in blocks of 8 MB. [performance.md](performance.md) has the times.
- **Accuracy.** Against every pair evaluated in float64, ranks are within 1e-4 of their value and gradients within 1e-3 of
  their norm, for tau from 0.001 to 0.1 and scores spread over [-1, 1], concentrated in [0.5, 0.6], tied, constant or of
  standard deviation 3, including gaps that equal `delta` up to the last bit. `tests/ranking/test_profile.py` checks the
  compiled code and that of other devices.
- **Bounds.** With the preset `paper`, `sup_ap`, `sup_h_ap` and `sup_ndcg` are upper bounds of one minus their metric as
  `sl.evaluate(..., ties="counting")` gives it for label trees and relevance matrices (`judgements=`); of sets of labels it
  measures another worth. Its stricter default breaks ties one by one, and then equal scores can break the bound.
  `sup_recall` is not a bound.
- **Gradients** are of the first order: a second derivative through the compiled core is refused.
- **Precision.** Half precision is widened before scores are computed, inside autocast too: losses are float32, or float64
  for float64 embeddings.
- **`torch.compile`**: on a CPU the graph breaks around the compiled loops (`fullgraph=True` fails); on other devices a loss
  on classes or levels is one graph. Exceptions are `blackbox_ap`, `blackbox_recall`, and sums over levels with proxies.
  Value and gradient are those of the plain call. Inside a graph NaN, infinity and labels without a proxy are not refused.
- **On a GPU** everything stays on the device of the embeddings. The host waits for it once to refuse NaN; a ranking loss
  waits once more for the largest number of relevant items, and a proxy loss once more to refuse labels without a proxy.
  `tests/gpu/test_devices.py` counts these waits for every loss.
- **Presets.** `released-code` and `released-code-inaturalist` repeat where the authors' code differs from their
  papers: the query ranks itself, a tie counts one half, the step breaks at delta, and `calibration` counts non-zero pairs.
- **Never NaN.** A query without relevant items is left out; a batch without any gives 0 with a gradient of 0. A gradient
  too large for float16 embeddings becomes infinite, which is what a gradient scaler looks for.

## Notation

"""


def plain(text: str) -> str:
    """reStructuredText to Markdown: roles, double ticks and line ends within a paragraph; names of losses in ticks."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    text = re.sub(r"(?<!\n)\n(?!\n|- )\s*", " ", text)
    outside = "|".join(name for name in losses.LOSSES if "_" in name)
    return re.sub(rf"`[^`]*`|\b(?:{outside})\b", lambda found: f"`{found[0].strip('`')}`", text)


def sections_of(docstring: str) -> dict[str, str]:
    """The parts of a docstring by heading; what comes before the first has the heading ``""``."""
    parts = re.split(r"^(\w+):\n(?=    )", docstring, flags=re.M)
    return {"": parts[0].strip()} | {
        name: inspect.cleandoc(body).strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def describing(name: str) -> Callable[..., object]:
    """What documents a loss: its function on tensors, or what makes it where it has none."""
    function = getattr(losses, f"{name}_loss", None)
    return losses.LOSSES.find(name) if function is None else function


def call_of(name: str) -> str:
    """How the loss is made, with its defaults."""
    if name not in losses.LOSSES:
        return f"sl.losses.{name}_loss(logits, targets)"
    options = losses.LOSSES.options(name).values()
    shown = [o.name if o.default is o.empty else f"{o.name}={_number(o.default)}" for o in options]
    return f"create_loss({', '.join([repr(name), *shown])})".replace("'", '"')


def _number(default: object) -> str:
    return f"{default:.4g}" if isinstance(default, float) else repr(default)


def entry(name: str) -> str:
    """The part of the page on one loss."""
    parts = sections_of(inspect.getdoc(describing(name)) or "")
    if missing := [section for section in SECTIONS if section not in parts]:
        raise ValueError(f"{name}: its docstring lacks {', '.join(missing)}")
    lines = [f"### `{name}`", "", f"`{call_of(name)}`", "", plain(parts[""]), ""]
    lines += [f"- **{section}.** {plain(parts[section])}" for section in SECTIONS]
    return "\n".join(lines)


def page() -> str:
    """The whole page, family by family."""
    text = HEAD + plain((losses.__doc__ or "").split("\n\n", 1)[1].strip())
    members: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in (*losses.list_losses(), *BESIDE):
        members[describing(name).__module__.rpartition(".")[2]].append(name)
    for family, title in FAMILIES.items():
        about = "" if family == "losses" else sys.modules[f"sightline.losses.{family}"].__doc__ or ""
        text += "\n\n".join([f"\n\n## {title}", *filter(None, [plain(about)]), *map(entry, members[family])])
    return text + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
