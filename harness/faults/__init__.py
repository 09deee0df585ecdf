"""Proof that the gate's checks can fail: faults by hand and by rule, each in a copy, and what must catch them.

May import `harness.gate`, which it runs on what is broken, and what is below it. Nothing imports a fault.
"""
