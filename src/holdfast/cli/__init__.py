"""The `holdfast` command. Installed with the extra `cli`; `holdfast.cli.main` is where it starts."""
