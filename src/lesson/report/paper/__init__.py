"""The paper's figures, tables and claims."""
