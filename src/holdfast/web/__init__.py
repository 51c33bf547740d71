"""Runs over HTTP: the API, front-end protocols and the web page. Needs the extra `web`."""
