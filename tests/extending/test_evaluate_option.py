"""An option of ``evaluate``, in Python and on the command line: leave out queries with few relevant items."""

from changed_packages import run_python
from small_tables import small_table

PARAMETER = "    min_relevant: int = 1,\n"
CHANGES = {
    "evaluation/protocol.py": [
        (
            '    ties: str = "worst"\n    trust: bool = False\n',
            '    ties: str = "worst"\n    trust: bool = False\n    min_relevant: int = 1\n',
        ),
        ('    empty: Literal["skip", "zero"] = "skip",\n', '    empty: Literal["skip", "zero"] = "skip",\n' + PARAMETER),
        ("gain, ties, trust)\n", "gain, ties, trust, min_relevant)\n"),
        (
            "    return Result(columns, notes=",
            "    few = stats.counts[:, relevant - 1 :].sum(1) < wanted.min_relevant\n"
            "    columns = {name: np.where(few, np.nan, column) for name, column in columns.items()}\n"
            "    return Result(columns, notes=",
        ),
    ],
    "evaluation/tables.py": [
        ("    exclude: str | None = None,\n", "    exclude: str | None = None,\n" + PARAMETER),
        ("MeasureOptions(ks, metrics, trust=trust)", "MeasureOptions(ks, metrics, trust=trust, min_relevant=min_relevant)"),
    ],
    "cli/evaluate.py": [
        (
            "    trust: Annotated[bool",
            '    min_relevant: Annotated[int, typer.Option(min=1, help="Leave out queries with fewer.")] = 1,\n'
            "    trust: Annotated[bool",
        ),
        ("some, exclude, trust, several", "some, exclude, min_relevant, trust, several"),
    ],
}
IN_PYTHON = """
import sightline as sl
vectors, labels = [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0], [0.1, 0.9]], [0, 0, 0, 1, 1]
print(*(sl.evaluate(vectors, labels, min_relevant=n).n_skipped for n in (1, 2)))
"""


def test_an_option_of_evaluate_takes_the_three_files_that_the_page_names(changed_copy, tmp_path):
    copy = changed_copy("an option of `evaluate`", CHANGES)
    assert run_python(copy, tmp_path, "-c", IN_PYTHON).stdout.split() == ["0", "2"]
    vectors = [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0], [0.1, 0.9]]
    table = small_table(vectors, "aaabb").write(tmp_path / "t.parquet")
    command = ["-m", "sightline", "evaluate"]
    assert "--min-relevant" in run_python(copy, tmp_path, *command, "--help").stdout
    printed = run_python(copy, tmp_path, *command, table, "--min-relevant", 2).stdout
    assert printed.splitlines()[-1].startswith("5 queries, 2 without")
