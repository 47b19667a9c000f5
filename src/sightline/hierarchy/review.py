"""Fifth step: a person's changes to the groups, each a line of ``journal.jsonl``; the state is what these lines say.

A change is on disk before it is shown. Undo and redo are lines too, so nothing is ever lost.
"""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from sightline.errors import InputError, choose, names, raise_faults
from sightline.files import read_json_object
from sightline.hierarchy.collect import CLUSTERS, JOURNAL, MADE_FOR, check_made_for, digest, read_step, read_words

Change = dict[str, Any]


@dataclass
class Group:
    """Texts (at level 1) or groups of the level below, under a name.

    Attributes:
        name: unique in its level.
        level: 1 the finest.
        parent: the number of the group above; None at the top.
        done: somebody said that it is right.
    """

    name: str
    level: int
    parent: int | None
    done: bool = False


@dataclass
class GroupState:
    """What the groups are now.

    Attributes:
        groups: by number; a number is never used again.
        home: the group of each text; None for one that was left out.
        n_levels: of groups.
        next_number: of a new group.
    """

    groups: dict[int, Group]
    home: dict[str, int | None]
    n_levels: int
    next_number: int
    _below: dict[int, dict[str, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text, group in self.home.items():
            if group is not None:
                self._below.setdefault(group, {})[text] = None

    def texts(self, group: int) -> list[str]:
        """All texts of a group, or of the groups in it."""
        if self.groups[group].level == 1:
            return list(self._below.get(group, {}))
        return [text for child in self.children(group) for text in self.texts(child)]

    def children(self, group: int) -> list[int]:
        """The groups just below."""
        return [number for number, one in self.groups.items() if one.parent == group]

    def left_out(self) -> list[str]:
        """The texts that belong to no group."""
        return [text for text, group in self.home.items() if group is None]

    def path(self, text: str) -> list[str]:
        """The names of the text's groups, finest first; none if it was left out."""
        number, found = self.home[text], []
        while number is not None:
            found.append(self.groups[number].name)
            number = self.groups[number].parent
        return found

    def place(self, text: str, group: int | None) -> None:
        """Put a text into a group of level 1, or into none."""
        if (old := self.home[text]) is not None:
            del self._below[old][text]
        self.home[text] = group
        if group is not None:
            self._below.setdefault(group, {})[text] = None

    def prune(self) -> None:
        """Remove groups that have become empty."""
        for level in range(1, self.n_levels + 1):
            used = {group.parent for group in self.groups.values()}
            for number in [number for number, group in self.groups.items() if group.level == level]:
                if not (self._below.get(number) if level == 1 else number in used):
                    del self.groups[number]


def group_of(state: GroupState, number: object, level: int | None = None) -> Group:
    """A group by its number, of a level if one is asked for."""
    group = state.groups.get(number) if isinstance(number, int) else None
    if group is None:
        raise InputError(f"no group {number!r}")
    if level is not None and group.level != level:
        raise InputError(f"{group.name!r} is a group of level {group.level}, not {level}")
    return group


def _texts(state: GroupState, change: Change) -> list[str]:
    texts = change["texts"]
    if not isinstance(texts, list) or not texts or any(text not in state.home for text in texts):
        raise InputError("texts must be a list of known ones")
    return texts


def _free_name(state: GroupState, name: object, level: int, but: int | None = None) -> str:
    if not isinstance(name, str) or not name.strip():
        raise InputError("a group needs a name")
    name = " ".join(name.split())
    if any(one.level == level and one.name == name and number != but for number, one in state.groups.items()):
        raise InputError(f"another group is called {name!r}: merge the two, or choose another name")
    return name


def _rename(state: GroupState, change: Change) -> None:
    group = group_of(state, change["group"])
    group.name = _free_name(state, change["name"], group.level, change["group"])


def _merge(state: GroupState, change: Change) -> None:
    into = group_of(state, change["into"])
    others = [number for number in change["groups"] if number != change["into"]]
    if not others:
        raise InputError("merge: name another group")
    for number in others:
        group_of(state, number, into.level)
    for number in others:
        for text in state.texts(number) if into.level == 1 else []:
            state.place(text, change["into"])
        for child in state.children(number):
            state.groups[child].parent = change["into"]
    into.done = False


def _split(state: GroupState, change: Change) -> None:
    """Some of a group's texts, or of its groups, become a group of their own beside it."""
    group = group_of(state, change["group"])
    name = _free_name(state, change["name"], group.level)
    number = state.next_number
    if group.level == 1:
        parts: list[Any] = _texts(state, change)
        wrong = any(state.home[text] != change["group"] for text in parts)
    else:
        parts = change["groups"]
        wrong = not parts or any(group_of(state, part, group.level - 1).parent != change["group"] for part in parts)
    whole = len(state.texts(change["group"]) if group.level == 1 else state.children(change["group"]))
    if wrong or len({*parts}) == whole:
        raise InputError(f"split: choose some, not all, of what is in {group.name!r}")
    state.groups[number] = Group(name, group.level, group.parent)
    state.next_number += 1
    for part in parts:
        if group.level == 1:
            state.place(part, number)
        else:
            state.groups[part].parent = number
    group.done = False


def _move(state: GroupState, change: Change) -> None:
    """Texts into another group of level 1, or a group below another one."""
    if "texts" in change:
        group_of(state, change["group"], 1)
        for text in _texts(state, change):
            state.place(text, change["group"])
        return
    group = group_of(state, change["group"])
    group_of(state, change["parent"], group.level + 1)
    group.parent = change["parent"]


def _drop(state: GroupState, change: Change) -> None:
    for text in _texts(state, change):
        state.place(text, None)


def _done(state: GroupState, change: Change) -> None:
    group_of(state, change["group"]).done = bool(change["done"])


CHANGES: dict[str, Callable[[GroupState, Change], None]] = {
    "done": _done,
    "drop": _drop,
    "merge": _merge,
    "move": _move,
    "rename": _rename,
    "split": _split,
}


def changed(state: GroupState, change: Change) -> None:
    """Make the change, or refuse it and leave the state in doubt: work on a copy that can be thrown away."""
    try:
        choose(CHANGES, str(change.get("action")), "action")(state, change)
    except (KeyError, TypeError) as error:
        raise InputError(f"{change.get('action')}: {error} is missing or not what it should be") from error
    state.prune()


def first_state(table: pl.DataFrame, source: object) -> GroupState:
    """The groups of ``clusters.csv``, or of a table a person edited; groups are numbered in the order of their rows.

    Texts whose ``keep`` is ``no`` are left out.
    """
    columns = group_columns(table)
    if not columns:
        raise InputError(f"{source}: no column 'group_1'; the header has {names(table.columns)}")
    groups: dict[int, Group] = {}
    number: dict[tuple[int, str], int] = {}
    home: dict[str, int | None] = {}
    faults = []
    left_out = table["keep"].str.to_lowercase() == "no" if "keep" in table.columns else [False] * len(table)
    rows = zip(table.select("text", *columns).iter_rows(), left_out, strict=True)
    for line, ((text, *path), is_out) in enumerate(rows, start=2):
        if text in home:
            faults.append(f"line {line}: {text!r} is there twice")
        home[text] = None
        if is_out:
            continue
        if not all(path):
            faults.append(f"line {line}: {text!r} has no {columns[path.index('')]}")
            continue
        above = None
        for level in range(len(path), 0, -1):
            key = (level, path[level - 1])
            if key not in number:
                number[key] = len(number)
                groups[number[key]] = Group(path[level - 1], level, above)
            elif groups[number[key]].parent != above:
                parents = [groups[place].name for place in (groups[number[key]].parent, above) if place is not None]
                faults.append(f"line {line}: {path[level - 1]!r} has two parents: {names(parents)}")
            above = number[key]
        home[text] = above
    raise_faults(source, faults)
    if not home:
        raise InputError(f"{source}: the table has no row")
    return GroupState(groups, home, len(columns), len(groups))


def group_columns(table: pl.DataFrame) -> list[str]:
    """``group_1``, ``group_2``, ... as far as the table has them."""
    found: list[str] = []
    while f"group_{len(found) + 1}" in table.columns:
        found.append(f"group_{len(found) + 1}")
    return found


class Review:
    """The journal of a folder and what it makes of the clusters there; several threads may use it.

    Args:
        folder: with ``clusters.csv``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.lock = threading.RLock()
        self._table = read_step(self.folder, CLUSTERS, ("text", "group_1"))
        if (self.folder / MADE_FOR).is_file():
            check_made_for(self.folder, CLUSTERS, read_json_object(self.folder / MADE_FOR))
        self._changes: list[Change] = []
        self._undone: list[Change] = []
        self.version = 0
        self._read_journal()
        self.state = self._replayed(self._changes)

    def act(self, change: Change) -> None:
        """Make a change, once it is in the journal; what does not fit is refused and not written."""
        with self.lock:
            kept, undone = _after(self._changes, self._undone, change)
            try:
                state = self._replayed(kept) if change.get("action") in ("undo", "redo") else self.state
                if state is self.state:
                    changed(state, change)
                self._write(change)
            except InputError:
                self.state = self._replayed(self._changes)
                raise
            self._changes, self._undone, self.state = kept, undone, state
            self.version += 1

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to take back."""
        return bool(self._changes)

    @property
    def can_redo(self) -> bool:
        """Whether the last step was taken back."""
        return bool(self._undone)

    def table(self) -> pl.DataFrame:
        """One row a text: its counts, its groups now, ``keep`` and an empty ``comment``; what a person may edit as CSV."""
        return state_table(self._table, self.state)

    def _replayed(self, changes: Iterable[Change]) -> GroupState:
        state = first_state(self._table, self.folder / CLUSTERS)
        for change in changes:
            changed(state, change)
        return state

    def _read_journal(self) -> None:
        file = self.folder / JOURNAL
        if not file.is_file():
            return
        *lines, _ = file.read_bytes().split(b"\n")  # one cut off while it was written never took effect
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                change = dict(json.loads(line))
            except (TypeError, ValueError) as error:
                raise InputError(f"{file}: line {number}: no change in JSON: {error}") from error
            if number == 1:
                if change.get("clusters") != digest(self.folder / CLUSTERS):
                    raise InputError(f"{file}: belongs to another {CLUSTERS}; bring that back, or move the journal away")
                continue
            self._changes, self._undone = _after(self._changes, self._undone, change)
            self.version += 1

    def _write(self, change: Change) -> None:
        file = self.folder / JOURNAL
        try:
            with file.open("a+b", buffering=0) as journal:
                journal.seek(0)
                start = journal.read().rfind(b"\n") + 1  # what follows was cut off while it was written
                lines = [change] if start else [{"clusters": digest(self.folder / CLUSTERS)}, change]
                text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
                journal.truncate(start)
                try:
                    if journal.write(text) != len(text):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(journal.fileno())
                except OSError:
                    journal.truncate(start)
                    raise
        except OSError as error:
            raise InputError(f"{file}: the change could not be written: {error.strerror}") from error


def _after(changes: list[Change], undone: list[Change], change: Change) -> tuple[list[Change], list[Change]]:
    """What is in force, and what can be redone, once the change is made."""
    if change.get("action") == "undo":
        if not changes:
            raise InputError("nothing to undo")
        return changes[:-1], [*undone, changes[-1]]
    if change.get("action") == "redo":
        if not undone:
            raise InputError("nothing to redo")
        return [*changes, undone[-1]], undone[:-1]
    return [*changes, change], []


def state_table(clusters: pl.DataFrame, state: GroupState) -> pl.DataFrame:
    """The groups of each text as columns; ``keep`` is ``no`` for those left out, whose groups are empty."""
    columns = [f"group_{level}" for level in range(1, state.n_levels + 1)]
    paths = [state.path(text) or [""] * state.n_levels for text in clusters["text"]]
    found = {name: [path[level] for path in paths] for level, name in enumerate(columns)}
    counts = [name for name in ("n_labels", "n_images") if name in clusters.columns]
    series = {name: pl.Series(values, dtype=pl.String) for name, values in found.items()}
    table = clusters.select("text", *counts).with_columns(**series)
    kept = pl.Series(["yes" if path[0] else "no" for path in paths])
    return table.with_columns(keep=kept, comment=pl.lit("")).sort(*reversed(columns), "text")


def read_review(file: Path) -> GroupState:
    """The groups of a table that a person edited; rows whose ``keep`` is ``no`` are left out."""
    table = read_words(Path(file), ("text", "group_1", "keep"))
    wrong = table.with_row_index("row").filter(~pl.col("keep").str.to_lowercase().is_in(["yes", "no", ""]))
    rows = wrong.select("row", "keep").iter_rows()
    raise_faults(file, [f"line {row + 2}: keep is {found!r}, not yes or no" for row, found in rows])
    return first_state(table, file)


def merged_reviews(files: list[Path]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tables of several people joined: the rows on which all agree, and the others with a column for each file."""
    tables = [read_words(Path(file), ("text", "group_1", "keep")) for file in files]
    columns = group_columns(tables[0])
    for file, table in zip(files, tables, strict=True):
        read_review(file)  # raises what is wrong with it
        if group_columns(table) != columns or {*table["text"]} != {*tables[0]["text"]}:
            raise InputError(f"{file}: other texts or levels than {files[0]}: give tables of one review")
    is_out, path = pl.col("keep").str.to_lowercase() == "no", pl.concat_str(list(reversed(columns)), separator=" > ")
    place = pl.when(is_out).then(pl.lit("(left out)")).otherwise(path)
    both = tables[0].select("text", place.alias("1"))
    for number, table in enumerate(tables[1:], start=2):
        both = both.join(table.select("text", place.alias(str(number))), on="text", how="left", maintain_order="left")
    differs = pl.any_horizontal(pl.col(str(number)) != pl.col("1") for number in range(2, len(tables) + 1))
    conflicts = both.filter(differs).rename({str(n): f"{n}: {Path(file).name}" for n, file in enumerate(files, start=1)})
    agreed = tables[0].join(both.filter(~differs).select("text"), on="text", how="semi", maintain_order="left")
    return agreed, conflicts
