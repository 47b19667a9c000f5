"""Imports go downwards between three bands and form no circle between parts or modules; other rules for all files."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import sightline

BANDS = {
    "foundations": ("errors", "files", "registry", "progress", "torchvision_operators", "kernels"),
    "domain": ("ranking", "labels", "data", "models", "losses", "evaluation", "training", "ood", "gallery"),
    "applications": ("hierarchy", "studies", "report", "serve", "cli", "__main__"),
}
BAND_OF = {part: height for height, parts in enumerate(BANDS.values()) for part in parts}
ROOT = "sightline"


def layer_faults(sources: dict[str, str]) -> list[str]:
    """What is wrong in a tree of modules, one sentence each.

    Args:
        sources: the text of each module by its full name; a package's ``__init__`` goes by the package's name.
    """
    placed = {module: text for module, text in sources.items() if module == ROOT or _part(module) in BAND_OF}
    faults = [f"{module}: {_part(module)!r} is in no band" for module in sources if module not in placed]
    modules = {module: set() for module in placed}
    parts = {_part(module): set() for module in placed if module != ROOT}
    for module, text in placed.items():
        for name in _imported(module, text, sources):
            target = name if name in sources else name.rpartition(".")[0]  # the module that the name is, or is in
            if target == ROOT and name != f"{ROOT}.__version__":
                faults.append(f"{module} takes {name} from the package itself, which can load any part")
            elif target not in placed:
                faults.append(f"{module} imports {name}, which is not there or in no band")
            elif target != ROOT and _height(module) < _height(target):
                faults.append(f"{module} imports {target}, which is in a band above it")
            else:
                modules[module].add(target)
                if ROOT not in (module, target) and _part(module) != _part(target):
                    parts[_part(module)].add(_part(target))
    for what, graph in (("modules", modules), ("parts", parts)):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            faults.append(f"a circle of {what}: {' <- '.join(error.args[1])}")
    return faults


def _part(module):
    return module.split(".")[1]


def _height(module):
    """The root stands below all: it may import no part."""
    return BAND_OF[_part(module)] if module != ROOT else -1


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


def test_sightline_imports_downwards_and_in_no_circle():
    sources = read_sources(Path(sightline.__file__).parent)
    assert {ROOT, "sightline.__main__", "sightline.cli.main", "sightline.evaluation.metrics"} <= sources.keys()
    assert layer_faults(sources) == []


def test_no_two_test_files_have_one_name():  # pytest imports them by that name alone
    files = [file.name for file in Path(__file__).parent.rglob("test_*.py")]
    assert len(files) == len(set(files))


def test_every_legend_has_a_place():  # matplotlib warns if it searches for the best one for more than a second
    files = [*Path(sightline.__file__).parent.rglob("*.py"), *(Path(__file__).parents[1] / "docs").glob("*.py")]
    sources = [text for file in files if ".legend(" in (text := file.read_text(encoding="utf-8"))]
    calls = [node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    legends = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "legend"]
    assert len(legends) >= 5
    assert [ast.unparse(call) for call in legends if "loc" not in {keyword.arg for keyword in call.keywords}] == []


ELSEWHERE = """
import builtins, ctypes, os, pkgutil, sys
from importlib import import_module

def ours():
    return sys._getframe(2).f_globals.get("__name__", "").startswith("sightline")

class OsElsewhere:
    def __getattr__(self, name):
        unix = name in ("fork", "getuid", "posix_fallocate", "pwrite", "sched_getaffinity", "sysconf")
        if unix or name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"):
            raise AttributeError(name)
        return getattr(os, name)

def hiding(real, is_missing, error):
    def call(*words, **options):
        if ours() and is_missing(words[0]):
            raise error
        return real(*words, **options)
    return call

def import_elsewhere(name, *context, **named):
    if ours() and name in ("fcntl", "grp", "pwd", "resource", "termios"):
        raise ModuleNotFoundError(name)
    return OsElsewhere() if name == "os" and ours() else imported(name, *context, **named)

imported = builtins.__import__
builtins.open = hiding(open, lambda file: str(file).startswith("/proc"), FileNotFoundError("/proc"))
ctypes.CDLL = hiding(ctypes.CDLL, lambda name: name is None, TypeError("a library needs a name"))
builtins.__import__ = import_elsewhere
import sightline
names = [found.name for found in pkgutil.walk_packages(sightline.__path__, "sightline.")]
for name in names:
    if name != "sightline.__main__":
        import_module(name)
print(len(names))
"""


def test_every_module_can_be_imported_where_unix_or_linux_is_not():
    """What exists there alone is hidden from Sightline's own modules; the libraries are built for this system."""
    found = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 120


GOOD = {
    "sightline": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sightline.models.encoder import Encoder\n",
    "sightline.errors": "import os\n\nclass InputError(ValueError): ...\n",
    "sightline.data": "",
    "sightline.data.manifest": "from sightline import __version__\nfrom sightline.errors import InputError\n",
    "sightline.data.images": "from .manifest import Manifest\nfrom ..errors import InputError\n",
    "sightline.models": "from sightline.models.encoder import Encoder\n",
    "sightline.models.encoder": "import sightline.data.images\nfrom sightline.data import images\n",
    "sightline.cli.main": "from sightline.models.encoder import Encoder",
}


TOO_HIGH = "sightline.cli.main, which is in a band above it"
BROKEN = [  # a module, its text, and what is wrong with it
    ("errors", "from sightline.data import manifest", "sightline.data.manifest, which is in a band above it"),
    ("data.images", "def late():\n    import sightline.cli.main as m", TOO_HIGH),
    ("data.images", "if TYPE_CHECKING:\n    from ..cli import main", TOO_HIGH),
    ("data.images", "from sightline.models.encoder import Encoder", "a circle of parts: "),
    ("data.images", "from sightline import Encoder", "takes sightline.Encoder from the package itself"),
    ("data.images", "from sightline.pictures.one import x", "sightline.pictures.one.x, which is not there"),
    ("data.manifest", "def late():\n    from sightline.data import images", "a circle of modules: "),
    ("models.encoder", "from sightline.models import Encoder", "a circle of modules: "),
    ("utils", "", "sightline.utils: 'utils' is in no band"),
    ("", "import sightline.errors", "sightline imports sightline.errors, which is in a band above it"),
]


def test_the_rule_finds_what_breaks_it():
    assert layer_faults(GOOD) == []
    for module, text, fault in BROKEN:
        found = layer_faults({**GOOD, f"sightline.{module}".rstrip("."): text})
        assert any(fault in one for one in found), (module, found)
