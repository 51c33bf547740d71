"""What personas and skills share: named, versioned, owned documents, and their form as Markdown with front matter."""
