"""The fast path: `rows` reads the table, `model` computes layers, `engine` runs sequences; none uses the reference."""
