"""Cases: which prompts, on which model, how far they are continued, and how they are judged."""
