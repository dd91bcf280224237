"""The paper's tables and figures, at a chosen scale, beside what the paper prints."""
