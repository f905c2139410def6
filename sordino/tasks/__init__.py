"""Tasks, the learning problems: networks, losses and kinds of labels."""
