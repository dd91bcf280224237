"""The paper's tables and figures at a chosen scale, next to the paper's numbers."""
