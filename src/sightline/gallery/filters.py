"""Filters on metadata, such as ``label_1 == "Flags" and year >= 2020``, parsed and translated to SQL with parameters.

The language is a subset of Python: ``and``, ``or``, ``not``, ``== != < <= > >=``, ``in`` and ``not in`` a list, metadata
names, ``id``, strings, numbers, ``True``, ``False`` and ``None``. A name that is not a Python name, such as ``class`` or
one with a space, is written ``metadata["product type"]``. Missing metadata is ``None``; values of different types are
unequal, and neither smaller nor larger.

Of metadata that is a list, ``"26.1.15" in codes`` asks for a value, and ``has(codes, "26.1")`` for a value that is 26.1 or
begins with ``26.1.``. Both are false for what is no list, which no value equals.
"""

import ast
from dataclasses import dataclass

from sightline.errors import InputError
from sightline.gallery.gallery import Scalar, is_utf8, value_fault

LONGEST = 10_000
MOST_COMPARISONS = 500  # SQLite takes no condition of more than 1000 parts
DEEPEST = 30  # nested conditions; SQLite takes 100, and a comparison uses a few itself
OPERATORS: dict[type[ast.cmpop], tuple[str, bool]] = {  # the symbol of a term, and False if it is negated
    ast.Eq: ("in", True),
    ast.NotEq: ("in", False),
    ast.In: ("in", True),
    ast.NotIn: ("in", False),
    ast.Lt: ("<", True),
    ast.LtE: ("<=", True),
    ast.Gt: (">", True),
    ast.GtE: (">=", True),
}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "in": "in"}
HAS, LISTS = "has", "lists"  # symbols of terms on lists: a value or one below it, and a value
FITS = (
    "compare names with strings in quotes, numbers, True, False or None by == != < <= > >= in, join them by and, or, not, "
    'ask for a value of a list by "26.1.15" in codes, or for all below it by has(codes, "26.1"), '
    'and write a name that is not a Python name as metadata["two words"]'
)


@dataclass(frozen=True)
class FilterTerm:
    """A metadata key, or ``id``, compared with values.

    Attributes:
        key: what is compared.
        symbol: ``< <= > >=`` with one value, or ``in`` with any number; ``==`` is ``in`` with one value. ``lists`` and
            ``has`` with one string.
        values: what it is compared with.
        holds: False if the term is negated.
    """

    key: str
    symbol: str
    values: tuple[Scalar, ...]
    holds: bool


@dataclass(frozen=True)
class Junction:
    """Conditions of which all (``by_and``) or at least one must hold. ``not`` is pushed down to the comparisons."""

    parts: tuple["FilterTerm | Junction", ...]
    by_and: bool


@dataclass(frozen=True)
class Condition:
    """An SQL condition over the columns ``id`` and ``metadata``, and the values of its parameters."""

    sql: str
    values: tuple[Scalar, ...]


def compile_filter(text: str) -> Condition:
    """The SQL condition of a filter.

    Example:
        >>> compile_filter('year >= 2020 and label_1 == "Flags"').values[-2:]
        ('$."label_1"', 'Flags')
        >>> compile_filter("__import__('os')")
        Traceback (most recent call last):
        sightline.errors.InputError: filter "__import__('os')": ... is not supported; ...
    """
    return _sql(parse_filter(text))


def filter_names(text: str) -> list[str]:
    """The names in a filter, sorted, each once.

    Example:
        >>> filter_names('year >= 2020 and (label_1 == "Flags" or year == 1999)')
        ['label_1', 'year']
    """
    return sorted({term.key for term in _terms(parse_filter(text))})


