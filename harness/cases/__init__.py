"""Cases: which prompts, on which model, how far they are continued, and how they are judged.

May import `harness.synth`, for the models that it makes, and the files of `harness`; no engine and no gate.
"""
