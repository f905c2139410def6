"""What a run leaves behind: what may be shown, what is private, and how others check it."""
