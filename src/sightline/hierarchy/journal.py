"""Fifth step: a person's changes to the groups, each a line of ``journal.jsonl``; the state is what these lines say.

A change is on disk before it is shown. Undo and redo are lines too, so nothing is ever lost.
"""

import errno
import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl

from sightline.data.manifest import read_text_table
from sightline.errors import InputError, choose, named_errors, names, raise_faults
from sightline.files import read_json_object
from sightline.hierarchy.collect import (
    AGREED,
    CLUSTERS,
    CONFLICTS,
    JOURNAL,
    MADE_FOR,
    check_made_for,
    digest,
    read_step,
    write_step,
)

Change = dict[str, Any]


@dataclass
class Group:
    """Texts (at level 1) or groups of the level below, under a name.

    Attributes:
        name: unique in its level.
        level: 1 the finest.
        parent: the number of the group above; None at the top.
        done: a reviewer has confirmed it.
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
    _texts: defaultdict[int | None, dict[str, None]] = field(default_factory=lambda: defaultdict(dict), compare=False)

    def __post_init__(self) -> None:
        for text, group in self.home.items():
            self._texts[group][text] = None

    def texts(self, group: int) -> list[str]:
        """All texts of a group, or of the groups in it."""
        return [*self._texts[group], *(text for child in self.children(group) for text in self.texts(child))]

    def members(self, group: int) -> list[str] | list[int]:
        """What is just below: texts at level 1, groups above."""
        return self.texts(group) if self.groups[group].level == 1 else self.children(group)

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

    def put(self, members: Iterable[str | int], group: int | None) -> None:
        """Put texts into a group of level 1 or into none, or groups below another one."""
        for member in members:
            if isinstance(member, str):
                del self._texts[self.home[member]][member]
                self._texts[group][member] = None
                self.home[member] = group
            else:
                self.groups[member].parent = group

    def prune(self) -> None:
        """Remove groups that have become empty."""
        for level in range(1, self.n_levels + 1):
            used = {group.parent for group in self.groups.values()} | {one for one, texts in self._texts.items() if texts}
            self.groups = {n: group for n, group in self.groups.items() if group.level != level or n in used}


def group_of(state: GroupState, number: object, level: int | None = None) -> Group:
    """A group by its number, of a level if one is given."""
    group = state.groups.get(number) if isinstance(number, int) else None
    if group is None:
        raise InputError(f"no group {number!r}")
    if level is not None and group.level != level:
        raise InputError(f"{group.name!r} is a group of level {group.level}, not {level}")
    return group


def _known_texts(state: GroupState, change: Change) -> list[str]:
    texts = change["texts"]
    if not isinstance(texts, list) or not texts or any(text not in state.home for text in texts):
        raise InputError("texts must be a list of texts of these groups")
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
        state.put(state.members(number), change["into"])
    into.done = False


def _split(state: GroupState, change: Change) -> None:
    """Some of a group's texts, or of its groups, become a group of their own beside it."""
    group = group_of(state, change["group"])
    name = _free_name(state, change["name"], group.level)
    parts = change["texts" if group.level == 1 else "groups"]
    if not parts or not {*parts} < {*state.members(change["group"])}:
        raise InputError(f"split: choose some, not all, of what is in {group.name!r}")
    state.groups[state.next_number] = Group(name, group.level, group.parent)
    state.put(parts, state.next_number)
    state.next_number += 1
    group.done = False


def _move(state: GroupState, change: Change) -> None:
    """Texts into another group of level 1, or a group below another one."""
    if "texts" in change:
        group_of(state, change["group"], 1)
        state.put(_known_texts(state, change), change["group"])
    else:
        group_of(state, change["parent"], group_of(state, change["group"]).level + 1)
        state.put([change["group"]], change["parent"])


def _drop(state: GroupState, change: Change) -> None:
    state.put(_known_texts(state, change), None)


def _mark(state: GroupState, change: Change) -> None:
    group_of(state, change["group"]).done = bool(change["done"])


CHANGES: dict[str, Callable[[GroupState, Change], None]] = {
    "done": _mark,
    "drop": _drop,
    "merge": _merge,
    "move": _move,
    "rename": _rename,
    "split": _split,
}


def make_change(state: GroupState, change: Change) -> None:
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
    for line, row in enumerate(table.select(pl.col(r"^(text|keep|group_\d+)$")).iter_rows(named=True), start=2):
        text, above = row["text"], None
        if text in home:
            faults.append(f"line {line}: {text!r} is there twice")
        path = {level: row[column] for level, column in enumerate(columns, start=1) if row.get("keep", "").lower() != "no"}
        if empty := [level for level, name in path.items() if not name]:
            faults.append(f"line {line}: {text!r} has no group_{empty[0]}")
        for level, name in reversed(path.items()) if not empty else ():
            place = number.setdefault((level, name), len(number))
            group = groups.setdefault(place, Group(name, level, above))
            if group.parent != above:
                parents = [groups[one].name for one in (group.parent, above) if one is not None]
                faults.append(f"line {line}: {name!r} has two parents: {names(parents)}")
            above = place
        home[text] = above
    raise_faults(source, faults)
    if not home:
        raise InputError(f"{source}: the table has no row")
    return GroupState(groups, home, len(columns), len(groups))


