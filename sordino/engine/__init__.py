"""How a round is computed: clients, messages, processes, checkpoints."""
