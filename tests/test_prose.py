"""Words that the project gave up do not come back: unclear phrases in prose, old names in code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Name the actor and the action instead: "the caller", "another worker", "resumes", "the outcome of", "is notified",
#: "in progress", "repeated", "the current turn", "indefinitely", "this many",
#: "increasing delays", "in the middle of". A phrase may cross the end of a line.
PHRASES = re.compile(
    r"\b(whoever|somebody|everybody|(?<![\"`])nobody|anybody|goes on|go on with|what became of|is told|by heart"
    r"|so long as|so many|under way|made again|asked again|the present (?:turn|one|draft|status|state)|is no strike"
    r"|for ever|lets? go of|trouble with|known dead|belongs? into|in the midst"
    r"|growing (?:pauses|delays)|whatever crashes)\b".replace(" ", r"\s+(?:#:? |-- )?")
    # A comment on a field says what the field holds, not whose it is.
    + r"|(?-i:^\s*#:? Of )",
    re.IGNORECASE | re.MULTILINE,
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
    found = {file for pattern in patterns for file in ROOT.glob(pattern) if file != Path(__file__)}
    # The environments of benchmarks are hidden folders, with the words of others.
    return sorted(file for file in found if not any(part[0] == "." for part in file.relative_to(ROOT).parts))


def _find(words: re.Pattern[str], files: list[Path]) -> list[str]:
    """Every place with one of the words, as FILE:LINE: WORD."""
    assert files
    texts = {file: file.read_text() for file in files}
    return [
        f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}: {' '.join(found[0].split())}"
        for file, text in texts.items()
        for found in words.finditer(text)
    ]


def test_prose_has_no_unclear_phrase() -> None:
    code = [f"{folder}/**/*.py" for folder in ("src", "tests", "examples", "bench", "tools")]
    files = _files(*code, "src/**/*.sql", "src/**/*.html", "docs/**/*.md", "*.md")
    found = _find(PHRASES, files)
    assert found == [], "\n".join(found)


def test_no_old_name_is_left() -> None:
    files = _files(*(f"{folder}/**/*.py" for folder in ("src", "tests", "examples", "bench")), "docs/**/*.md")
    found = [line for line in _find(OLD_NAMES, files) if not (line.endswith("palette") and PALETTE.search(line))]
    assert found == [], "\n".join(found)
