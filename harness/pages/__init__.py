"""Pages for people: one self-contained HTML file from a folder of benchmark results."""
