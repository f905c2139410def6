"""Gate 1: readers, which decide how client code may look at examples, and what that guarantees."""
