"""What a run tells while it goes: a CSV file, what else is wanted, and a progress bar."""

import csv
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.errors import InputError
from sightline.files import replaced
from sightline.progress import printable
from sightline.training.checkpoint import Position
from sightline.training.loggers import open_loggers

COLUMNS = ("step", "epoch", "name", "value")
TERM = "term/"  # before the name of a term of the loss


class RunLog:
    """Numbers by step, as rows ``step, epoch, name, value`` of ``log.csv`` and to the loggers that are wanted.

    Opened at a position, it forgets what was written beyond it, so that a resumed run leaves the log of a run that never
    stopped.
    """

    def __init__(self, folder: Path, position: Position, loggers: tuple[str, ...] = ()) -> None:
        self.file = folder / "log.csv"
        rows = [row for row in read_log(self.file) if row[0] <= position.step and position.step > 0]
        with replaced(self.file) as scratch, scratch.open("w", newline="") as stream:
            csv.writer(stream).writerows([COLUMNS, *rows])
        self.loggers = open_loggers(loggers, folder, position.step)
        self.stream = self.file.open("a", newline="")
        self.writer = csv.writer(self.stream)

    def write(self, step: int, epoch: int, values: dict[str, float]) -> None:
        """Add the values of one step."""
        self.writer.writerows((step, epoch, name, repr(float(value))) for name, value in values.items())
        self.stream.flush()
        for logger in self.loggers:
            logger.write(step, values)

    def close(self) -> None:
        """Write what is still held back."""
        self.stream.close()
        for logger in self.loggers:
            logger.close()


def read_log(file: Path) -> list[tuple[int, int, str, float]]:
    """The whole rows of ``log.csv``; none where the file is not there. A row cut off by a crash is left out.

    A row of other than step, epoch, name and value is refused.
    """
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8", errors="replace") as stream:
        text = stream.read()
    rows = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].split("\n")[1:-1], start=2):
        try:
            ((step, epoch, name, value),) = csv.reader([line])
            rows.append((int(step), int(epoch), name, float(value)))
        except (ValueError, csv.Error) as error:
            raise InputError(f"{file}: line {number}: step, epoch, name and value are needed: {line[:80]!r}") from error
    return rows


class RunProgress:
    """A bar with the loss, images a second and the time left; silent where it is not wanted."""

    def __init__(self, n_epochs: int, shown: bool) -> None:
        self.n_epochs = n_epochs
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} images/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self.task = self.progress.add_task("", visible=False, loss=0.0, speed=0.0)  # until the first step
        self.since = time.monotonic()
        self.n_images = 0

    def __enter__(self) -> "RunProgress":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def show(self, position: Position, n_batches: int, n_images: int, loss: float) -> None:
        """One more step of an epoch of ``n_batches``."""
        self.n_images += n_images
        speed = self.n_images / max(1e-9, time.monotonic() - self.since)
        done, total = position.epoch * n_batches + position.batch, self.n_epochs * n_batches
        title = f"Epoch {position.epoch + 1}/{self.n_epochs}"
        self.progress.update(
            self.task, visible=True, description=title, completed=done, total=total, loss=loss, speed=speed
        )

    def say(self, line: str) -> None:
        """A line above the bar."""
        if not self.progress.disable:
            self.progress.console.print(printable(line), highlight=False, markup=False)
