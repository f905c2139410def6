"""What is learned: networks and losses."""
