"""What people look at: tables in the terminal and figures. Nothing here computes results."""
