"""Runs over HTTP: the API, front-end protocols and the web UI. Needs the extra `web`."""
