"""`holdfast demo`: kills an agent repeatedly, resumes it to its end, and counts its effects."""
