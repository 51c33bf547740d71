"""The web UI: every run, its transcript, and what waits for a person. Server-rendered; works without JavaScript."""

from holdfast.web.ui.application import make_ui as make_ui
