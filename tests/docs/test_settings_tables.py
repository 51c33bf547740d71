"""A table of settings has the fields of the class that it describes, and their defaults."""

import dataclasses
import re
from pathlib import Path

from holdfast import Retry

ROOT = Path(__file__).parents[2]


def test_the_table_of_retry_has_every_field() -> None:
    page = (ROOT / "docs" / "how-to" / "provider-outages.md").read_text()
    table = page.split("| `Retry` |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE))
    assert set(rows) == {field.name for field in dataclasses.fields(Retry)}
    assert rows["max_tries"] == str(Retry().max_tries)
