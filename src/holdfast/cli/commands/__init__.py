"""One file for each command: its arguments, what it does with them, and what it prints."""
