"""Words that the project gave up do not come back: unclear phrases in prose, old names in code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Name the actor and the action instead: "the caller", "another worker", "resumes", "the outcome of", "is notified".
PHRASES = re.compile(
    r"\b(whoever|somebody|nobody|anybody|goes on|go on with|what became of|is told|by heart|so long as|so many"
    r"|lets? go of|trouble with)\b",
    re.IGNORECASE,
)

#: Names from before the glossary. `discharge(` is a function in databases of earlier versions.
OLD_NAMES = re.compile(
    r"\b_?(reunion|pulse|brood|liverun|enlist(ed|s)?|discharge[ds]?(?!\()|patience|housekeeping|settlement|laboratory|nursery)\b"
    r"|\b(left_with_caller|handlesettings|did_not_happen|workfolder|agentpalette|max_iterations|keep_failed)\b"
    r"|\b(notknownhere|notsaved|notadmitted|storedenied|undecodablerecord)\b"
    r"|(?-i:\bHappened\b)|\bpalette\b",
    re.IGNORECASE,
)
#: Except the palette of a persona, which is the users' word, and the colours of the documentation.
PALETTE = re.compile(r"persona|definitions|how-to/batteries")


def _files(*patterns: str) -> list[Path]:
    return sorted({file for pattern in patterns for file in ROOT.glob(pattern) if file != Path(__file__)})


def _find(words: re.Pattern[str], files: list[Path]) -> list[str]:
    """Every line with one of the words, as FILE:LINE: WORD."""
    assert files
    return [
        f"{file.relative_to(ROOT)}:{number}: {found[0]}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        for found in words.finditer(line)
    ]


def test_prose_has_no_unclear_phrase() -> None:
    files = _files("src/**/*.py", "src/**/*.sql", "docs/**/*.md", "*.md")
    found = _find(PHRASES, files)
    assert found == [], "\n".join(found)


def test_no_old_name_is_left() -> None:
    files = _files(*(f"{folder}/**/*.py" for folder in ("src", "tests", "examples", "bench")), "docs/**/*.md")
    found = [line for line in _find(OLD_NAMES, files) if not (line.endswith("palette") and PALETTE.search(line))]
    assert found == [], "\n".join(found)
