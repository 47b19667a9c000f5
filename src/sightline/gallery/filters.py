"""Conditions on metadata, such as ``label_1 == "Flags" and year >= 2020``, turned into SQL with parameters.

The language is Python's, cut down: ``and``, ``or``, ``not``, ``== != < <= > >=``, ``in`` and ``not in`` a list, names of
metadata, ``id``, strings, numbers, ``True``, ``False`` and ``None``. A name that Python could not have, such as ``class``
or one of two words, is written ``metadata["product type"]``. What an item lacks is ``None``; values of another type are
unequal, and neither smaller nor larger.
"""

import ast
from dataclasses import dataclass

from sightline.errors import InputError
from sightline.gallery.gallery import Value, is_utf8

LONGEST = 10_000
MOST_COMPARISONS = 500  # SQLite takes no condition of more than 1000 parts
DEEPEST = 30  # of parts in one another; SQLite takes 100, and a comparison has some itself
ORDERED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
FITS = (
    "names compared with strings in quotes, numbers, True, False or None by == != < <= > >= in, joined by and, or, not; "
    'a name that is no Python name as metadata["two words"]'
)


@dataclass(frozen=True)
class Condition:
    """An SQL condition over the columns ``id`` and ``metadata``, and the values of its question marks."""

    sql: str
    values: tuple[Value, ...]


def compile_filter(text: str) -> Condition:
    """The condition that a text in the language of this module states.

    Example:
        >>> compile_filter('year >= 2020 and label_1 == "Flags"').values[-2:]
        ('$."label_1"', 'Flags')
        >>> compile_filter("__import__('os')")
        Traceback (most recent call last):
        sightline.errors.InputError: filter "__import__('os')": ... is not in the language; ...
    """
    if not isinstance(text, str):
        raise InputError(f"a filter is a text, found {type(text).__name__}")
    if len(text) > LONGEST:
        raise InputError(f"a filter of {len(text)} letters; at most {LONGEST} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        _check_extent(tree.body, text)
        return _condition(tree.body, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"filter {text!r}: cannot be read: {getattr(error, 'msg', None) or error}; {FITS}") from error


def filter_names(text: str) -> list[str]:
    """The names that a condition asks for, each once; refused if it is not in the language.

    Example:
        >>> filter_names('year >= 2020 and (label_1 == "Flags" or year == 1999)')
        ['label_1', 'year']
    """
    compile_filter(text)
    comparisons = [node for node in ast.walk(ast.parse(text.strip(), mode="eval")) if isinstance(node, ast.Compare)]
    keys = {key_of(side) for node in comparisons for side in (node.left, *node.comparators)}
    return sorted(key for key in keys if key is not None)


def key_of(node: ast.expr) -> str | None:
    """The metadata key, or ``id``, that one side of a comparison names; None where it is a value."""
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or node.value.id != "metadata":
        return None
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str) else None


def _check_extent(tree: ast.expr, text: str) -> None:
    """Refuse what the language has and the database does not take."""
    n_comparisons, deepest, waiting = 0, 0, [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(node, ast.Compare):
            n_comparisons += len(node.ops)
        elif isinstance(node, ast.BoolOp):
            waiting += [(part, depth + 1) for part in node.values]
        elif isinstance(node, ast.UnaryOp):
            waiting.append((node.operand, depth + 1))
    if n_comparisons > MOST_COMPARISONS or deepest > DEEPEST:
        raise InputError(
            f"filter {text[:40]!r}...: {n_comparisons} comparisons, {deepest} conditions in one another; at most "
            f"{MOST_COMPARISONS} and {DEEPEST} are taken. `in` with a list is one comparison"
        )


def _condition(node: ast.expr, text: str) -> Condition:
    if isinstance(node, ast.BoolOp):
        word = " AND " if isinstance(node.op, ast.And) else " OR "
        return _joined(word, [_condition(part, text) for part in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _condition(node.operand, text)
        return Condition(f"NOT {inner.sql}", inner.values)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        steps = zip(sides[:-1], node.ops, sides[1:], strict=True)
        return _joined(" AND ", [_comparison(left, operator, right, text) for left, operator, right in steps])
    raise _foreign(node, text)


def _joined(word: str, parts: list[Condition]) -> Condition:
    return Condition(f"({word.join(part.sql for part in parts)})", tuple(value for part in parts for value in part.values))


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr, text: str) -> Condition:
    key, mirrored_key = key_of(left), key_of(right)
    if isinstance(operator, ast.In | ast.NotIn):
        if key is None or not isinstance(right, ast.List | ast.Tuple):
            raise _foreign(left if key is None else right, text)
        found = _member(_column(key, text), [_value(element, text) for element in right.elts])
        return found if isinstance(operator, ast.In) else Condition(f"NOT {found.sql}", found.values)
    if isinstance(operator, ast.Is | ast.IsNot) or (key is None) == (mirrored_key is None):
        raise _foreign(ast.Compare(left, [operator], [right]), text)
    mirrored = mirrored_key is not None
    value = _value(left if mirrored else right, text)
    column = _column(key or mirrored_key or "", text)
    # IS and the guards by type are true or false for NULL too, so that `not` can turn them round.
    if isinstance(operator, ast.Eq | ast.NotEq):
        word = "IS" if isinstance(operator, ast.Eq) else "IS NOT"
        return Condition(f"({column.sql} {word} ?)", (*column.values, value))
    if value is None:
        raise InputError(f"filter {text!r}: None is neither smaller nor larger than anything")
    symbol = ORDERED[type(operator)]
    types = "('text')" if isinstance(value, str) else "('integer', 'real')"
    ordered = f"{column.sql} {MIRRORED[symbol] if mirrored else symbol} ?"
    return Condition(f"(typeof({column.sql}) IN {types} AND {ordered})", (*column.values, *column.values, value))


def _column(key: str, text: str) -> Condition:
    """The value of a metadata key, or ``id``; NULL where an item has none."""
    if not key or any(letter in '"\\' or letter < " " for letter in key) or not is_utf8(key):
        raise InputError(f"filter {text!r}: {key!a} cannot be asked for: a name has neither quotes, backslashes nor breaks")
    return Condition("id", ()) if key == "id" else Condition("json_extract(metadata, ?)", (f'$."{key}"',))


def _member(column: Condition, values: list[Value]) -> Condition:
    there = [value for value in values if value is not None]
    marks = ", ".join("?" * len(there))
    listed = Condition(
        f"({column.sql} IS NOT NULL AND {column.sql} IN ({marks}))", (*column.values, *column.values, *there)
    )
    if len(there) == len(values):
        return listed
    return _joined(" OR ", [listed, Condition(f"({column.sql} IS NULL)", column.values)])


def _value(node: ast.expr, text: str) -> Value:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign, node = -1 if isinstance(node.op, ast.USub) else 1, node.operand
        if isinstance(node, ast.Constant) and type(node.value) not in (int, float):
            raise _foreign(node, text)
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str | int | float | None):
        raise _foreign(node, text)
    value = node.value
    if isinstance(value, str) and not is_utf8(value):
        raise InputError(f"filter {text!r}: {value!a} is not UTF-8")
    if isinstance(value, int | float) and type(value) is not bool:
        value = sign * value
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise InputError(f"filter {text!r}: {value} does not fit in 64 bits")
    return value


def _foreign(node: ast.AST, text: str) -> InputError:
    return InputError(f"filter {text!r}: {ast.unparse(node)!r} is not in the language; what fits: {FITS}")
