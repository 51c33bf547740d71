"""Shared by personas and skills: named, owned, versioned definitions, and their Markdown format."""
