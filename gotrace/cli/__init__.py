"""Hold one module per command: options to request to report."""
