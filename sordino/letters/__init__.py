"""What a server and its sites say to each other, whatever carries it."""
