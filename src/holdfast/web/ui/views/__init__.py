"""What the pages show, as plain data: made from records and journals, rendered by templates."""
