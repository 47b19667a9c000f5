"""Changes to groups: each by hand, then many at random against undo, redo and reading the journal again."""

import copy

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline.errors import InputError
from sightline.hierarchy.collect import write_step
from sightline.hierarchy.journal import Review, first_state, merge_reviews, read_review

ROWS = [("cat", "pets", "animals"), ("dog", "pets", "animals"), ("lion", "wild", "animals")]
ROWS += [("oak", "trees", "plants"), ("elm", "trees", "plants")]
FIRST = {text: f"{coarse}/{fine}" for text, fine, coarse in ROWS}
DROP_CAT, DROP_LION = ({"action": "drop", "texts": [text]} for text in ("cat", "lion"))


def table(rows=ROWS):
    made = pl.DataFrame(rows, schema=["text", "group_1", "group_2"], orient="row")
    return made.with_columns(n_labels=pl.lit(1), n_images=pl.lit(2))


@pytest.fixture
def folder(tmp_path):
    write_step(tmp_path, "clusters.csv", table())
    return tmp_path


def number(review, name):
    return next(place for place, group in review.state.groups.items() if group.name == name)


def paths(review):
    return {text: "/".join(reversed(review.state.path(text))) for text in review.state.home}


# Each change of groups, and where it brings which texts.
CHANGES = {
    "rename": lambda at: ({"group": at("pets"), "name": " house  pets "}, {"cat dog": "animals/house pets"}),
    "merge": lambda at: ({"groups": [at("wild")], "into": at("pets")}, {"lion": "animals/pets"}),
    "merge above": lambda at: ({"groups": [at("plants")], "into": at("animals")}, {"oak elm": "animals/trees"}),
    "split": lambda at: ({"group": at("pets"), "name": "felines", "texts": ["cat"]}, {"cat": "animals/felines"}),
    "split above": lambda at: ({"group": at("animals"), "name": "beasts", "groups": [at("wild")]}, {"lion": "beasts/wild"}),
    "move": lambda at: ({"texts": ["lion", "cat"], "group": at("trees")}, {"lion cat": "plants/trees"}),
    "move a group": lambda at: ({"group": at("wild"), "parent": at("plants")}, {"lion": "plants/wild"}),
    "drop": lambda at: ({"texts": ["dog"]}, {"dog": ""}),
    "done": lambda at: ({"group": at("pets"), "done": True}, {}),
}


def done(review):
    return [group.name for group in review.state.groups.values() if group.done]


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_does_what_it_says_and_undo_takes_it_back(folder, name):
    review = Review(folder)
    change, moved = CHANGES[name](lambda group: number(review, group))
    expected = FIRST | {text: place for texts, place in moved.items() for text in texts.split()}
    review.act({"action": name.split()[0]} | change)
    assert paths(review) == paths(Review(folder)) == expected
    were_done = done(review)
    review.act({"action": "undo"})
    assert (paths(review), done(review)) == (FIRST, [])
    review.act({"action": "redo"})
    assert (paths(Review(folder)), done(Review(folder))) == (expected, were_done)


REFUSED = [
    ({"action": "rename", "group": 99, "name": "x"}, "no group 99"),
    ({"action": "rename", "group": 1, "name": " "}, "a group needs a name"),
    ({"action": "rename", "group": 1, "name": "trees"}, "another group is called 'trees': merge the two"),
    ({"action": "rename", "group": 1}, "rename: 'name' is missing"),
    ({"action": "merge", "groups": [1], "into": 1}, "another group"),
    ({"action": "merge", "groups": [0], "into": 1}, "'animals' is a group of level 2, not 1"),
    ({"action": "split", "group": 1, "name": "x", "texts": ["cat", "dog"]}, "some, not all"),
    ({"action": "split", "group": 1, "name": "x", "texts": ["oak"]}, "some, not all"),
    ({"action": "move", "texts": ["unicorn"], "group": 1}, "a list of texts"),
    ({"action": "move", "group": 1, "parent": 2}, "'wild' is a group of level 1, not 2"),
    ({"action": "undo"}, "nothing to undo"),
    ({"action": "redo"}, "nothing to redo"),
    ({"action": "renmae"}, "unknown action 'renmae': did you mean 'rename'"),
]


def test_what_does_not_fit_is_refused_and_not_written(folder):
    review = Review(folder)
    before = copy.deepcopy(review.state)
    for change, message in REFUSED:
        assert_refused(message, review.act, change)
        assert review.state == before
    assert not (folder / "journal.jsonl").exists()


def random_change(review, rng):
    groups = list(review.state.groups) or [0]
    one, other = (int(rng.choice(groups)) for _ in range(2))
    texts = [text for text in review.state.home if rng.random() < 0.3]
    return [
        {"action": "rename", "group": one, "name": f"name {rng.integers(100)}"},
        {"action": "merge", "groups": [one], "into": other},
        {"action": "split", "group": one, "name": f"part {rng.integers(100)}", "texts": texts, "groups": [other]},
        {"action": "move", "texts": texts, "group": one},
        {"action": "move", "group": one, "parent": other},
        {"action": "drop", "texts": texts},
        {"action": "done", "group": one, "done": bool(rng.integers(2))},
        {"action": "undo"},
        {"action": "redo"},
    ][rng.integers(9)]


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_read_again_is_the_same_and_undone_is_the_first(folder, seed):
    rng = np.random.default_rng(seed)
    review, n_made = Review(folder), 0
    for _ in range(60):
        before = copy.deepcopy(review.state)
        try:
            review.act(random_change(review, rng))
            n_made += 1
        except InputError:
            assert review.state == before
        assert {*review.state.home} == {*FIRST}
        assert len({(g.level, g.name) for g in review.state.groups.values()}) == len(review.state.groups)
    assert n_made > 15
    again = Review(folder)
    assert (again.state, again.version) == (review.state, review.version)
    assert (again.can_undo, again.can_redo) == (review.can_undo, review.can_redo)
    while again.can_undo:
        again.act({"action": "undo"})
    assert paths(again) == FIRST


