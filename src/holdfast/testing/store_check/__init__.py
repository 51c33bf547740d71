"""The published store suite against a database of the user: `holdfast store-check URL`."""
