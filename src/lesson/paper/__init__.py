"""What regenerates the paper's tables and figures."""
