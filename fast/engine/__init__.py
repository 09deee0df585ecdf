"""The engine over `fast.model`: compiled steps, sequences, chunks with their rows, greedy decoding, memory timings."""
