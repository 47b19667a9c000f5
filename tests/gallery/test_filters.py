"""The language of filters means what Python means, over what items have, and nothing else is in it."""

import json
import operator
import sqlite3
from contextlib import closing

from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import assert_refused
from sightline.gallery.filters import compile_filter, filter_names

VALUES = [None, True, False, 0, 1, -3, 2.5, 2020]
VALUES += ["", "a", "b", "2020", "Flags", "O'Brien", 'say "x"', "ü", "1 OR 1=1", '["a"]']
ITEMS = [{"x": value, "y": VALUES[-1 - n]} for n, value in enumerate(VALUES)] + [{}, {"y": "a"}]
CODES = ["26", "26.1", "26.10", "26.1.15", "26.", "26/1", "5.3", "a", ".a", "%", "2_.1", "O'B", 'x"', "ü.é", "' OR '1'='1"]
ITEMS += [{"x": CODES[n : n + 1 + n % 3], "y": CODES[n - 1 :: -4] or None} for n in range(len(CODES))]


def holding(text, items=ITEMS):
    """The places of the items for which the compiled condition holds, by a database of its own."""
    condition = compile_filter(text)
    rows = [(n, f"id {n}", json.dumps(item, ensure_ascii=False)) for n, item in enumerate(items)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE items (row INTEGER PRIMARY KEY, id TEXT, metadata TEXT)")
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        found = connection.execute(f"SELECT row FROM items WHERE {condition.sql} ORDER BY row", condition.values)
        return [row for (row,) in found]


def python_value(left, symbol, right):
    if symbol in ("==", "!="):
        return (left == right) == (symbol == "==")
    if isinstance(left, list) or isinstance(left, str) != isinstance(right, str) or left is None:
        return False
    return {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[symbol](left, right)


def listed(value):
    return value if isinstance(value, list) else []


def is_below(code, prefix):
    """Whether the parts of a code begin with those of the prefix."""
    return code.split(".")[: prefix.count(".") + 1] == prefix.split(".")


@st.composite
def conditions(draw, depth=3):
    """A text, and the function of an item that it states."""
    leaves = ["compare", "in", "lists", "has"]
    kind = draw(st.sampled_from([*leaves, "not", "and", "or"] if depth else leaves))
    name = draw(st.sampled_from(["x", "y", "nobody"]))
    if kind == "compare":
        symbol = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
        value = draw(st.sampled_from(VALUES if symbol in ("==", "!=") else VALUES[1:]))
        if draw(st.booleans()):
            return f"{name} {symbol} {value!r}", lambda item: python_value(item.get(name), symbol, value)
        mirror = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(symbol, symbol)
        return f"{value!r} {mirror} {name}", lambda item: python_value(item.get(name), symbol, value)
    if kind == "in":
        values = draw(st.lists(st.sampled_from(VALUES), max_size=4))
        word = draw(st.sampled_from(["in", "not in"]))
        return f"{name} {word} {values!r}", lambda item: (item.get(name) in values) == (word == "in")
    if kind in ("lists", "has"):
        code, word = draw(st.sampled_from(CODES)), draw(st.sampled_from(["in", "not in"]))
        if kind == "has":
            return f"has({name}, {code!r})", lambda item: any(is_below(one, code) for one in listed(item.get(name)))
        return f"{code!r} {word} {name}", lambda item: (code in listed(item.get(name))) == (word == "in")
    first = draw(conditions(depth - 1))
    if kind == "not":
        return f"not ({first[0]})", lambda item: not first[1](item)
    second = draw(conditions(depth - 1))
    joined = all if kind == "and" else any
    return f"({first[0]}) {kind} ({second[0]})", lambda item: joined(part[1](item) for part in (first, second))


@given(conditions())
@settings(max_examples=300)
def test_a_filter_means_what_python_means(condition):
    text, meaning = condition
    assert holding(text) == [n for n, item in enumerate(ITEMS) if meaning(item)]


def test_by_hand():
    assert [ITEMS[n]["x"] for n in holding("0 < x <= 2020")] == [True, 1, 2.5, 2020]
    for text, expected in (
        ('id == "id 3"', [3]),
        ('id in ("id 3", "id 5") and not x == -3', [3]),
        ("x == 'O\\'Brien'", [VALUES.index("O'Brien")]),
        (" x == None ", [0, len(VALUES), len(VALUES) + 1]),
    ):
        assert holding(text) == expected
    marks = [{"codes": ["26.1"]}, {"codes": ["5", "26.1.15"]}, {"codes": ["26.10"]}, {"codes": "26.1"}, {}]
    assert holding('has(codes, "26.1")', marks) == holding('"26.1" in codes or "5" in metadata["codes"]', marks) == [0, 1]
    assert holding('not has(codes, "26") and codes != None', marks) == [3]
    assert filter_names("has(codes, '26') and 'a' not in tags") == ["codes", "tags"]


def test_any_name_can_be_asked_for_in_brackets():
    for name in ("class", "product type", "a.b", "x[0]", "it's", "ﬁ", "ü/~1", "metadata", "1 OR 1=1"):
        items = [{name: 1}, {name: "1"}, {"x": 1}, {"fi": 1, "a": {"b": 1}}]
        spelt = f"metadata[{name!r}]"
        assert holding(f"{spelt} == 1", items) == [0]
        assert holding(f"'a' in {spelt} and has({spelt}, 'a')", [{"x": ["a"]}, {name: ["a", "b"]}]) == [1]
        assert holding(f"1 <= {spelt} < 2 or {spelt} in ['1']", items) == [0, 1]
        assert holding(f"not {spelt} != None", items) == [2, 3]
        assert filter_names(f"{spelt} == 1 and x == 2") == sorted([name, "x"])
        assert name not in compile_filter(f"{spelt} == 1").sql or name == "metadata"
    assert holding('metadata["id"] == "id 2"', items) == [2]


def test_values_are_never_part_of_the_statement():
    for value in VALUES[10:]:
        condition = compile_filter(f"x == {value!r} or y in [{value!r}]")
        assert condition.sql == compile_filter("x == 'other' or y in ['other']").sql
        assert "other" not in condition.sql
        lists = compile_filter(f"{value or 'a'!r} in x and has(x, {value or 'a'!r})")
        assert lists.sql == compile_filter("'other' in x and has(x, 'other')").sql
    assert "label" not in compile_filter("label == 1").sql


FOREIGN = r"""
x | True | x == | x = 1 | x == y | 1 == 1 | x is None | x == f'{y}' | x == 1 + 1 | x == -'a' | x == not 1 | x == [1]
x == b'a' | x == 1j | x == ... | x in 'abc' | 'a' in 'abc' | x in [y] | x in [[1]] | x.y == 1 | x[0] == 1 | x['y'] == 1
metadata[0] == 1 | metadata[x] == 1 | metadata['x']['y'] == 1 | metadata['x':'y'] == 1 | metadata[''] == 1
metadata['"'] == 1 | metadata['\\'] == 1 | metadata['a\nb'] == 1 | metadata['\ud800'] == 1 | metadata['x'] == metadata['y']
x() == 1 | len(x) == 1 | lambda: 1 | [x for x in y] | x if y else z | x := 1 | x < None | x == 99999999999999999999
x < 1e999 | import os | __import__('os').system('true') | x == 1; DROP TABLE items | x == 1 -- y | x == '\ud800'
x in ['a', '\udfff'] | x == ['a'] | x in [['a']] | 1 in x | None in x | '' in x | ['a'] in x | y in x | 'a' in id
'a' in x.y | has(x) | has(x, 1) | has(x, '') | has(x, y) | has('x', 'a') | has(x, 'a', 'b') | has(x, prefix='a')
has(x, *['a']) | has(id, 'a') | has(x, '\ud800') | '\ud800' in x | has(metadata['"'], 'a') | 'a' in metadata['']
had(x, 'a') | has(x, 'a') == 1 | x.has('a')
has(has(x, 'a'), 'a')
"""
FOREIGN = [text.strip() for line in FOREIGN.strip().splitlines() for text in line.split(" | ")]
FOREIGN += ["", "x == '\0'\n\0", "(" * 5000 + "x" + ")" * 5000, "not " * 3000 + "x == 1", "x == '" + "a" * 20_000 + "'"]
FOREIGN += [" or ".join(["x == 1"] * 501), "not " * 30 + "x == 1", {"x": 1}]


def test_what_is_not_in_the_language_is_refused():
    assert len(FOREIGN) == 81
    for text in FOREIGN:
        assert_refused("filter", compile_filter, text)


def test_the_largest_filters_that_are_read_are_answered():
    ones, deep = holding("x == 1"), "x == 1"
    for turn in range(27):
        deep = f"({deep}) {'or' if turn % 2 else 'and'} x in [1, None]"
    assert holding(deep) == [n for n in holding("x in [1, None]") if n in holding(deep)]
    assert holding(" or ".join(["has(x, '26')"] * 500)) == holding("has(x, '26')")
    for text in (
        *(word.join(["x == 1"] * 500) for word in (" or ", " and ")),
        "x " + "== 1 and x " * 499 + "== 1",
        "not " * 28 + "x == 1",
        "not (" * 28 + "x == 1" + ")" * 28,
        f"x in [{', '.join(['1'] * 3300)}]",
    ):
        assert holding(text) == ones
