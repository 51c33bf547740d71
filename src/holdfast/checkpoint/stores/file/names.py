"""From ids to file names that mean the same on every file system."""

import hashlib
import re

#: Ids that are file names as they are. No dots: `nul.txt` is a device on some systems, `trailing.` loses its dot.
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_DEVICES = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)})
_NOT_PLAIN = re.compile(r"[^a-z0-9_]+")


def file_name(some_id: str) -> str:
    """A name without suffix for `some_id`: the id itself where that is safe, else a slug of it and its hash.

    Lower case, at most 100 characters of `a-z 0-9 _ - ~`, so two ids that differ only in case stay two, and no id
    leads out of the folder. `~` is in no plain id, so the two kinds never meet.
    """
    if _PLAIN.fullmatch(some_id) and some_id not in _DEVICES:
        return some_id
    slug = _NOT_PLAIN.sub("-", some_id.lower()).strip("-")[:48] or "run"
    return f"{slug}~{hashlib.sha256(some_id.encode()).hexdigest()[:32]}"
