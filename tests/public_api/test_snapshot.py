"""The public API is a promise: a change of a name or a signature is seen in a review."""

import difflib

from tests.public_api.describe import SNAPSHOT, describe_api

HOW_TO_UPDATE = """
The public API differs from tests/public_api/api.txt, as shown above. If the change is meant, update the file with
`python -m tests.public_api.describe`, add a line to CHANGELOG.md, and let both be reviewed."""


def test_the_public_api_is_the_reviewed_one() -> None:
    reviewed = SNAPSHOT.read_text().splitlines()
    changes = [*difflib.unified_diff(reviewed, describe_api(), "reviewed", "source", n=0, lineterm="")]
    assert not changes, "\n".join((*changes, HOW_TO_UPDATE))
