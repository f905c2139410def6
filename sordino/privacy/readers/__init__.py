"""Gate 1: how client code may look at examples, and what that promises."""
