"""Every compiled loop and nothing else: arrays in, arrays out. `docs/kernels.md` explains them.

numba compiles a loop at its first call and keeps the result on disk; :class:`CompilationNotice` tells the user.
"""

from tempfile import TemporaryDirectory

from numba import config, njit
from numba.core import event

from sightline.progress import say


class CompilationNotice(event.Listener):
    """Prints one line on standard error when a loop of this package is compiled; nothing where all come from disk."""

    def __init__(self) -> None:
        self.printed = False

    def on_start(self, event: event.Event) -> None:
        """Print, once for each process."""
        if not self.printed and event.data["dispatcher"].py_func.__module__.startswith("sightline."):
            self.printed = True
            say("compiling kernels (once per installation) ...")

    def on_end(self, event: event.Event) -> None:
        """Nothing."""


event.register("numba:compile", CompilationNotice())
try:
    njit(cache=True)(lambda: None)  # not compiled: numba looks for the place of its cache here
except RuntimeError:  # neither the package's folder nor the user's can be written, as in some containers
    _folder = TemporaryDirectory(prefix="sightline-kernels-", ignore_cleanup_errors=True)
    config.CACHE_DIR = _folder.name  # type: ignore[attr-defined]