def group_columns(table: pl.DataFrame) -> list[str]:
    """``group_1``, ``group_2``, ... as far as the table has them."""
    n_levels = next(n for n in count() if f"group_{n + 1}" not in table.columns)
    return [f"group_{level}" for level in range(1, n_levels + 1)]


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
        for change in self._journal():
            self._changes, self._undone = _after(self._changes, self._undone, change)
            self.version += 1
        self.state = self._replay(self._changes)

    def act(self, change: Change) -> None:
        """Make a change, once it is in the journal; what does not fit is refused and not written."""
        with self.lock:
            kept, undone = _after(self._changes, self._undone, change)
            try:
                state = self._replay(kept) if change.get("action") in ("undo", "redo") else self.state
                if state is self.state:
                    make_change(state, change)
                self._write(change)
            except InputError:
                self.state = self._replay(self._changes)
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
        """One row a text: its counts, its groups now, ``keep`` and an empty ``comment``; what a person may edit as CSV.

        ``keep`` is ``no`` for texts left out, whose groups are empty.
        """
        columns = group_columns(self._table)
        paths = [self.state.path(text) or [""] * len(columns) for text in self._table["text"]]
        groups = pl.DataFrame(paths, dict.fromkeys(columns, pl.String), orient="row")
        counts = [name for name in ("n_labels", "n_images") if name in self._table.columns]
        keep = pl.when(pl.col("group_1") == "").then(pl.lit("no")).otherwise(pl.lit("yes"))
        table = self._table.select("text", *counts).hstack(groups)
        return table.with_columns(keep=keep, comment=pl.lit("")).sort(*reversed(columns), "text")

    def _replay(self, changes: Iterable[Change]) -> GroupState:
        state = first_state(self._table, self.folder / CLUSTERS)
        for change in changes:
            make_change(state, change)
        return state

    def _journal(self) -> list[Change]:
        """The changes on disk; a line that was cut off never took effect."""
        file = self.folder / JOURNAL
        changes = []
        for number, line in enumerate(file.read_bytes().split(b"\n")[:-1] if file.is_file() else (), start=1):
            with named_errors(file, f"line {number}: no change in JSON", TypeError, ValueError):
                changes += [dict(json.loads(line))] if line else []
        if changes and changes[0].get("clusters") != digest(self.folder / CLUSTERS):
            raise InputError(f"{file}: belongs to another {CLUSTERS}; bring that back, or move the journal away")
        return changes[1:]

    def _write(self, change: Change) -> None:
        file = self.folder / JOURNAL
        failures = named_errors(file, "the change could not be written", OSError)
        with failures, file.open("a+b", buffering=0) as journal:
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


def _after(changes: list[Change], undone: list[Change], change: Change) -> tuple[list[Change], list[Change]]:
    """What is in force, and what can be redone, once the change is made."""
    action = change.get("action")
    if not {"undo": changes, "redo": undone}.get(str(action), [change]):
        raise InputError(f"nothing to {action}")
    if action == "undo":
        return changes[:-1], [*undone, changes[-1]]
    if action == "redo":
        return [*changes, undone[-1]], undone[:-1]
    return [*changes, change], []


def read_review(file: Path) -> GroupState:
    """The groups of a table that a person edited; rows whose ``keep`` is ``no`` are left out."""
    table = read_text_table(file, ("text", "group_1", "keep"))
    wrong = [(line, word) for line, word in enumerate(table["keep"], start=2) if word.lower() not in ("yes", "no", "")]
    raise_faults(file, [f"line {line}: keep is {word!r}, not yes or no" for line, word in wrong])
    return first_state(table, file)


def merge_reviews(files: list[Path]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tables of several people joined: the rows on which all agree, and the others with a column for each file."""
    states = [read_review(file) for file in files]
    for file, state in zip(files, states, strict=True):
        if state.n_levels != states[0].n_levels or {*state.home} != {*states[0].home}:
            raise InputError(f"{file}: other texts or levels than {files[0]}: give tables of one review")
    rows = [
        (text, *(" > ".join(reversed(state.path(text))) or "(left out)" for state in states)) for text in states[0].home
    ]
    conflicts = [row for row in rows if len({*row[1:]}) > 1]
    schema = ["text", *(f"{n}: {file.name}" for n, file in enumerate(files, start=1))]
    agreed = read_text_table(files[0]).filter(~pl.col("text").is_in([row[0] for row in conflicts]))
    return agreed, pl.DataFrame(conflicts, dict.fromkeys(schema, pl.String), orient="row")


def reviewed_state(folder: Path, reviews: list[Path]) -> GroupState:
    """The groups of edited tables, which must agree, or of the journal if there are none.

    Where tables differ, ``conflicts.csv`` and ``agreed.csv`` are written and the first is named in the error.
    """
    if len(reviews) > 1:
        agreed, conflicts = merge_reviews(reviews)
        if len(conflicts):
            file, same = write_step(folder, CONFLICTS, conflicts), write_step(folder, AGREED, agreed)
            raise InputError(
                f"{file}: {len(conflicts)} texts on which the reviews differ; agree on them first. "
                f"{same} has the other {len(agreed)}"
            )
    return read_review(reviews[0]) if reviews else Review(folder).state
