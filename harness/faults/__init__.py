"""Proof that the gate's checks can fail: faults planted in copies, each caught at the right level and named."""