def test_a_journal_cut_off_at_any_byte_keeps_all_whole_lines_and_goes_on(folder):
    """Whatever was on disk when the power went: an empty file, half a first line, a line without its end."""
    review, file = Review(folder), folder / "journal.jsonl"
    for change in (DROP_CAT, DROP_LION):
        review.act(change)
    whole = file.read_bytes()
    ends = {place + n for place, byte in enumerate(whole) if byte == ord("\n") for n in (0, 1, 2)}
    for n_bytes in sorted(ends & {*range(len(whole))} | {*range(0, len(whole), 9), len(whole)}):
        file.write_bytes(whole[:n_bytes])
        n_kept = max(0, whole[:n_bytes].count(b"\n") - 1)  # the first line says whose journal it is
        again = Review(folder)
        assert again.state.left_out() == ["cat", "lion"][:n_kept]
        again.act({"action": "drop", "texts": ["dog"]})
        assert {*Review(folder).state.left_out()} == {*["cat", "lion"][:n_kept], "dog"}
        assert Review(folder).version == n_kept + 1


def test_a_change_that_cannot_be_written_is_reported_and_not_made(folder, monkeypatch):
    review = Review(folder)
    review.act(DROP_CAT)
    whole, state = (folder / "journal.jsonl").read_bytes(), copy.deepcopy(review.state)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sightline.hierarchy.journal.os.fsync", full)
        for change in ({"action": "drop", "texts": ["dog"]}, {"action": "undo"}):
            assert_refused(["journal.jsonl", "No space left"], review.act, change)
            assert (review.state, review.version) == (state, 1)
    assert (folder / "journal.jsonl").read_bytes() == whole
    review.act(DROP_LION)
    assert Review(folder).state.left_out() == ["cat", "lion"]


def test_a_journal_of_other_clusters_is_refused(folder):
    Review(folder).act(DROP_CAT)
    write_step(folder, "clusters.csv", table(ROWS[1:]))
    assert_refused(r"belongs to another clusters\.csv", Review, folder)
    for text in ('x\n{"a": 1}\n', '5\n{"a": 1}\n'):
        (folder / "journal.jsonl").write_text(text)
        assert_refused(["line 1", "JSON"], Review, folder)


def test_the_table_can_be_edited_and_read_again(folder):
    review = Review(folder)
    review.act(DROP_CAT)
    file = write_step(folder, "review.csv", review.table())
    state = read_review(file)
    assert {text: state.path(text) for text in state.home} == {text: review.state.path(text) for text in review.state.home}
    edited = review.table().with_columns(group_2=pl.lit("all"))
    assert read_review(write_step(folder, "review.csv", edited)).path("oak") == ["trees", "all"]
    wrong = write_step(folder, "review.csv", review.table().with_columns(keep=pl.lit("maybe")))
    assert_refused("line 2: keep is 'maybe', not yes or no", read_review, wrong)


def test_faults_of_a_table_are_named_at_once_by_its_own_lines(folder):
    rows = [("cat", "pets", "animals"), ("oak", "pets", "plants"), ("elm", "", "plants"), ("cat", "pets", "animals")]
    facts = ["review.csv: 3 faults", "line 3: 'pets' ", "'animals', 'plants'", "line 4: 'elm' has no group_1"]
    assert_refused([*facts, "line 5: 'cat'"], first_state, table(rows), "review.csv")
    file = folder / "edited.csv"
    file.write_text("text,group_1,keep\nufo,,no\ncat,pets,yes\ndog,,yes\ncat,,NO\n")
    assert_refused(["2 faults", "line 4", "'dog'", "group_1", "line 5", "'cat'"], read_review, file)
    assert_refused(["line 5", "'cat'"], merge_reviews, [file, file])
    file.write_text("text,group_1,keep\n")
    assert_refused("the table has no row", read_review, file)


def test_two_reviews_are_joined_where_they_agree(folder):
    review = Review(folder)
    one = write_step(folder, "one.csv", review.table())
    review.act({"action": "move", "texts": ["lion"], "group": number(review, "pets")})
    review.act({"action": "drop", "texts": ["elm"]})
    two = write_step(folder, "two.csv", review.table())
    agreed, conflicts = merge_reviews([one, two])
    assert sorted(agreed["text"]) == ["cat", "dog", "oak"]
    found = {row["text"]: row["2: two.csv"] for row in conflicts.to_dicts()}
    assert found == {"lion": "animals > pets", "elm": "(left out)"}
    other = write_step(folder, "other.csv", review.table()[:2])
    assert_refused("other texts or levels", merge_reviews, [one, other])
