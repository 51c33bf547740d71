"""The runs of a store as tools of the Model Context Protocol. Needs the extra `mcp`."""
