"""The example in docs/search.md prints what it says."""

import re
from pathlib import Path

SEARCH = (Path(__file__).parents[2] / "docs" / "search.md").read_text()


def test_the_example_prints_what_it_says(capsys):
    part = SEARCH[SEARCH.index("## Where candidates come from") :]
    code, said = re.search(
        r"```python\n(.*?)```\s+```\n(.*?)```", part, re.DOTALL
    ).groups()
    exec(compile(code, "docs/search.md", "exec"), {})
    assert capsys.readouterr().out == said
