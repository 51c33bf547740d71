"""Cannot be imported."""

raise RuntimeError("no luck today")
