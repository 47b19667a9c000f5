"""Conditions on metadata in Milvus's filter language, with the meaning they have in :mod:`sightline.gallery.filters`.

Milvus knows a third truth value: what compares with a missing key, or one of another type, is neither true nor false, and
``not`` leaves it so. Here such a comparison is false, so ``not`` is carried inwards to the comparisons and spelt out there.
"""

import ast
from typing import cast

import numpy as np

from sightline.errors import InputError
from sightline.gallery.filters import compile_filter, key_of
from sightline.gallery.items import Value

NEVER, ALWAYS = 'id == ""', 'id != ""'  # no id is empty
SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
# True of all texts and of all numbers.
IS_TEXT, IS_NUMBER = '{path} >= ""', "{path} >= -1.7976931348623157e308"


def milvus_filter(text: str, partition: str | None = None) -> str:
    """The condition in Milvus's language; what :func:`~sightline.gallery.filters.compile_filter` refuses is refused alike.

    Args:
        text: the condition.
        partition: the key that the collection is partitioned by: a condition that fixes it is told to Milvus, which then
            searches one partition alone.

    Example:
        >>> milvus_filter('year >= 2020 and not label_1 == "Flags"')
        '(metadata["year"] >= 2020 and (not (exists metadata["label_1"]) or not (metadata["label_1"] == "Flags")))'
    """
    compile_filter(text)
    tree = ast.parse(text.strip(), mode="eval").body
    condition = _condition(tree, True, text)
    fixed = None if partition is None else _fixed(tree, partition)
    return condition if fixed is None else f"partition == {literal(fixed, text)} and {condition}"


def literal(value: Value, text: str = "") -> str:
    """A value as Milvus writes it, strings in quotes with their quotes escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value.translate(ESCAPED)}"'
    if isinstance(value, float) and not np.isfinite(value):
        raise InputError(f"filter {text!r}: {value} is not a number that Milvus can compare with")
    return repr(value)


def _condition(node: ast.expr, wanted: bool, text: str) -> str:
    """The condition, or where ``wanted`` is False its opposite."""
    if isinstance(node, ast.BoolOp):
        return _joined(isinstance(node.op, ast.And) == wanted, [_condition(part, wanted, text) for part in node.values])
    if isinstance(node, ast.UnaryOp):
        return _condition(node.operand, not wanted, text)
    node = cast(ast.Compare, node)  # nothing else is in the language
    sides = [node.left, *node.comparators]
    steps = zip(sides[:-1], node.ops, sides[1:], strict=True)
    return _joined(wanted, [_comparison(left, operator, right, wanted, text) for left, operator, right in steps])


def _joined(by_and: bool, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({(' and ' if by_and else ' or ').join(parts)})"


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr, wanted: bool, text: str) -> str:
    if isinstance(operator, ast.In | ast.NotIn):
        wanted = wanted == isinstance(operator, ast.In)
        values = ast.literal_eval(right)
        parts = [_equal(_key(left), value, wanted, text) for value in values]
        return _joined(not wanted, parts) if parts else (NEVER if wanted else ALWAYS)
    mirrored = key_of(right) is not None
    name, value = (right, ast.literal_eval(left)) if mirrored else (left, ast.literal_eval(right))
    if isinstance(operator, ast.Eq | ast.NotEq):
        return _equal(_key(name), value, wanted == isinstance(operator, ast.Eq), text)
    symbol = SYMBOLS[type(operator)]
    return _ordered(_key(name), MIRRORED[symbol] if mirrored else symbol, value, wanted, text)


def _key(name: ast.expr) -> str:
    return cast(str, key_of(name))


def _path(key: str) -> str:
    return f'metadata["{key}"]'  # no quotes in it: compile_filter has looked


def _equal(key: str, value: Value, wanted: bool, text: str) -> str:
    if key == "id":
        if not isinstance(value, str):
            return NEVER if wanted else ALWAYS
        return f"id {'==' if wanted else '!='} {literal(value)}"
    path = _path(key)
    if value is None:
        return f"{'not ' if wanted else ''}(exists {path})"
    same = f"{path} == {literal(value, text)}"
    return same if wanted else f"(not (exists {path}) or not ({same}))"


def _ordered(key: str, symbol: str, value: Value, wanted: bool, text: str) -> str:
    if key == "id":
        if not isinstance(value, str):
            return NEVER if wanted else ALWAYS
        return f"id {symbol if wanted else OPPOSITE[symbol]} {literal(value)}"
    path = _path(key)
    value = int(value) if isinstance(value, bool) else value
    if wanted:
        return f"{path} {symbol} {literal(value, text)}"
    other_type = (IS_NUMBER if isinstance(value, str) else IS_TEXT).format(path=path)
    return f"(not (exists {path}) or {path} {OPPOSITE[symbol]} {literal(value, text)} or {other_type})"


def _fixed(node: ast.expr, key: str) -> str | None:
    """The text that a key must be equal to for the condition to hold, where it says so in so many words."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return next((found for part in node.values if (found := _fixed(part, key)) is not None), None)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        sides = [node.left, node.comparators[0]]
        for name, value in (sides, sides[::-1]):
            if key_of(name) == key and isinstance(value, ast.Constant):
                return value.value if isinstance(value.value, str) else None
    return None
