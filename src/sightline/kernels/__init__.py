"""Every compiled loop and nothing else: arrays in, arrays out. `docs/kernels.md` explains them.

numba compiles a loop at its first call and keeps the result on disk; :class:`CompilationNotice` tells the user.
"""

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
