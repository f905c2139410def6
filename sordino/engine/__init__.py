"""Engine: computing a round, with clients, executors and checkpoints."""
