"""Recorded answers: what they hold, where they are kept, and the only ways in which they change."""
