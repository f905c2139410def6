"""What torch does slowly, done faster to the same numbers."""
