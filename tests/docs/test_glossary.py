"""The glossary has the words of the code."""

import re
from pathlib import Path

from holdfast.checkpoint.record import RunStatus
from holdfast.core.agents.calls import Effect
from holdfast.core.run.status import AttemptEnd

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()
MEANINGS = dict(re.findall(r"^\| ([\w ,-]+) \| (.+) \|$", PAGE, re.MULTILINE))


def _code_words(text: str) -> list[str]:
    return sorted(re.findall(r"`(\w+)`", text))


def test_the_statuses_are_those_of_stored_runs() -> None:
    table = PAGE.split("Status of a stored run:")[1].split("## ")[0]
    named = [name for row in table.splitlines() if row.startswith("| `") for name in _code_words(row.split("|")[1])]
    assert sorted(named) == sorted(status.value for status in RunStatus if status is not RunStatus.REMOVED)


def test_the_effects_are_those_of_tools() -> None:
    assert _code_words(MEANINGS["effect"]) == sorted(effect.value for effect in Effect)


def test_the_checkpoint_actions_are_those_of_the_kernel() -> None:
    assert _code_words(MEANINGS["end of an attempt"]) == sorted(end.value for end in AttemptEnd)