def parse_filter(text: str) -> FilterTerm | Junction:
    """The parsed condition of a filter; raises InputError for anything outside the language."""
    if not isinstance(text, str):
        raise InputError(f"a filter must be a string, got {type(text).__name__}")
    if len(text) > LONGEST:
        raise InputError(f"a filter must have at most {LONGEST} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"filter {text!r}: cannot be read: {getattr(error, 'msg', None) or error}; {FITS}") from error
    found = _parse(tree.body, text, True)
    if (n_comparisons := len(_terms(found))) > MOST_COMPARISONS:
        raise InputError(
            f"filter {text[:40]!r}...: must have at most {MOST_COMPARISONS} comparisons, got {n_comparisons}; "
            "`in` with a list counts as one"
        )
    return found


def _terms(condition: FilterTerm | Junction) -> list[FilterTerm]:
    if isinstance(condition, FilterTerm):
        return [condition]
    return [term for part in condition.parts for term in _terms(part)]


def _parse(node: ast.expr, text: str, holds: bool, depth: int = 1) -> FilterTerm | Junction:
    """The condition of a node, negated if ``holds`` is False."""
    if depth > DEEPEST:
        raise InputError(f"filter {text[:40]!r}...: must nest at most {DEEPEST} conditions")
    match node:
        case ast.BoolOp(op=joined_by, values=parts):
            conditions = tuple(_parse(part, text, holds, depth + 1) for part in parts)
            return Junction(conditions, isinstance(joined_by, ast.And) == holds)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _parse(operand, text, not holds, depth + 1)
        case ast.Compare(left=first, ops=operators, comparators=others):
            steps = zip([first, *others[:-1]], operators, others, strict=True)
            terms = tuple(_term(left, operator, right, text, holds) for left, operator, right in steps)
            return terms[0] if len(terms) == 1 else Junction(terms, by_and=holds)
        case ast.Call(func=ast.Name(id="has"), args=[field, value], keywords=[]):
            return _list_term(field, HAS, value, node, text, holds)
    raise _foreign(node, text)


def _term(left: ast.expr, operator: ast.cmpop, right: ast.expr, text: str, holds: bool) -> FilterTerm:
    is_in = isinstance(operator, ast.In | ast.NotIn)
    symbol, agrees = OPERATORS.get(type(operator), ("", True))
    if is_in and _key_of(right) is not None:
        return _list_term(right, LISTS, left, ast.Compare(left, [operator], [right]), text, holds == agrees)
    key, value = _key_of(left), right
    if key is None and not is_in:
        key, value, symbol = _key_of(right), left, MIRRORED.get(symbol, "")
    if key is None or not symbol or is_in != isinstance(value, ast.List | ast.Tuple):
        raise _foreign(ast.Compare(left, [operator], [right]), text)
    _check_key(key, text)
    values = tuple(_value(key, element, text) for element in getattr(value, "elts", [value]))
    if symbol != "in" and values[0] is None:
        raise InputError(f"filter {text!r}: None can be compared by == and != only")
    return FilterTerm(key, symbol, values, holds == agrees)


def _list_term(field: ast.expr, symbol: str, value: ast.expr, node: ast.expr, text: str, holds: bool) -> FilterTerm:
    """A term on the list of a field."""
    key = _key_of(field)
    if (
        key is None
        or key == "id"
        or not isinstance(value, ast.Constant)
        or not isinstance(value.value, str)
        or not value.value
    ):
        raise _foreign(node, text)
    _check_key(key, text)
    return FilterTerm(key, symbol, (_value(key, value, text),), holds)


def _check_key(key: str, text: str) -> None:
    if not key or any(letter in '"\\' or letter < " " for letter in key) or not is_utf8(key):
        raise InputError(f"filter {text!r}: a name must have no quotes, backslashes or line breaks, got {key!a}")


def _key_of(node: ast.expr) -> str | None:
    """The metadata key, or ``id``, on one side of a comparison; None if that side is a value."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Subscript(value=ast.Name(id="metadata"), slice=ast.Constant(value=str(key))):
            return key
    return None


def _value(key: str, node: ast.expr, text: str) -> Scalar:
    try:
        value: Scalar = ast.literal_eval(node)
    except ValueError as error:
        raise _foreign(node, text) from error
    if isinstance(value, list):
        raise _foreign(node, text)
    if fault := value_fault(key, value):
        raise InputError(f"filter {text!r}: {fault}")
    return value


def _foreign(node: ast.AST, text: str) -> InputError:
    return InputError(f"filter {text!r}: {ast.unparse(node)!r} is not supported; {FITS}")


def _sql(condition: FilterTerm | Junction) -> Condition:
    if isinstance(condition, Junction):
        parts = [_sql(part) for part in condition.parts]
        text = (" AND " if condition.by_and else " OR ").join(part.sql for part in parts)
        return Condition(f"({text})", tuple(value for part in parts for value in part.values))
    sql, values = _term_sql(condition)
    return Condition(sql if condition.holds else f"NOT {sql}", values)


def _term_sql(condition: FilterTerm) -> tuple[str, tuple[Scalar, ...]]:
    """The SQL of a term that is not negated, and the values of its parameters."""
    where = f'$."{condition.key}"'
    if condition.symbol in (LISTS, HAS):
        (value,) = condition.values
        # What begins with "26.1." sorts between that and "26.1/", whose last character is the next one.
        test, bounds = (
            ("= ?", (value,)) if condition.symbol == LISTS else ("|| '.' BETWEEN ? AND ?", (f"{value}.", f"{value}/"))
        )
        each = f"EXISTS (SELECT 1 FROM json_each(metadata, ?) WHERE value {test})"
        return f"(json_type(metadata, ?) IS 'array' AND {each})", (where, where, *bounds)
    # A list is a BLOB, which equals no value and has no order.
    of_metadata = "iif(json_type(metadata, ?) = 'array', x'', json_extract(metadata, ?))"
    column, path = ("id", ()) if condition.key == "id" else (of_metadata, (where, where))
    # Each is true or false, never NULL, also for an item without the key: NOT must negate it.
    if condition.symbol != "in":
        types = "('text')" if isinstance(condition.values[0], str) else "('integer', 'real')"
        sql = f"(typeof({column}) IN {types} AND {column} {condition.symbol} ?)"
        return sql, (*path, *path, *condition.values)
    if len(condition.values) == 1:
        return f"({column} IS ?)", (*path, *condition.values)
    there = [value for value in condition.values if value is not None]
    sql = f"(CASE WHEN {column} IS NULL THEN ? ELSE {column} IN ({', '.join('?' * len(there))}) END)"
    return sql, (*path, None in condition.values, *path, *there)
