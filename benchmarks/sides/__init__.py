"""One way of doing the work each, a process of its own."""
