"""Data flows downwards: a module imports only from its own package or from parts above it, and never in a circle."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sightline

ORDER = (
    "errors",
    "files",
    "registry",
    "progress",
    "papers",
    "torchvision_operators",
    "config",
    "ranking",
    "data",
    "hierarchy",
    "models",
    "losses",
    "training",
    "embedding",
    "search",
    "ood",
    "evaluation",
    "report",
    "serve",
    "preparation",
    "pipeline",
    "benchmark",
    "demo",
    "cli",
    "__main__",
)
ROOT = "sightline"


def layer_faults(sources: dict[str, str]) -> list[str]:
    """What is wrong in a tree of modules, one sentence each.

    Args:
        sources: the text of each module by its full name; a package's ``__init__`` goes by the package's name.
    """
    placed = {module: text for module, text in sources.items() if module == ROOT or _part(module) in ORDER}
    faults = [f"{module}: {_part(module)!r} has no place in the order" for module in sources if module not in placed]
    graph = {module: set() for module in placed}
    for module, text in placed.items():
        for name in _imported(module, text, sources):
            target = _module_of(name, sources)
            if target == ROOT and name != f"{ROOT}.__version__":
                faults.append(f"{module} takes {name} from the package itself, which can load any part")
            elif target not in placed:
                faults.append(f"{module} imports {name}, which is not there or has no place in the order")
            elif target != ROOT and _height(module) < _height(target):
                faults.append(f"{module} imports {target}, which stands below it")
            else:
                graph[module].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        faults.append(f"a circle of imports: {' <- '.join(error.args[1])}")
    return faults


def _part(module):
    return module.split(".")[1]


def _height(module):
    """The root stands above all: it may import no part."""
    return ORDER.index(_part(module)) if module != ROOT else -1


def _module_of(name, sources):
    """The module that an imported name is, or is in."""
    return name if name in sources else name.rpartition(".")[0]


def _imported(module, text, sources):
    """The full name of everything the module imports from Sightline, at its top or inside a function."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if module == ROOT and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # the names of the public interface, for type checkers alone; walk() comes to the body later
    is_package = any(other.startswith(f"{module}.") for other in sources)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == ROOT)


def read_sources(folder: Path) -> dict[str, str]:
    """The text of every module below a package's folder, by its full name."""
    sources = {}
    for file in folder.rglob("*.py"):
        parts = file.relative_to(folder.parent).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text(encoding="utf-8")
    return sources


def test_sightline_imports_downwards_only():
    sources = read_sources(Path(sightline.__file__).parent)
    assert {ROOT, "sightline.__main__", "sightline.cli.main", "sightline.evaluation.metrics"} <= sources.keys()
    assert layer_faults(sources) == []


GOOD = {
    "sightline": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sightline.models.encoder import Encoder\n",
    "sightline.errors": "import os\n\nclass InputError(ValueError): ...\n",
    "sightline.data": "",
    "sightline.data.manifest": "from sightline import __version__\nfrom sightline.errors import InputError\n",
    "sightline.data.images": "from .manifest import Manifest\nfrom ..errors import InputError\n",
    "sightline.models": "from sightline.models.encoder import Encoder\n",
    "sightline.models.encoder": "import sightline.data.images\nfrom sightline.data import images\n",
}


def test_a_tree_in_order_has_no_fault():
    assert layer_faults(GOOD) == []


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        (
            "sightline.data.images",
            "from sightline.models.encoder import Encoder",
            "sightline.data.images imports sightline.models.encoder, which stands below it",
        ),
        (
            "sightline.data.images",
            "def late():\n    if True:\n        import sightline.models.encoder as e",
            "sightline.data.images imports sightline.models.encoder, which stands below it",
        ),
        (
            "sightline.data.images",
            "if TYPE_CHECKING:\n    from ..models import encoder",
            "sightline.data.images imports sightline.models.encoder, which stands below it",
        ),
        (
            "sightline.errors",
            "from sightline.data import manifest",
            "sightline.errors imports sightline.data.manifest, which stands below it",
        ),
        (
            "sightline.data.images",
            "from sightline import Encoder",
            "sightline.data.images takes sightline.Encoder from the package itself, which can load any part",
        ),
        (
            "sightline.data.images",
            "import sightline",
            "sightline.data.images takes sightline from the package itself, which can load any part",
        ),
        (
            "sightline.data.images",
            "from sightline.pictures.one import x",
            "sightline.data.images imports sightline.pictures.one.x, which is not there or has no place in the order",
        ),
        ("sightline.utils", "", "sightline.utils: 'utils' has no place in the order"),
        ("sightline", "import sightline.errors", "sightline imports sightline.errors, which stands below it"),
    ],
)
def test_the_rule_finds_what_breaks_it(module, text, fault):
    found = layer_faults({**GOOD, module: text})
    assert fault in found


def test_the_rule_finds_a_circle_inside_a_package():
    circle = {"sightline.data.manifest": "def late():\n    from sightline.data import images\n"}
    assert layer_faults({**GOOD, **circle}) in (
        ["a circle of imports: sightline.data.images <- sightline.data.manifest <- sightline.data.images"],
        ["a circle of imports: sightline.data.manifest <- sightline.data.images <- sightline.data.manifest"],
    )
    through_the_package = {"sightline.models.encoder": "from sightline.models import Encoder"}
    assert "a circle of imports" in layer_faults({**GOOD, **through_the_package})[0]
