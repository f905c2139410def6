"""Tasks, what is to be learned: networks, losses and kinds of labels."""
