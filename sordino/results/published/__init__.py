"""Tables that compare this library with what was published: their rows, how they are run, and what was found."""
