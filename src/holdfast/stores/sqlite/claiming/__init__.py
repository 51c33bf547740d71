"""Which worker executes which run next: claims, in a fair order and within the limits."""
