"""Turn the words a user typed into functions and probe sites."""
