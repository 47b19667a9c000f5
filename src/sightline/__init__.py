"""Image retrieval, trained on the metric you report."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sightline import losses, ood
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.data.manifest import Manifest, read_manifest
    from sightline.data.transforms import Preprocessing
    from sightline.errors import InputError
    from sightline.evaluation.benchmark_protocols import RetrievalSet, evaluate_dyml, evaluate_gldv2, evaluate_revisited
    from sightline.evaluation.decomposability import decomposability_gap
    from sightline.evaluation.metrics import Metric, list_metrics
    from sightline.evaluation.protocol import evaluate, evaluate_each_label
    from sightline.evaluation.result import Result, compare
    from sightline.evaluation.tables import evaluate_table
    from sightline.gallery.gallery import EncoderIdentity, Gallery, Item
    from sightline.gallery.query import refined_search, search_images
    from sightline.labels.codes import CodeRelevance
    from sightline.labels.relevance import Relevance
    from sightline.labels.tree import Tree
    from sightline.losses import create_loss, list_losses
    from sightline.models.card import read_card
    from sightline.models.embed import embed_manifest
    from sightline.models.encoder import Encoder
    from sightline.models.heads import Whitening
    from sightline.models.onnx_export import export_onnx
    from sightline.ranking.refine import Refinement
    from sightline.training.data_check import check_data
    from sightline.training.recipe import Recipe, read_recipe
    from sightline.training.run import train
    from sightline.training.tune import tune

__version__ = "0.1.0"

import_module("sightline.torchvision_operators").install()  # timm can be imported after sightline, torch or not

# Loaded on first use: losses alone need neither timm nor Lightning, and a command line's help needs not even torch.
_MODULES = {
    "CodeRelevance": "labels.codes",
    "EmbeddingTable": "data.embedding_table",
    "Encoder": "models.encoder",
    "EncoderIdentity": "gallery.gallery",
    "Gallery": "gallery.gallery",
    "InputError": "errors",
    "Item": "gallery.gallery",
    "Manifest": "data.manifest",
    "Metric": "evaluation.metrics",
    "Preprocessing": "data.transforms",
    "Recipe": "training.recipe",
    "Refinement": "ranking.refine",
    "Relevance": "labels.relevance",
    "Result": "evaluation.result",
    "RetrievalSet": "evaluation.benchmark_protocols",
    "Whitening": "models.heads",
    "Tree": "labels.tree",
    "check_data": "training.data_check",
    "compare": "evaluation.result",
    "create_loss": "losses",
    "decomposability_gap": "evaluation.decomposability",
    "embed_manifest": "models.embed",
    "evaluate": "evaluation.protocol",
    "evaluate_dyml": "evaluation.benchmark_protocols",
    "evaluate_each_label": "evaluation.protocol",
    "evaluate_gldv2": "evaluation.benchmark_protocols",
    "evaluate_revisited": "evaluation.benchmark_protocols",
    "evaluate_table": "evaluation.tables",
    "export_onnx": "models.onnx_export",
    "list_losses": "losses",
    "list_metrics": "evaluation.metrics",
    "losses": "losses",
    "ood": "ood",
    "read_card": "models.card",
    "read_manifest": "data.manifest",
    "read_recipe": "training.recipe",
    "refined_search": "gallery.query",
    "search_images": "gallery.query",
    "train": "training.run",
    "tune": "training.tune",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
    module = import_module(f"sightline.{_MODULES[name]}")
    return module if name == _MODULES[name] else getattr(module, name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "CodeRelevance",
    "EmbeddingTable",
    "Encoder",
    "EncoderIdentity",
    "Gallery",
    "InputError",
    "Item",
    "Manifest",
    "Metric",
    "Preprocessing",
    "Recipe",
    "Refinement",
    "Relevance",
    "Result",
    "RetrievalSet",
    "Tree",
    "Whitening",
    "__version__",
    "check_data",
    "compare",
    "create_loss",
    "decomposability_gap",
    "embed_manifest",
    "evaluate",
    "evaluate_dyml",
    "evaluate_each_label",
    "evaluate_gldv2",
    "evaluate_revisited",
    "evaluate_table",
    "export_onnx",
    "list_losses",
    "list_metrics",
    "losses",
    "ood",
    "read_card",
    "read_manifest",
    "read_recipe",
    "refined_search",
    "search_images",
    "train",
    "tune",
]
